//! Encoding of everything that two hosts send over a link beside the bytes of messages: a description of each publisher in OPEN, one of
//! each message, and control messages. Decoding bounds and checks everything that a peer sends.

use crate::keys::{is_host, HostLife};
pub use crate::tree::{Takes, Tree};
use anyhow::{bail, ensure, Context};
use rgaps_client::links::{Metadata, MetadataLengths, Offer, MAX_METADATA_BYTES, MAX_REMOTE_HOSTS};
use rgaps_client::{DType, Tensor};
use rgaps_routing::{Datagram, HostId, MAX_HOPS, MAX_PATHS};
use rgaps_session::check_topic_name;
use rgaps_sync::wall_offset_ns;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const DIMS: usize = 8;
/// Flag of an encoded `MessageDescription`: a shape and an element type follow.
const TYPED: u8 = 1;
/// Flag of an encoded `MessageDescription`: an attachment or parts follow.
const METADATA: u8 = 2;
/// Most bytes of an encoded `MessageDescription`.
const META_BYTES_MAX: usize = 160 + 8 + MAX_METADATA_BYTES;
/// Most bytes of an encoded [`LinkMessage`].
pub const MAX_LINK_MESSAGE_BYTES: usize = 128 << 10;
/// Most bytes of a type name, and of a reason.
const MAX_TEXT: usize = 300;

/// Everything that travels with a message beside its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageDescription {
    /// Size of the message in bytes. An empty message travels as one byte.
    pub bytes: u64,
    /// The number that the publisher's user gave the message.
    pub tag: u64,
    /// When it was published, in nanoseconds of the origin's wall clock, which may differ from this host's.
    pub published_ns: u64,
    /// Shape and element type. None: the message is no tensor.
    pub tensor: Option<Tensor>,
    /// Attachment and parts.
    pub metadata: Metadata,
}

impl MessageDescription {
    /// Encodes it, in at most 160 bytes plus those of attachment and parts.
    pub fn encode(&self) -> Vec<u8> {
        let metadata = self.metadata.as_bytes();
        let mut to = Vec::with_capacity(160 + 8 + metadata.len());
        for number in [self.bytes, self.tag, self.published_ns] {
            to.extend(number.to_le_bytes());
        }
        let typed = if self.tensor.is_some() { TYPED } else { 0 };
        let beside = if metadata.is_empty() { 0 } else { METADATA };
        to.push(typed | beside);
        if let Some(tensor) = &self.tensor {
            let dims = usize::from(tensor.ndim).min(DIMS);
            to.extend([tensor.dtype.code, tensor.dtype.bits]);
            to.extend(tensor.dtype.lanes.to_le_bytes());
            to.push(dims as u8);
            for (shape, stride) in tensor.shape.iter().zip(tensor.strides).take(dims) {
                to.extend(shape.to_le_bytes());
                to.extend(stride.to_le_bytes());
            }
        }
        if !metadata.is_empty() {
            to.extend(self.metadata.lengths().to_word().to_le_bytes());
            to.extend(metadata);
        }
        debug_assert!(to.len() <= META_BYTES_MAX);
        to
    }

