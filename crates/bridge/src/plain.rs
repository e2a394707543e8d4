//! The dialect of plain Zenoh: a key is the name of a topic, the encoding is the type that a publisher declares, and the attachment
//! holds everything of a message besides its bytes.
//!
//! The attachment is the message's header with one more key, so programs without rgaps can read and write it with any library
//! for MessagePack:
//!
//! ```text
//! { "capture_ns": 1700000000000000000, "frame_id": "front",      the header, as it is
//!   "rgaps": {                                                   all of these are optional
//!     "dtype": "uint8", "shape": [480, 640, 3], "strides": [1920, 3, 1],
//!     "parts": [{"name": "depth", "dtype": "float32", "shape": [480, 640], "offset": 921600, "bytes": 1228800}],
//!     "tag": 7, "sequence": 41,
//!     "attachment": <bytes>                                      instead of a header
//! } }
//! ```
//! The bridge sets the key `zenoh` in the header of an incoming message: a map with its `key`, `encoding` and `timestamp_ns`, and
//! with its `attachment` if that has another form. A message with `rgaps.attachment` has no header, so it gets no such key.

use crate::dialect::{Dialect, Inbound, Outbound};
use bytes::Bytes;
use rgaps_client::bindings::{Beside, WithMetadata as _};
use rgaps_client::{DType, Header, Sample, Tensor, Value};
use rgaps_session::{bare_topic_name, check_topic_name, BridgeConfig as Config, ZenohRule};
use std::collections::BTreeMap;
use zenoh::bytes::{Encoding, ZBytes};

/// The key of an attachment for what only rgaps knows.
const RGAPS: &str = "rgaps";
/// The key of a header for what only Zenoh knows.
const ZENOH: &str = "zenoh";
/// Zenoh's default encoding, which names no type.
const NO_ENCODING: &str = "zenoh/bytes";

/// Plain Zenoh.
pub(crate) struct Plain {
    /// The prefix of keys, with a slash at its end, or empty.
    prefix: String,
    outgoing: Vec<ZenohRule>,
    incoming: Vec<ZenohRule>,
}

impl Plain {
    /// Takes the rules of a configuration.
    pub(crate) fn new(config: &Config) -> Plain {
        let prefix = config.prefix.trim_matches('/');
        let rules = |is_meant: fn(&&ZenohRule) -> bool| {
            config.zenoh.iter().filter(is_meant).cloned().collect()
        };
        Plain {
            prefix: match prefix {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
            outgoing: rules(|rule| rule.direction.is_to()),
            incoming: rules(|rule| rule.direction.is_from()),
        }
    }

    /// The topic for a key, by an incoming rule. The error says why no topic can have this name.
    fn topic(&self, rule: &ZenohRule, key: &str) -> Result<String, String> {
        let topic = match rule.is_pattern() {
            false => bare_topic_name(&rule.topic),
            true => key
                .strip_prefix(&self.prefix)
                .ok_or_else(|| format!("it does not begin with '{}'", self.prefix))?,
        };
        check_topic_name(topic).map_err(|error| error.to_string())?;
        Ok(topic.to_owned())
    }
}

impl Dialect for Plain {
    fn mark(&self) -> &'static str {
        ZENOH
    }

    fn outgoing(&self) -> Vec<(String, bool)> {
        let rules = self.outgoing.iter();
        rules
            .map(|rule| (rule.topic.clone(), rule.reliable))
            .collect()
    }

    fn key(&self, rule: usize, topic: &str) -> String {
        match &self.outgoing[rule].key {
            Some(key) => key.clone(),
            None => format!("{}{}", self.prefix, bare_topic_name(topic)),
        }
    }

    fn encode(
        &self,
        _: usize,
        type_name: &str,
        _: u64,
        sample: Sample,
    ) -> Result<Outbound, String> {
        let attachment = attachment(&sample)?;
        Ok(Outbound {
            payload: held(sample)?,
            encoding: match type_name {
                "" => Encoding::default(),
                name => Encoding::from(name),
            },
            attachment,
        })
    }

    fn incoming(&self) -> Vec<String> {
        let key = |rule: &ZenohRule| match &rule.key {
            Some(key) => key.clone(),
            None => format!(
                "{}{}",
                self.prefix,
                key_expression(bare_topic_name(&rule.topic))
            ),
        };
        self.incoming.iter().map(key).collect()
    }

