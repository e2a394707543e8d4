//! Everything that `topic pub` sets in its messages besides their bytes: an array's type and shape, tag and header.

use crate::args::Publish;
use crate::exit::Usage;
use rgaps::{tensor, DType, Header, HeaderError, Loan, Tensor, Value};

/// The description of messages. Only the capture time differs between them.
pub struct Description {
    dtype: Option<DType>,
    shape: Option<Vec<u64>>,
    /// The array of a file or a picture. It need not be row-major.
    tensor: Option<Tensor>,
    tag: u64,
    header: Header,
    capture_now: bool,
    /// The capture time of the next message, if its source tells it: nanoseconds since 1970.
    capture_ns: Option<u64>,
}

impl Description {
    pub fn new(publish: &Publish) -> anyhow::Result<Description> {
        let mut header = Header::default();
        if let Some(id) = &publish.frame_id {
            header = header.frame_id(id);
        }
        for (key, value) in &publish.meta {
            header = header.value(key, value.clone());
        }
        // Refuses an invalid header at once, not when the first message is ready.
        header.encode().map_err(|error| {
            Usage(match error {
                HeaderError::Reserved { key } => {
                    let option = match key {
                        "capture_ns" => {
                            "use --capture-now, which sets it to the time of publishing"
                        }
                        _ => "use --frame-id",
                    };
                    format!("--meta: the key '{key}' is reserved; {option}")
                }
                error => format!("--meta: {error}"),
            })
        })?;
        Ok(Description {
            dtype: publish.dtype,
            shape: publish.shape.clone().map(|shape| shape.0),
            tensor: None,
            tag: publish.tag,
            header,
            capture_now: publish.capture_now,
            capture_ns: None,
        })
    }

    /// Takes the type and shape of a file's array. Fails if options give another type or shape.
    pub fn take(&mut self, found: &Tensor) -> anyhow::Result<()> {
        let shape = &found.shape[..usize::from(found.ndim)];
        let differs = self.dtype.is_some_and(|dtype| dtype != found.dtype)
            || self.shape.as_deref().is_some_and(|wanted| wanted != shape);
        if differs {
            let text = format!(
                "the file has an array {}{shape:?}; leave out --dtype and --shape, or publish the bytes of the file with --raw",
                found.dtype
            );
            return Err(Usage(text).into());
        }
        (self.dtype, self.shape) = (Some(found.dtype), Some(shape.to_vec()));
        self.tensor = Some(*found);
        Ok(())
    }

    /// Describes the next message as a picture, and when it was captured.
    pub fn show(&mut self, picture: &Tensor, capture_ns: Option<u64>) {
        (self.dtype, self.tensor) = (Some(picture.dtype), Some(*picture));
        self.capture_ns = capture_ns;
    }

    /// The array that a message of `bytes` bytes holds. None: plain bytes.
    fn array(&self, bytes: u64) -> anyhow::Result<Option<Tensor>> {
        let Some(dtype) = self.dtype else {
            return Ok(None);
        };
        if let Some(tensor) = self.tensor {
            return Ok(Some(tensor));
        }
        let each = dtype.element_bytes();
        let shape = self.shape.clone().unwrap_or_else(|| vec![bytes / each]);
        let (tensor, wanted) =
            tensor::contiguous(dtype, &shape).map_err(|error| Usage(error.to_string()))?;
        if wanted != bytes {
            let text =
                format!("{dtype}{shape:?} needs {wanted} bytes, but the message has {bytes}");
            return Err(Usage(text).into());
        }
        Ok(Some(tensor))
    }

    /// Fails if a message of `bytes` bytes is not the array that the options describe.
    pub fn check(&self, bytes: u64) -> anyhow::Result<()> {
        self.array(bytes).map(|_| ())
    }

    /// The type name that the publisher declares; empty for plain bytes.
    pub fn type_name(&self) -> String {
        let lengths = |shape: &Vec<u64>| {
            let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
            format!("[{}]", lengths.join(","))
        };
        let shape = self.shape.as_ref().map_or_else(String::new, lengths);
        self.dtype
            .map_or_else(String::new, |dtype| format!("{dtype}{shape}"))
    }

    pub fn describe(&self, loan: &mut Loan) -> anyhow::Result<()> {
        if let Some(tensor) = self.array(loan.len())? {
            loan.set_tensor(tensor)?;
        }
        loan.set_tag(self.tag);
        let mut header = self.header.clone();
        header.capture_ns = match self.capture_now {
            true => Header::captured_now().capture_ns,
            false => self.capture_ns,
        };
        if !header.is_empty() {
            loan.set_header(&header)?;
        }
        Ok(())
    }
}

/// Parses `gain=2.5`. The value becomes a number or a bool if it is written as one, otherwise text.
pub fn meta(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text
        .split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| format!("'{text}' is not KEY=VALUE"))?;
    let value = if let Ok(int) = value.parse::<i64>() {
        Value::Int(int)
    } else if let Ok(flag) = value.parse::<bool>() {
        Value::Bool(flag)
    } else {
        match value.parse::<f64>() {
            // "inf" and "nan" stay text: they are more likely words.
            Ok(float) if float.is_finite() => Value::Float(float),
            _ => Value::Text(value.to_owned()),
        }
    };
    Ok((key.to_owned(), value))
}

/// A shape, such as `480,640,3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(pub Vec<u64>);

pub fn shape(text: &str) -> Result<Shape, String> {
    let lengths = text.split(',').map(|length| length.trim().parse());
    let lengths: Result<Vec<u64>, _> = lengths.collect();
    lengths
        .map(Shape)
        .map_err(|_| format!("'{text}' is not a shape such as 480,640,3"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_type_that_they_look_like() {
        let value = |text: &str| meta(text).unwrap().1;
        assert_eq!(value("a=3"), Value::Int(3));
        assert_eq!(value("a=-0.5"), Value::Float(-0.5));
        assert_eq!(value("a=true"), Value::Bool(true));
        assert_eq!(value("a=nan"), Value::Text("nan".to_owned()));
        assert_eq!(
            meta("a=b=c").unwrap(),
            ("a".to_owned(), Value::Text("b=c".to_owned()))
        );
        assert!(meta("=1").is_err() && meta("word").is_err());
        assert_eq!(shape("480, 640"), Ok(Shape(vec![480, 640])));
        assert!(shape("480,x").is_err() && shape("").is_err() && shape("-1").is_err());
    }
}
