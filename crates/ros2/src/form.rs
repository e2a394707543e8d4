//! Checks whether a message of rgaps matches a type of ROS 2. Fields that the message leaves out are encoded as 0 or empty. A part
//! or an array that the type does not have is a mistake of the publisher: the message is refused, since a robot must not get zeros
//! instead.

use crate::cdr::NumberType;
use crate::types::{Bytes, Field, Type};
use rgaps_client::tensor::contiguous;
use rgaps_client::{Header, Sample, Tensor};

/// Checks a message.
///
/// # Errors
/// Names something in the message that the type does not have, or says that the message has nothing of the type.
pub(crate) fn check(kind: &Type, header: &Header, sample: &Sample) -> Result<(), String> {
    let parts = sample.parts().map_err(|error| error.to_string())?;
    let names: Vec<&str> = kind.fields.iter().filter_map(part_name).collect();
    for part in parts.iter() {
        if !names.contains(&part.name()) {
            return Err(format!("it has a part '{}', {}", part.name(), has(&names)));
        }
    }
    let bytes = kind.fields.iter().find_map(|field| match field {
        Field::Whole(number, shape) => Some(check_numbers(*number, shape, sample)),
        Field::Data(bytes) => Some(check_bytes(kind, *bytes, sample)),
        _ => None,
    });
    match bytes {
        Some(checked) => checked,
        None if parts.is_empty() => check_no_parts(kind, &names, header, sample),
        None => Ok(()),
    }
}

fn part_name(field: &Field) -> Option<&'static str> {
    match field {
        Field::Array(name, ..) | Field::List(name, _) => Some(name),
        _ => None,
    }
}

fn has(names: &[&str]) -> String {
    match names {
        [] => "and the type has no parts".to_owned(),
        names => format!("and the type has {}", names.join(", ")),
    }
}

/// Checks a message without parts, for a type with parts or with only a header.
fn check_no_parts(
    kind: &Type,
    names: &[&str],
    header: &Header,
    sample: &Sample,
) -> Result<(), String> {
    if sample.tensor().is_some() || !sample.is_empty() {
        let what = match sample.tensor() {
            Some(_) => "an array",
            None => "bytes",
        };
        return Err(format!("it is {what} without parts, {}", has(names)));
    }
    let is_in_header = kind.fields.iter().any(|field| match field {
        Field::Value(name, _) | Field::Text(name) | Field::Texts(name) => {
            header.values.contains_key(*name)
        }
        _ => false,
    });
    match names.is_empty() || is_in_header {
        true => Ok(()),
        false => Err(format!("it is empty, {}", has(names))),
    }
}

fn check_numbers(kind: NumberType, shape: &[u64], sample: &Sample) -> Result<(), String> {
    let wanted = match shape {
        [] => format!("and the type is one {}", kind.dtype()),
        shape => format!("and the type is {} {}", shape[0], kind.dtype()),
    };
    let tensor = sample.tensor();
    let tensor = tensor.ok_or_else(|| format!("it is no array, {wanted}"))?;
    check_array("it", kind, tensor, sample.len()).map_err(|why| format!("{why}, {wanted}"))
}

/// Checks that an array has numbers of this type, in C order and without gaps.
pub(crate) fn check_array(
    name: &str,
    kind: NumberType,
    tensor: &Tensor,
    bytes: u64,
) -> Result<(), String> {
    if tensor.dtype.name() != Some(kind.dtype()) {
        return Err(format!("{name} is an array of {}", tensor.dtype));
    }
    let shape = &tensor.shape[..usize::from(tensor.ndim)];
    let dense = contiguous(tensor.dtype, shape).map_err(|error| error.to_string())?;
    match dense == (*tensor, bytes) {
        true => Ok(()),
        false => Err(format!(
            "{name} is an array with gaps, or in another order than C's"
        )),
    }
}

/// Checks a message whose bytes are a field of the type. `image` and `cloud` check their arrays themselves.
fn check_bytes(kind: &Type, bytes: Bytes, sample: &Sample) -> Result<(), String> {
    if matches!(
        kind.name,
        "sensor_msgs/msg/Image" | "sensor_msgs/msg/PointCloud2"
    ) {
        return Ok(());
    }
    if let Some(tensor) = sample.tensor() {
        check_array("it", NumberType::U8, tensor, sample.len())
            .map_err(|why| format!("{why}, and the type is bytes"))?;
    }
    let own = sample.as_slice().map_err(|error| error.to_string())?;
    let is_text = || !own.contains(&0) && std::str::from_utf8(own).is_ok();
    match bytes == Bytes::Sequence || is_text() {
        true => Ok(()),
        false => Err("it is no text".to_owned()),
    }
}