    fn decode(&self, rule: usize, sample: &zenoh::sample::Sample) -> Result<Inbound, String> {
        let key = sample.key_expr().as_str();
        let encoding = sample.encoding().to_string();
        let mut mark = BTreeMap::from([
            ("key".to_owned(), Value::from(key)),
            ("encoding".to_owned(), Value::from(encoding.as_str())),
        ]);
        if let Some(timestamp) = sample.timestamp() {
            let since = timestamp.get_time().to_duration();
            let ns = Value::from(since.as_nanos() as u64);
            mark.insert("timestamp_ns".to_owned(), ns);
        }
        let attachment = sample.attachment().map(ZBytes::to_bytes);
        Ok(Inbound {
            topic: self.topic(&self.incoming[rule], key)?,
            beside: beside(attachment.as_deref().unwrap_or_default(), mark)?,
            type_name: match encoding.as_str() {
                NO_ENCODING => String::new(),
                _ => encoding,
            },
            payload: sample.payload().clone(),
            skip: 0,
            len: sample.payload().len(),
        })
    }
}

/// Turns a pattern of topics into a key expression of Zenoh.
fn key_expression(pattern: &str) -> String {
    let part = |part: &str| match part {
        "*" | "**" => part.to_owned(),
        // Zenoh writes a wildcard within a part as `$*`.
        _ => part.replace('*', "$*"),
    };
    pattern.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The bytes of a message, without a copy: Zenoh's buffer holds the sample until Zenoh has read it.
pub(crate) fn held(sample: Sample) -> Result<ZBytes, String> {
    struct Held(Sample);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice().unwrap_or_default()
        }
    }

    // Fails here if it fails at all: `as_ref` cannot return an error.
    sample.as_slice().map_err(|error| error.to_string())?;
    Ok(ZBytes::from(Bytes::from_owner(Held(sample))))
}

/// Encodes the attachment of a message.
fn attachment(sample: &Sample) -> Result<Vec<u8>, String> {
    let mut fields = vec![pair("sequence", sample.sequence())];
    if sample.tag() != 0 {
        fields.push(pair("tag", sample.tag()));
    }
    if let Some(tensor) = sample.tensor() {
        fields.extend(describe(tensor));
    }
    let parts = sample.parts().map_err(|error| error.to_string())?;
    let parts: Vec<_> = parts
        .iter()
        .map(|part| {
            let mut entries = vec![
                pair("name", part.name()),
                pair("offset", part.offset()),
                pair("bytes", part.len()),
            ];
            entries.extend(describe(&part.tensor()));
            rmpv::Value::Map(entries)
        })
        .collect();
    if !parts.is_empty() {
        fields.push(pair("parts", parts));
    }
    let mut entries = Vec::new();
    if let Some(bytes) = sample.attachment() {
        let is_header = sample.metadata().is_some_and(|beside| beside.is_header());
        match read_map(bytes).filter(|_| is_header) {
            Some(header) => entries = header,
            None => fields.push(pair("attachment", rmpv::Value::Binary(bytes.to_vec()))),
        }
    }
    entries.retain(|(key, _)| key.as_str() != Some(RGAPS));
    entries.push(pair(RGAPS, rmpv::Value::Map(fields)));
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::Value::Map(entries))
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn pair(key: &str, value: impl Into<rmpv::Value>) -> (rmpv::Value, rmpv::Value) {
    (key.into(), value.into())
}

/// The entries for an array: element type, shape and, if it has gaps, strides.
fn describe(tensor: &Tensor) -> Vec<(rmpv::Value, rmpv::Value)> {
    let dims = usize::from(tensor.ndim);
    let (shape, strides) = (&tensor.shape[..dims], &tensor.strides[..dims]);
    let list = |values: Vec<rmpv::Value>| rmpv::Value::Array(values);
    let mut entries = vec![pair(
        "shape",
        list(shape.iter().map(|length| (*length).into()).collect()),
    )];
    match tensor.dtype.name() {
        Some(name) => entries.push(pair("dtype", name)),
        None => {
            let DType { code, bits, lanes } = tensor.dtype;
            let dlpack = [u16::from(code), u16::from(bits), lanes];
            entries.push(pair("dtype", list(dlpack.map(Into::into).to_vec())));
        }
    }
    let dense = rgaps_client::tensor::contiguous(tensor.dtype, shape);
    if dense.is_ok_and(|(dense, _)| dense != *tensor) {
        let strides = strides.iter().map(|stride| (*stride).into()).collect();
        entries.push(pair("strides", list(strides)));
    }
    entries
}

/// Reads a map of MessagePack. None: the bytes are something else, or more than a map.
fn read_map(mut bytes: &[u8]) -> Option<Vec<(rmpv::Value, rmpv::Value)>> {
    // The depth of the deepest header, as the library counts levels.
    let depth = 2 * rgaps_client::HEADER_DEPTH_MAX + 3;
    match rmpv::decode::read_value_with_max_depth(&mut bytes, depth) {
        Ok(rmpv::Value::Map(entries)) if bytes.is_empty() => Some(entries),
        _ => None,
    }
}