    /// Decodes what a peer sent. None: it is no description.
    pub fn decode(from: &[u8]) -> Option<MessageDescription> {
        let mut rest = from;
        let mut take = |bytes: usize| {
            let (these, after) = rest.split_at_checked(bytes)?;
            rest = after;
            Some(these)
        };
        let mut number = || Some(u64::from_le_bytes(take(8)?.try_into().ok()?));
        let (bytes, tag, published_ns) = (number()?, number()?, number()?);
        let flags = take(1)?[0];
        if flags & !(TYPED | METADATA) != 0 {
            return None;
        }
        let mut tensor = None;
        if flags & TYPED != 0 {
            let tensor = tensor.insert(Tensor::default());
            let [code, bits, low, high, ndim] = take(5)?.try_into().ok()?;
            let lanes = u16::from_le_bytes([low, high]);
            (tensor.dtype, tensor.ndim) = (DType { code, bits, lanes }, ndim);
            for dim in 0..usize::from(ndim) {
                let (shape, stride) = take(16)?.split_at(8);
                *tensor.shape.get_mut(dim)? = u64::from_le_bytes(shape.try_into().ok()?);
                tensor.strides[dim] = i64::from_le_bytes(stride.try_into().ok()?);
            }
        }
        let mut metadata = Metadata::EMPTY;
        if flags & METADATA != 0 {
            let word = u64::from_le_bytes(take(8)?.try_into().ok()?);
            let lengths = MetadataLengths::from_word(word)?;
            let bytes = take(lengths.bytes())?;
            if bytes.is_empty() || !metadata.assign(lengths, bytes) {
                return None;
            }
        }
        rest.is_empty().then_some(MessageDescription {
            bytes,
            tag,
            published_ns,
            tensor,
            metadata,
        })
    }
}

/// A control message from one end of a link to the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LinkMessage {
    /// All paths that the sender advertises, each with all of its hosts.
    Paths(Vec<Vec<HostLife>>),
    /// A packet of the control channel between two hosts, which this link carries a part of the way.
    Datagram(Datagram),
    /// The sender stopped forwarding messages of this stream to the named host and those below it: its link with the named host restarted
    /// or ended.
    Broken(u64, String),
    /// Whether network cards write the messages of this stream into GPU memory at the sender of this report, or why not.
    Written(u64, Result<(), String>),
}

/// The description of a flow, as OPEN carries it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowDescription {
    /// `FlowName::publisher`. OPEN carries it before the description.
    #[serde(skip)]
    pub publisher: u64,
    /// The topic.
    pub topic: String,
    /// The quality of service that the publisher offers.
    pub offer: Offer,
    /// The type of the messages; empty: any.
    pub type_name: String,
    /// The hosts that the messages came through, the origin first, without the sender of OPEN. Empty: the sender is the origin.
    pub via: Vec<String>,
    /// The tree that the messages follow from the receiver of OPEN, which is its root.
    pub tree: Tree,
    /// Messages below this sequence are history: published before the hosts asked for the topic.
    pub history: u64,
    /// For each reliable host of the tree, the sequence from which it is owed messages. A host that has had no message takes none below
    /// that; 0: it begins with whichever message arrives first.
    pub begins: BTreeMap<HostId, u64>,
    /// Whether network cards read the messages in GPU memory at the origin, or why not.
    pub read: Result<(), String>,
}

impl FlowDescription {
    /// The host of the publisher. `from`: the host that sent OPEN.
    pub fn origin<'a>(&'a self, from: &'a str) -> &'a str {
        self.via.first().map_or(from, String::as_str)
    }

    /// A copy for the host's next life, after its last one acknowledged all messages below `next`: no host is owed those again.
    pub fn resumed(&self, next: u64) -> FlowDescription {
        let mut description = self.clone();
        let begins = description.begins.values_mut();
        begins.for_each(|begin| *begin = next.max(*begin));
        description
    }

    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("it has only what can be written")
    }

    /// Decodes and checks a peer's description of this publisher. The error names the protocol violation.
    pub fn decode(publisher: u64, from: &[u8]) -> Result<FlowDescription, &'static str> {
        let decoded = exactly::<FlowDescription>(from);
        let mut description = decoded.ok_or("its description does not decode")?;
        description.publisher = publisher;
        let mut hosts = description.via.iter();
        let is_bounded = description.via.len() < MAX_HOPS
            && description.type_name.len() <= MAX_TEXT
            && description.begins.len() <= MAX_REMOTE_HOSTS
            && fits(&description.read);
        match check_topic_name(&description.topic) {
            Err(_) => Err("its topic has no valid name"),
            _ if !is_bounded => Err("its description has too much to say"),
            _ if !hosts.all(|host| is_host(host)) => Err("it names a host that cannot be"),
            _ if !description.tree.is_valid() => Err("its tree cannot be"),
            _ => Ok(description),
        }
    }
}

