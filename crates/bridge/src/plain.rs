//! Plain Zenoh: keys are names of topics, an encoding is the type that a publisher declares, and the attachment has what lies
//! beside a message.
//!
//! The attachment is the message's header with one more key, so a program that knows nothing of rgaps reads and writes it with
//! any library for MessagePack:
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
//! A message that comes in has the key `zenoh` in its header: its `key`, its `encoding`, its `timestamp_ns`, and its
//! `attachment` if that is no such map.

use crate::dialect::{Dialect, Inbound, Outbound};
use bytes::Bytes;
use rgaps_client::bindings::{Beside, WithMetadata as _};
use rgaps_client::{DType, Header, Sample, Tensor, Value};
use rgaps_session::{bare_topic_name, check_topic_name, Bridge as Config, ZenohRule};
use std::collections::BTreeMap;
use zenoh::bytes::{Encoding, ZBytes};

/// The key of an attachment with what only rgaps knows.
const RGAPS: &str = "rgaps";
/// The key of a header with what only Zenoh knows.
const ZENOH: &str = "zenoh";
/// The encoding of a message that says nothing about itself.
const NO_ENCODING: &str = "zenoh/bytes";

/// Plain Zenoh.
pub(crate) struct Plain {
    /// With a slash at its end, or empty.
    prefix: String,
    outgoing: Vec<ZenohRule>,
    incoming: Vec<ZenohRule>,
}

impl Plain {
    /// The rules of a configuration.
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

    /// The topic of a key that came in by a rule.
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

/// A pattern of topics as a key expression.
fn key_expression(pattern: &str) -> String {
    let part = |part: &str| match part {
        "*" | "**" => part.to_owned(),
        // Within a part.
        _ => part.replace('*', "$*"),
    };
    pattern.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The bytes of a message, without a copy: the sample is held until Zenoh has read them.
pub(crate) fn held(sample: Sample) -> Result<ZBytes, String> {
    struct Held(Sample);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice().unwrap_or_default()
        }
    }

    // Later it does not fail.
    sample.as_slice().map_err(|error| error.to_string())?;
    Ok(ZBytes::from(Bytes::from_owner(Held(sample))))
}

/// What travels beside a message.
fn attachment(sample: &Sample) -> Result<Vec<u8>, String> {
    let mut ours = vec![pair("sequence", sample.sequence())];
    if sample.tag() != 0 {
        ours.push(pair("tag", sample.tag()));
    }
    if let Some(tensor) = sample.tensor() {
        ours.extend(describe(tensor));
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
        ours.push(pair("parts", parts));
    }
    let mut entries = Vec::new();
    if let Some(bytes) = sample.attachment() {
        let is_header = sample.metadata().is_some_and(|beside| beside.is_header());
        match read_map(bytes).filter(|_| is_header) {
            Some(header) => entries = header,
            None => ours.push(pair("attachment", rmpv::Value::Binary(bytes.to_vec()))),
        }
    }
    entries.retain(|(key, _)| key.as_str() != Some(RGAPS));
    entries.push(pair(RGAPS, rmpv::Value::Map(ours)));
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::Value::Map(entries))
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn pair(key: &str, value: impl Into<rmpv::Value>) -> (rmpv::Value, rmpv::Value) {
    (key.into(), value.into())
}

/// Element type, shape and, if there are gaps, strides.
fn describe(tensor: &Tensor) -> Vec<(rmpv::Value, rmpv::Value)> {
    let dims = usize::from(tensor.ndim);
    let (shape, strides) = (&tensor.shape[..dims], &tensor.strides[..dims]);
    let list = |values: Vec<rmpv::Value>| rmpv::Value::Array(values);
    let mut said = vec![pair(
        "shape",
        list(shape.iter().map(|length| (*length).into()).collect()),
    )];
    match tensor.dtype.name() {
        Some(name) => said.push(pair("dtype", name)),
        None => {
            let DType { code, bits, lanes } = tensor.dtype;
            let dlpack = [u16::from(code), u16::from(bits), lanes];
            said.push(pair("dtype", list(dlpack.map(Into::into).to_vec())));
        }
    }
    let dense = rgaps_client::tensor::contiguous(tensor.dtype, shape);
    if dense.is_ok_and(|(dense, _)| dense != *tensor) {
        let strides = strides.iter().map(|stride| (*stride).into()).collect();
        said.push(pair("strides", list(strides)));
    }
    said
}

/// A map of MessagePack, if the bytes are that and nothing else.
fn read_map(mut bytes: &[u8]) -> Option<Vec<(rmpv::Value, rmpv::Value)>> {
    // As deep as a header may be, by the library's count.
    let depth = 2 * rgaps_client::HEADER_DEPTH_MAX + 3;
    match rmpv::decode::read_value_with_max_depth(&mut bytes, depth) {
        Ok(rmpv::Value::Map(entries)) if bytes.is_empty() => Some(entries),
        _ => None,
    }
}

/// What lies beside a message whose attachment is this.
fn beside(attachment: &[u8], mut mark: BTreeMap<String, Value>) -> Result<Beside, String> {
    let mut beside = Beside::default();
    let split = split(attachment);
    if split.is_none() && !attachment.is_empty() {
        mark.insert("attachment".to_owned(), attachment.into());
    }
    let (mut header, ours) = split.unwrap_or_default();
    let ours = Fields(&ours);
    match ours.get("attachment").and_then(rmpv::Value::as_slice) {
        Some(bytes) => beside.attach(bytes, false)?,
        None => {
            header.values.insert(ZENOH.to_owned(), mark.into());
            beside.set_header(&header)?;
        }
    }
    beside.tag = ours.number("tag")?.unwrap_or_default();
    beside.tensor = ours.tensor()?.map(|(tensor, _)| tensor);
    for part in ours.list("parts")?.unwrap_or_default() {
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

/// The header, and what rgaps adds to it. None: the attachment is not of this form.
#[allow(clippy::type_complexity)]
fn split(attachment: &[u8]) -> Option<(Header, Vec<(rmpv::Value, rmpv::Value)>)> {
    let (ours, header): (Vec<_>, Vec<_>) = read_map(attachment)?
        .into_iter()
        .partition(|(key, _)| key.as_str() == Some(RGAPS));
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::Value::Map(header)).ok()?;
    let header = Header::decode(&bytes).ok()?;
    let ours = match ours.into_iter().next() {
        None => Vec::new(),
        Some((_, rmpv::Value::Map(ours))) => ours,
        Some(_) => return None,
    };
    Some((header, ours))
}

/// The entries of a map that rgaps understands.
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

    /// An array, and how many bytes it has without gaps.
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

/// By its name, or as DLPack numbers it.
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
        let ours = rmpv::Value::Map(vec![
            pair("dtype", "float32"),
            pair("shape", vec![rmpv::Value::from(2), 3.into()]),
            pair("tag", 9),
        ]);
        let (beside, header) = read(&packed(vec![pair("gain", 2), pair(RGAPS, ours)])).unwrap();
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