/// Decodes an attachment. Adds `mark` to the header of the message, unless the message has an attachment that is no header.
fn beside(attachment: &[u8], mut mark: BTreeMap<String, Value>) -> Result<Beside, String> {
    let mut beside = Beside::default();
    let split = split(attachment);
    if split.is_none() && !attachment.is_empty() {
        mark.insert("attachment".to_owned(), attachment.into());
    }
    let (mut header, fields) = split.unwrap_or_default();
    let fields = Fields(&fields);
    match fields.get("attachment").and_then(rmpv::Value::as_slice) {
        Some(bytes) => beside.attach(bytes, false)?,
        None => {
            header.values.insert(ZENOH.to_owned(), mark.into());
            beside.set_header(&header)?;
        }
    }
    beside.tag = fields.number("tag")?.unwrap_or_default();
    beside.tensor = fields.tensor()?.map(|(tensor, _)| tensor);
    for part in fields.list("parts")?.unwrap_or_default() {
        let part = Fields(part.as_map().map_or(&[], Vec::as_slice));
        let name = part.get("name").and_then(rmpv::Value::as_str);
        let Some((tensor, dense_bytes)) = part.tensor()? else {
            return Err("a part has no shape".to_owned());
        };
        let offset = part.number("offset")?.unwrap_or_default();
        let bytes = part.number("bytes")?.unwrap_or(dense_bytes);
        beside.add_part(name.unwrap_or_default(), &tensor, offset, bytes)?;
    }
    Ok(beside)
}

/// Splits an attachment into the header and the entries of its key `rgaps`. None: the attachment has another form.
#[allow(clippy::type_complexity)]
fn split(attachment: &[u8]) -> Option<(Header, Vec<(rmpv::Value, rmpv::Value)>)> {
    let (fields, header): (Vec<_>, Vec<_>) = read_map(attachment)?
        .into_iter()
        .partition(|(key, _)| key.as_str() == Some(RGAPS));
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::Value::Map(header)).ok()?;
    let header = Header::decode(&bytes).ok()?;
    let fields = match fields.into_iter().next() {
        None => Vec::new(),
        Some((_, rmpv::Value::Map(fields))) => fields,
        Some(_) => return None,
    };
    Some((header, fields))
}

/// The entries of the key `rgaps`, or of a part in it.
struct Fields<'a>(&'a [(rmpv::Value, rmpv::Value)]);

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a rmpv::Value> {
        let mut entries = self.0.iter();
        let entry = entries.find(|(name, _)| name.as_str() == Some(key));
        entry.map(|(_, value)| value)
    }

    fn number(&self, key: &str) -> Result<Option<u64>, String> {
        let wrong = || format!("'{RGAPS}.{key}' of its attachment is no number");
        let value = self.get(key);
        value
            .map(|value| value.as_u64().ok_or_else(wrong))
            .transpose()
    }

    fn list(&self, key: &str) -> Result<Option<&'a [rmpv::Value]>, String> {
        let wrong = || format!("'{RGAPS}.{key}' of its attachment is no list");
        let list = |value: &'a rmpv::Value| value.as_array().map(Vec::as_slice);
        let value = self.get(key);
        value.map(|value| list(value).ok_or_else(wrong)).transpose()
    }

    /// An array, and how many bytes it would have without gaps. None: the entries have no shape.
    fn tensor(&self) -> Result<Option<(Tensor, u64)>, String> {
        let Some(shape) = self.list("shape")? else {
            return Ok(None);
        };
        let wrong = || format!("'{RGAPS}.dtype' or '{RGAPS}.shape' of its attachment is wrong");
        let shape: Option<Vec<u64>> = shape.iter().map(rmpv::Value::as_u64).collect();
        let shape = shape.ok_or_else(wrong)?;
        let dtype = self.get("dtype").and_then(dtype).ok_or_else(wrong)?;
        let say = |error: rgaps_client::tensor::ShapeError| error.to_string();
        let (dense, bytes) = rgaps_client::tensor::contiguous(dtype, &shape).map_err(say)?;
        let Some(strides) = self.list("strides")? else {
            return Ok(Some((dense, bytes)));
        };
        let strides: Option<Vec<i64>> = strides.iter().map(rmpv::Value::as_i64).collect();
        let strides = strides.ok_or_else(wrong)?;
        let tensor = rgaps_client::tensor::strided(dtype, &shape, &strides).map_err(say)?;
        Ok(Some((tensor, bytes)))
    }
}