impl LinkMessage {
    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("it has only what can be written")
    }

    /// Decodes and checks what a peer sent.
    pub fn decode(from: &[u8]) -> anyhow::Result<LinkMessage> {
        let bytes = from.len();
        ensure!(
            bytes <= MAX_LINK_MESSAGE_BYTES,
            "it says {bytes} bytes at once"
        );
        let said = exactly::<LinkMessage>(from).context("it says what is nothing, or more")?;
        match &said {
            LinkMessage::Written(_, outcome) if !fits(outcome) => bail!("it has too much to say"),
            LinkMessage::Broken(_, host) if !is_host(host) => {
                bail!("it names a host that cannot be")
            }
            LinkMessage::Broken(..) | LinkMessage::Written(..) | LinkMessage::Datagram(_) => {}
            LinkMessage::Paths(paths) => {
                let fits = |path: &Vec<HostLife>| {
                    path.len() <= MAX_HOPS && path.iter().all(|node| is_host(&node.host))
                };
                let is_valid = paths.len() <= MAX_PATHS && paths.iter().all(fits);
                ensure!(is_valid, "it leads to hosts that cannot be");
            }
        }
        Ok(said)
    }
}

/// Decodes a value. None: the bytes are invalid, or too many.
pub(crate) fn exactly<'a, T: Deserialize<'a>>(from: &'a [u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(from).ok()?;
    rest.is_empty().then_some(value)
}

fn fits(outcome: &Result<(), String>) -> bool {
    !matches!(outcome, Err(why) if why.len() > MAX_TEXT)
}

/// Cuts a reason to the length that peers accept.
pub fn clip(text: &str) -> String {
    clip_to(text, MAX_TEXT)
}

/// Cuts a text to at most `most` bytes, and replaces control characters by spaces.
pub fn clip_to(text: &str, most: usize) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut clipped = String::new();
    for c in plain {
        if clipped.len() + c.len_utf8() > most {
            break;
        }
        clipped.push(c);
    }
    clipped
}

