//! `sensor_msgs/PointCloud2`: translates between clouds and arrays with a row for each point.

use rgaps_client::tensor::contiguous;
use rgaps_client::{DType, Header, Sample, Tensor, Value};
use std::collections::BTreeMap;

/// The key of a header with the fields of points.
pub(crate) const FIELDS: &str = "fields";
/// `PointField::FLOAT32`.
const FLOAT32: i64 = 7;

fn number(header: &Header, name: &str) -> Option<u64> {
    match header.values.get(name)? {
        Value::Int(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

/// Whether all fields of points are float32.
fn is_float32(header: &Header) -> bool {
    let Some(Value::List(fields)) = header.values.get(FIELDS) else {
        return false;
    };
    let is_float32 = |field: &Value| match field {
        Value::Map(field) => field.get("datatype") == Some(&Value::Int(FLOAT32)),
        _ => false,
    };
    !fields.is_empty() && fields.iter().all(is_float32)
}

/// The array of a decoded cloud: shape (points, columns), or (height, width, columns) if its height is not 1. Columns are float32 if
/// all fields are, otherwise bytes. None: its rows have gaps.
pub(crate) fn tensor(header: &Header, bytes: usize) -> Option<Tensor> {
    let (height, width) = (number(header, "height")?, number(header, "width")?);
    let point = number(header, "point_step")?;
    let points = height.checked_mul(width)?;
    if point == 0 || points.checked_mul(point)? != bytes as u64 {
        return None;
    }
    let (dtype, columns) = match is_float32(header) && point % 4 == 0 {
        true => (DType::F32, point / 4),
        false => (DType::U8, point),
    };
    let shape = [height, width, columns];
    let shape = if height == 1 { &shape[1..] } else { &shape };
    contiguous(dtype, shape).ok().map(|(tensor, _)| tensor)
}

/// Sets the values of the header that describe the cloud's bytes. If the header has no fields, an array of three or four columns of
/// float32 is x, y, z and intensity. Fails if the array is no cloud.
pub(crate) fn describe(header: &mut Header, sample: &Sample) -> Result<(), String> {
    let tensor = sample.tensor().ok_or("it is no array")?;
    let shape = &tensor.shape[..usize::from(tensor.ndim)];
    let dense = contiguous(tensor.dtype, shape).map_err(|error| error.to_string())?;
    if dense != (*tensor, sample.len()) {
        return Err("its points have gaps between them".to_owned());
    }
    let (height, width, columns) = match *shape {
        [points, columns] => (1, points, columns),
        [height, width, columns] => (height, width, columns),
        _ => return Err("a cloud has 2 or 3 dimensions".to_owned()),
    };
    let point = columns * tensor.dtype.element_bytes();
    if !header.values.contains_key(FIELDS) {
        let names = ["x", "y", "z", "intensity"];
        if tensor.dtype != DType::F32 || !(3..=4).contains(&columns) {
            return Err(format!(
                "its header has no '{FIELDS}' that say what {columns} x {} are",
                tensor.dtype
            ));
        }
        let field = |(at, name): (usize, &&str)| {
            let field = [
                ("name", Value::from(*name)),
                ("offset", Value::Int(4 * at as i64)),
                ("datatype", Value::Int(FLOAT32)),
                ("count", Value::Int(1)),
            ];
            let field = field.map(|(key, value)| (key.to_owned(), value));
            Value::from(BTreeMap::from(field))
        };
        let fields = names[..columns as usize].iter().enumerate().map(field);
        let fields = Value::List(fields.collect());
        header.values.insert(FIELDS.to_owned(), fields);
    }
    for (name, value) in [
        ("height", height.into()),
        ("width", width.into()),
        ("point_step", point.into()),
        ("row_step", (width * point).into()),
    ] {
        header.values.insert(name.to_owned(), value);
    }
    let is_dense = header.values.entry("is_dense".to_owned());
    is_dense.or_insert(Value::Bool(true));
    Ok(())
}