/// An element type: its name, or DLPack's code, bits and lanes.
fn dtype(value: &rmpv::Value) -> Option<DType> {
    match value {
        rmpv::Value::Array(numbers) => match numbers.as_slice() {
            [code, bits, lanes] => Some(DType {
                code: code.as_u64()?.try_into().ok()?,
                bits: bits.as_u64()?.try_into().ok()?,
                lanes: lanes.as_u64()?.try_into().ok()?,
            }),
            _ => None,
        },
        name => name.as_str()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(text: &str) -> Plain {
        let rules = text.split_whitespace().map(|rule| {
            let (topic, key) = match rule.split_once('=') {
                Some((topic, key)) => (topic, Some(key.to_owned())),
                None => (rule, None),
            };
            ZenohRule {
                topic: topic.to_owned(),
                key,
                direction: Default::default(),
                reliable: false,
            }
        });
        Plain::new(&Config {
            prefix: "robot".to_owned(),
            zenoh: rules.collect(),
            ..Config::default()
        })
    }

    #[test]
    fn topics_and_keys_are_mapped_both_ways() {
        let plain = dialect("/camera camera/*=x arm* a/**");
        assert_eq!(plain.key(0, "camera"), "robot/camera");
        assert_eq!(plain.key(2, "arm7"), "robot/arm7");
        let keys = ["robot/camera", "x", "robot/arm$*", "robot/a/**"];
        assert_eq!(plain.incoming(), keys);
        let topic = |rule: usize, key| plain.topic(&plain.incoming[rule], key);
        assert_eq!(topic(0, "robot/camera").unwrap(), "camera");
        assert_eq!(topic(3, "robot/a/b").unwrap(), "a/b");
        assert!(topic(3, "other/a/b").unwrap_err().contains("robot/"));
    }

    fn read(attachment: &[u8]) -> Result<(Beside, Header), String> {
        let mark = BTreeMap::from([("key".to_owned(), Value::from("k"))]);
        let beside = beside(attachment, mark)?;
        let header = Header::decode(beside.metadata.attachment()).unwrap_or_default();
        Ok((beside, header))
    }

    fn packed(entries: Vec<(rmpv::Value, rmpv::Value)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &rmpv::Value::Map(entries)).unwrap();
        bytes
    }

    #[test]
    fn an_attachment_of_others_is_kept_as_it_is() {
        for attachment in [
            &b"\xff\xff"[..],
            b"text",
            b"\x81\x01\x02",
            b"\x81\xa5rgaps\x01",
        ] {
            let (beside, header) = read(attachment).unwrap();
            assert!(beside.metadata.is_header());
            let Value::Map(mark) = &header.values[ZENOH] else {
                panic!("{header:?}");
            };
            assert_eq!(mark["attachment"], Value::from(attachment));
        }
        let (_, header) = read(b"").unwrap();
        let mark = BTreeMap::from([("key".to_owned(), Value::from("k"))]);
        assert_eq!(header.values[ZENOH], mark.into());
    }

    #[test]
    fn a_program_without_rgaps_can_describe_an_array() {
        let fields = rmpv::Value::Map(vec![
            pair("dtype", "float32"),
            pair("shape", vec![rmpv::Value::from(2), 3.into()]),
            pair("tag", 9),
        ]);
        let (beside, header) = read(&packed(vec![pair("gain", 2), pair(RGAPS, fields)])).unwrap();
        let wanted = rgaps_client::tensor::contiguous(DType::F32, &[2, 3])
            .unwrap()
            .0;
        assert_eq!((beside.tensor, beside.tag), (Some(wanted), 9));
        assert_eq!(header.values["gain"], Value::Int(2));
    }

    #[test]
    fn a_wrong_description_is_an_error() {
        let shape = || pair("shape", vec![rmpv::Value::from(2)]);
        for (entries, named) in [
            (vec![pair("tag", "x")], "rgaps.tag"),
            (vec![pair("shape", 1)], "rgaps.shape"),
            (vec![shape()], "rgaps.dtype"),
            (vec![shape(), pair("dtype", "float31")], "rgaps.dtype"),
            (
                vec![
                    shape(),
                    pair("dtype", "uint8"),
                    pair("strides", Vec::<rmpv::Value>::new()),
                ],
                "strides",
            ),
            (vec![pair("parts", vec![rmpv::Value::Nil])], "no shape"),
            (
                vec![pair("attachment", rmpv::Value::Binary(vec![0; 5000]))],
                "over the limit",
            ),
        ] {
            let error = read(&packed(vec![pair(RGAPS, rmpv::Value::Map(entries))])).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