/// The reverse of [`rgaps_sync::to_wall`], at `now_ns` of the monotonic clock. A time in the future, of a host whose clock is ahead,
/// becomes now. A time before this host's start becomes negative: clamped to 0, old messages would lose their order.
pub fn from_wall(wall_ns: u64, now_ns: u64) -> u64 {
    let then = i128::from(wall_ns) - i128::from(wall_offset_ns(now_ns));
    then.clamp(i64::MIN.into(), now_ns.into()) as i64 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_client::tensor::strided;
    use rgaps_client::{MAX_ATTACHMENT_BYTES, MAX_MESSAGE_PARTS};
    use rgaps_sync::{monotonic_ns, to_wall};

    fn tensor() -> MessageDescription {
        MessageDescription {
            bytes: 48,
            tag: u64::MAX,
            published_ns: 7,
            tensor: Some(strided(DType::F32, &[3, 2, 2], &[4, 2, 1]).unwrap()),
            metadata: Metadata::EMPTY,
        }
    }

    #[test]
    fn descriptions_travel_whole() {
        let plain = MessageDescription {
            tensor: None,
            ..tensor()
        };
        let eight = MessageDescription {
            tensor: Some(strided(DType::U8, &[1; 8], &[-1; 8]).unwrap()),
            ..tensor()
        };
        let attached = |bytes: usize, parts: usize| {
            let lengths = MetadataLengths {
                attachment_bytes: bytes as u32,
                attachment_kind: bytes as u16 % 2,
                parts: parts as u16,
            };
            let mut meta = tensor();
            assert!(meta.metadata.assign(lengths, &vec![9; lengths.bytes()]));
            meta
        };
        let most = attached(MAX_ATTACHMENT_BYTES, MAX_MESSAGE_PARTS);
        for meta in [plain, tensor(), eight, attached(7, 0), attached(0, 2), most] {
            let bytes = meta.encode();
            assert!(bytes.len() <= META_BYTES_MAX);
            assert!(rgaps_transport::Description::new(&bytes).is_some());
            assert_eq!(MessageDescription::decode(&bytes), Some(meta));
            for length in 0..bytes.len() {
                assert_eq!(
                    MessageDescription::decode(&bytes[..length]),
                    None,
                    "{length}"
                );
            }
            assert_eq!(
                MessageDescription::decode(&[&bytes[..], &[0]].concat()),
                None
            );
        }
    }

    #[test]
    fn a_description_whose_metadata_lies_about_its_length_is_none() {
        let mut meta = tensor();
        meta.tensor = None;
        assert!(meta.metadata.set_attachment(b"12345678", false));
        let bytes = meta.encode();
        assert!(MessageDescription::decode(&bytes).is_some());
        for (at, byte) in [(25, 9), (25, 0), (27, 0xff), (29, 2), (31, 1), (31, 33)] {
            let mut lie = bytes.clone();
            lie[at] = byte;
            assert_eq!(MessageDescription::decode(&lie), None, "{at}");
        }
    }

    #[test]
    fn a_description_with_nine_dimensions_is_none() {
        let mut bytes = tensor().encode();
        bytes[24 + 5] = 9;
        bytes.resize(24 + 6 + 9 * 16, 0);
        assert_eq!(MessageDescription::decode(&bytes), None);
    }

    fn names(hosts: &[&str]) -> Vec<String> {
        hosts.iter().map(|host| (*host).to_owned()).collect()
    }

    fn path(hosts: &[&str]) -> Vec<HostLife> {
        let incarnation = u64::MAX;
        let nodes = names(hosts).into_iter();
        nodes.map(|host| HostLife { host, incarnation }).collect()
    }

    #[test]
    fn what_is_said_is_checked() {
        for said in [
            LinkMessage::Paths(vec![path(&["b", "c"]), path(&["b", "c", "d"])]),
            LinkMessage::Broken(3, "c".to_owned()),
            LinkMessage::Written(3, Ok(())),
            LinkMessage::Written(3, Err(clip(&"ä".repeat(500)))),
        ] {
            let bytes = said.encode();
            assert_eq!(LinkMessage::decode(&bytes).unwrap(), said);
            for length in 0..bytes.len() {
                assert!(LinkMessage::decode(&bytes[..length]).is_err(), "{length}");
            }
            LinkMessage::decode(&[&bytes[..], &[0]].concat()).unwrap_err();
        }
        for said in [
            LinkMessage::Written(3, Err("x".repeat(301))),
            LinkMessage::Broken(3, "c/d".to_owned()),
            LinkMessage::Paths(vec![path(&["b", "c d"])]),
            LinkMessage::Paths(vec![path(&["b"; MAX_HOPS + 1])]),
            LinkMessage::Paths(vec![path(&["b", "c"]); MAX_PATHS + 1]),
        ] {
            LinkMessage::decode(&said.encode()).unwrap_err();
        }
    }

    #[test]
    fn times_come_back_and_keep_their_order() {
        let now = monotonic_ns();
        for then in now - 1000..now {
            assert_eq!(from_wall(to_wall(then, wall_offset_ns(now)), now), then);
        }
        assert_eq!(from_wall(u64::MAX, now), now);
        // Times before this host's start keep their order, and convert back to the same times.
        let (first, second) = (from_wall(0, now), from_wall(1_000_000_000, now));
        assert!((first as i64) < (second as i64) && (second as i64) < 0);
        assert_eq!(to_wall(second, wall_offset_ns(now)), 1_000_000_000);
    }
}
