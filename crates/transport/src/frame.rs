//! Frames: what travels over a lane. Little-endian, a header of 8 bytes and a body, whose length its kind bounds: it
//! is fixed but for what ends with a description. Bytes of messages follow *eager* and *chunk* frames.
//!
//! ```text
//! 0      1        2         4            8
//! | kind | version | 0 | body bytes | body ...
//! ```
//! The decoder copies fixed numbers and checks each, takes memory for a description only, and cannot panic. Whether what a
//! frame says is true (a cursor, a grant, a place) only the link knows, and checks.

use crate::wire::{Fields, Sink};
use std::ops::RangeInclusive;
use std::sync::Arc;
use thiserror::Error;

/// The version of all frames; peers name theirs in every header.
pub const WIRE_VERSION: u8 = 4;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 8;
/// The longest frame, header included, without the message's bytes.
pub const FRAME_BYTES_MAX: usize = 128 + META_BYTES_MAX;
/// The longest description of a message (its element type, shape, times, attachment, parts).
pub const META_BYTES_MAX: usize = 12 << 10;
/// Lanes of a link.
pub const LANES_MAX: usize = 8;
/// Bytes of a message in one chunk.
pub const CHUNK_BYTES_MAX: u32 = 1 << 26;
/// Bytes of a message, and of a region.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 46;

/// A publisher's messages on a topic: what has an order, and in which sequences count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The topic's id.
    pub topic: u64,
    /// The publisher's incarnation, which no other publisher has had.
    pub incarnation: u64,
}

/// A message's description. Clones share its bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Meta(Option<Arc<[u8]>>);

impl Meta {
    /// A description; `None` if it is longer than [`META_BYTES_MAX`].
    pub fn new(from: &[u8]) -> Option<Self> {
        let is_short = from.len() <= META_BYTES_MAX;
        is_short.then(|| Self((!from.is_empty()).then(|| from.into())))
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meta({:02x?})", self.as_slice())
    }
}

/// The lanes through which a landing place may be written: by their numbers, which no other lane of the
/// link gets again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    numbers: [u32; LANES_MAX],
    count: u8,
}

impl Lanes {
    /// These lanes; `None` if they are none or more than [`LANES_MAX`], or not ascending.
    pub fn new(from: &[u32]) -> Option<Self> {
        let ascending = from.windows(2).all(|pair| pair[0] < pair[1]);
        let mut numbers = [0; LANES_MAX];
        numbers.get_mut(..from.len())?.copy_from_slice(from);
        let count = u8::try_from(from.len()).ok()?;
        (ascending && count > 0).then_some(Self { numbers, count })
    }

    /// Their numbers, ascending.
    pub fn as_slice(&self) -> &[u32] {
        &self.numbers[..usize::from(self.count)]
    }
}

/// NICs of a host through which a landing place may be written.
pub const RAILS_MAX: usize = 4;

/// Where a landing place lies for a peer that writes there itself, through lanes that can (RDMA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    address: u64,
    rkeys: [u32; RAILS_MAX],
    count: u8,
}

impl Remote {
    /// At this address, with the key of each of the host's rails. `None` if there is none or more than
    /// [`RAILS_MAX`], or the address leaves no room for a message.
    pub fn new(address: u64, rkeys: &[u32]) -> Option<Self> {
        let room = address.checked_add(MESSAGE_BYTES_MAX).is_some();
        let mut all = [0; RAILS_MAX];
        all.get_mut(..rkeys.len())?.copy_from_slice(rkeys);
        let count = u8::try_from(rkeys.len()).ok()?;
        (room && count > 0).then_some(Self {
            address,
            rkeys: all,
            count,
        })
    }

    /// The address of a byte of the message, and the key of one of the host's rails; `None` if it has no such rail.
    pub fn at(&self, offset: u64, rail: u8) -> Option<(u64, u32)> {
        let rkey = self.rkeys[..usize::from(self.count)].get(usize::from(rail))?;
        Some((self.address.checked_add(offset)?, *rkey))
    }
}

/// Whether a lane is to be an RDMA lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Wish {
    /// This end cannot, or is not to.
    #[default]
    No = 0,
    /// If it can be; else it is a TCP lane.
    Prefer = 1,
    /// Or there is to be no lane.
    Require = 2,
}

impl Wish {
    pub(crate) fn from_wire(code: u8) -> Option<Self> {
        let all = [Self::No, Self::Prefer, Self::Require];
        all.into_iter().find(|wish| *wish as u8 == code)
    }
}

/// Bytes of a link's key.
pub const KEY_BYTES: usize = 32;

/// What only the two ends of a link know, for one pair of incarnations; whoever opens a lane shows it.
/// The control plane brings it to both.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneKey(pub [u8; KEY_BYTES]);

impl std::fmt::Debug for LaneKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LaneKey(..)")
    }
}

/// Why a side resets its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResetReason {
    /// The other broke the protocol; it is cut off.
    Protocol = 1,
    /// The versions do not fit.
    Version = 2,
    /// It speaks for a realm that is not this one.
    Realm = 3,
    /// It has no lanes left for this link.
    Lanes = 4,
    /// It is another incarnation than the other expects.
    Incarnation = 5,
    /// It knows no link with this key.
    Key = 6,
    /// One of the two wants RDMA and nothing else, and the other has none.
    Rdma = 7,
}

impl ResetReason {
    pub(crate) fn from_wire(code: u8) -> Option<Self> {
        let all = [
            Self::Protocol,
            Self::Version,
            Self::Realm,
            Self::Lanes,
            Self::Incarnation,
            Self::Key,
            Self::Rdma,
        ];
        all.into_iter().find(|reason| *reason as u8 == code)
    }
}

/// A frame without the message's bytes that may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first on a lane, in both directions.
    Hello {
        /// The incarnation of the daemon that speaks.
        node: u64,
        /// The realm, as a number that both derive from its name.
        realm: u64,
        /// The lane's number, which the end that accepts gives; 0 from the end that dials.
        lane: u32,
        /// The eager ring that the other may write through this lane.
        ring_bytes: u64,
        /// Whether it is to be an RDMA lane. If both ends wish so, they agree on it next.
        rdma: Wish,
        /// The incarnation that it expects at the other end.
        to: u64,
        /// The link's key.
        key: LaneKey,
    },
    /// A publisher's messages come, from this one on.
    Open {
        /// Whose.
        flow: Flow,
        /// The first.
        first: u64,
    },
    /// A small message; its bytes follow and go into the lane's ring, the description first.
    Eager {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
        /// The sum of the flow's charges after it.
        charge_end: u64,
        /// Where in the ring.
        cursor: u64,
        /// Bytes, those of the description included.
        bytes: u32,
        /// Bytes of the description.
        meta_bytes: u16,
    },
    /// A large message wants a landing place.
    Request {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
        /// The sum of the flow's charges when it was its turn (large messages are not charged).
        charge_end: u64,
        /// Its bytes, without the description.
        bytes: u64,
        /// The description.
        meta: Meta,
    },
    /// It has one.
    Grant {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
        /// The grant's number, never given again in this link.
        grant: u64,
        /// Where in the region.
        offset: u64,
        /// The lanes that may write there.
        lanes: Lanes,
        /// Where that is for lanes that write by themselves; none if they cannot.
        remote: Option<Remote>,
    },
    /// A part of it; its bytes follow.
    Chunk {
        /// The grant.
        grant: u64,
        /// Where in the message.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Everything up to and with `through` has landed and is committed.
    Ack {
        /// Whose.
        flow: Flow,
        /// The first sequence that is not.
        next: u64,
        /// What the flow may charge up to.
        limit: u64,
    },
    /// The lane's ring was read up to here.
    Head {
        /// The head.
        head: u64,
    },
    /// The lane's ring has no room for what waits.
    Stall {
        /// The tail.
        tail: u64,
    },
    /// Nothing follows for a grant on this lane.
    Abandon {
        /// The grant.
        grant: u64,
    },
    /// What of these messages has not arrived never comes.
    Gap {
        /// Whose.
        flow: Flow,
        /// The first of them.
        first: u64,
        /// The first sequence behind them.
        next: u64,
        /// The sum of the charges before that.
        charge_end: u64,
    },
    /// The publisher is gone: nothing comes from `next` on.
    Close {
        /// Whose.
        flow: Flow,
        /// The first sequence that there is not.
        next: u64,
    },
    /// Still there.
    Alive {
        /// Counts up.
        beat: u64,
    },
    /// The link ends, in anger.
    Reset {
        /// Why.
        reason: ResetReason,
        /// What the speaker has instead: its realm, its incarnation.
        ours: u64,
    },
    /// The link ends, in peace.
    Goodbye,
    /// While an RDMA lane is agreed on: the end of the channel that speaks has.
    Channel {
        /// Which of its rails that is.
        rail: u8,
        /// What the peer needs to connect its own to it; the verbs know what that means.
        address: Meta,
    },
    /// The same: this end has done that.
    Ready {
        /// What: the first is that it has connected its end, the second that it has heard a word through it.
        step: u8,
    },
    /// The same: it cannot be.
    NoChannel {
        /// Why, in words.
        why: Meta,
    },
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Another version.
    #[error("the peer uses version {0} of the frame format, and this host version {WIRE_VERSION}; run the same version of rgaps on both hosts")]
    Version(u8),
    /// A kind that there is not.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// A body that is shorter or longer than its kind's.
    #[error("a frame of kind {kind} has a body of the wrong length, {bytes} bytes")]
    Length {
        /// Its kind.
        kind: u8,
        /// What the header says.
        bytes: u32,
    },
    /// A number that it cannot have.
    #[error("a frame of kind {kind} has an invalid {field}")]
    Field {
        /// Its kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
}

/// What came of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A frame, and how many bytes it took.
    Frame(Frame, usize),
    /// The first so many bytes are needed, at most [`FRAME_BYTES_MAX`].
    Short(usize),
}

const HELLO: u8 = 1;
const OPEN: u8 = 2;
const EAGER: u8 = 3;
const REQUEST: u8 = 4;
const GRANT: u8 = 5;
const CHUNK: u8 = 6;
const ACK: u8 = 7;
const HEAD: u8 = 8;
const STALL: u8 = 9;
const ABANDON: u8 = 10;
const GAP: u8 = 11;
const CLOSE: u8 = 12;
const ALIVE: u8 = 13;
const RESET: u8 = 14;
const GOODBYE: u8 = 15;
const CHANNEL: u8 = 16;
const READY: u8 = 17;
const NO_CHANNEL: u8 = 18;

/// Whether there is one, an address and keys.
const REMOTE_WIRE_BYTES: usize = 9 + 4 * RAILS_MAX;

/// The lengths that a kind's body may have.
fn body_bytes(kind: u8) -> Option<RangeInclusive<usize>> {
    // Before a description, which has a length and so many bytes.
    let described = |before: usize| Some(before + 2..=before + 2 + META_BYTES_MAX);
    let fixed = match kind {
        HELLO => 37 + KEY_BYTES,
        OPEN | CLOSE => 24,
        EAGER => 46,
        REQUEST => return described(40),
        GRANT => 41 + 4 * LANES_MAX + REMOTE_WIRE_BYTES,
        CHUNK => 20,
        ACK => 32,
        GAP => 40,
        HEAD | STALL | ABANDON | ALIVE => 8,
        RESET => 9,
        GOODBYE => 0,
        CHANNEL => return described(1),
        READY => 1,
        NO_CHANNEL => return described(0),
        _ => return None,
    };
    Some(fixed..=fixed)
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => HELLO,
            Self::Open { .. } => OPEN,
            Self::Eager { .. } => EAGER,
            Self::Request { .. } => REQUEST,
            Self::Grant { .. } => GRANT,
            Self::Chunk { .. } => CHUNK,
            Self::Ack { .. } => ACK,
            Self::Head { .. } => HEAD,
            Self::Stall { .. } => STALL,
            Self::Abandon { .. } => ABANDON,
            Self::Gap { .. } => GAP,
            Self::Close { .. } => CLOSE,
            Self::Alive { .. } => ALIVE,
            Self::Reset { .. } => RESET,
            Self::Goodbye => GOODBYE,
            Self::Channel { .. } => CHANNEL,
            Self::Ready { .. } => READY,
            Self::NoChannel { .. } => NO_CHANNEL,
        }
    }

    /// Bytes of the message that follow the frame.
    pub fn payload_bytes(&self) -> u64 {
        match self {
            Self::Eager { bytes, .. } | Self::Chunk { bytes, .. } => u64::from(*bytes),
            _ => 0,
        }
    }

    /// Whether its fields have what they may have, whatever the state of the link.
    pub(crate) fn is_sound(&self) -> bool {
        check(self).is_ok()
    }

    /// Appends the frame; the bytes that it took.
    pub fn encode(&self, into: &mut Vec<u8>) -> usize {
        let (kind, start) = (self.kind(), into.len());
        let mut sink = Sink::new(into);
        // The length of the body is known behind it.
        sink.u8(kind).u8(WIRE_VERSION).u16(0).u32(0);
        match *self {
            Self::Hello {
                node,
                realm,
                lane,
                ring_bytes,
                rdma,
                to,
                key,
            } => {
                sink.u64(node)
                    .u64(realm)
                    .u32(lane)
                    .u64(ring_bytes)
                    .u8(rdma as u8)
                    .u64(to)
                    .bytes(&key.0);
            }
            Self::Open { flow, first: next } | Self::Close { flow, next } => {
                sink.flow(flow).u64(next);
            }
            Self::Eager {
                flow,
                sequence,
                charge_end,
                cursor,
                bytes,
                meta_bytes,
            } => {
                sink.flow(flow).u64(sequence).u64(charge_end).u64(cursor);
                sink.u32(bytes).u16(meta_bytes);
            }
            Self::Request {
                flow,
                sequence,
                charge_end,
                bytes,
                ref meta,
            } => {
                sink.flow(flow).u64(sequence).u64(charge_end).u64(bytes);
                sink.meta(meta);
            }
            Self::Grant {
                flow,
                sequence,
                grant,
                offset,
                lanes,
                remote,
            } => {
                sink.flow(flow)
                    .u64(sequence)
                    .u64(grant)
                    .u64(offset)
                    .u8(lanes.count);
                for number in lanes.numbers {
                    sink.u32(number);
                }
                let (address, rkeys, count) = match remote {
                    Some(remote) => (remote.address, remote.rkeys, remote.count),
                    None => (0, [0; RAILS_MAX], 0),
                };
                sink.u64(address).u8(count);
                for rkey in rkeys {
                    sink.u32(rkey);
                }
            }
            Self::Chunk {
                grant,
                offset,
                bytes,
            } => {
                sink.u64(grant).u64(offset).u32(bytes);
            }
            Self::Ack { flow, next, limit } => {
                sink.flow(flow).u64(next).u64(limit);
            }
            Self::Gap {
                flow,
                first,
                next,
                charge_end,
            } => {
                sink.flow(flow).u64(first).u64(next).u64(charge_end);
            }
            Self::Head { head: number }
            | Self::Stall { tail: number }
            | Self::Abandon { grant: number }
            | Self::Alive { beat: number } => {
                sink.u64(number);
            }
            Self::Reset { reason, ours } => {
                sink.u8(reason as u8).u64(ours);
            }
            Self::Goodbye => {}
            Self::Channel { rail, ref address } => {
                sink.u8(rail).meta(address);
            }
            Self::Ready { step } => {
                sink.u8(step);
            }
            Self::NoChannel { ref why } => {
                sink.meta(why);
            }
        }
        let body = into.len() - start - HEADER_BYTES;
        let may_be = body_bytes(kind).expect("every frame has a kind");
        assert!(may_be.contains(&body), "a kind's body has its length");
        let length = u32::try_from(body).expect("bodies are short");
        into[start + 4..start + HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        HEADER_BYTES + body
    }

    /// Reads a frame from the beginning of what a peer sent.
    pub fn decode(from: &[u8]) -> Result<Decoded, DecodeError> {
        let mut header = Fields::new(from);
        let (Some(kind), Some(version)) = (header.u8(), header.u8()) else {
            return Ok(Decoded::Short(HEADER_BYTES));
        };
        if version != WIRE_VERSION {
            return Err(DecodeError::Version(version));
        }
        let may_be = body_bytes(kind).ok_or(DecodeError::Kind(kind))?;
        let (Some(zero), Some(bytes)) = (header.u16(), header.u32()) else {
            return Ok(Decoded::Short(HEADER_BYTES));
        };
        if zero != 0 {
            return Err(DecodeError::Field {
                kind,
                field: "reserved",
            });
        }
        let wrong = DecodeError::Length { kind, bytes };
        let length = usize::try_from(bytes).ok();
        let length = length.filter(|length| may_be.contains(length));
        let whole = HEADER_BYTES + length.ok_or(wrong)?;
        let Some(body) = from.get(HEADER_BYTES..whole) else {
            return Ok(Decoded::Short(whole));
        };
        let mut fields = Fields::new(body);
        let frame = decode_body(kind, &mut fields)
            .ok_or(wrong)?
            .map_err(|field| DecodeError::Field { kind, field })?;
        match fields.is_empty() {
            true => Ok(Decoded::Frame(frame, whole)),
            false => Err(wrong),
        }
    }
}

/// The body of a kind: `None` if it is too short, else the frame or the field that is wrong.
fn decode_body(kind: u8, from: &mut Fields<'_>) -> Option<Result<Frame, &'static str>> {
    let frame = match kind {
        HELLO => {
            let (node, realm, lane) = (from.u64()?, from.u64()?, from.u32()?);
            let ring_bytes = from.u64()?;
            let Some(rdma) = Wish::from_wire(from.u8()?) else {
                return Some(Err("rdma"));
            };
            Frame::Hello {
                node,
                realm,
                lane,
                ring_bytes,
                rdma,
                to: from.u64()?,
                key: LaneKey(from.bytes(KEY_BYTES)?.try_into().ok()?),
            }
        }
        OPEN => Frame::Open {
            flow: from.flow()?,
            first: from.u64()?,
        },
        EAGER => Frame::Eager {
            flow: from.flow()?,
            sequence: from.u64()?,
            charge_end: from.u64()?,
            cursor: from.u64()?,
            bytes: from.u32()?,
            meta_bytes: from.u16()?,
        },
        REQUEST => {
            let (flow, sequence) = (from.flow()?, from.u64()?);
            let (charge_end, bytes) = (from.u64()?, from.u64()?);
            let meta = match decode_meta(from)? {
                Ok(meta) => meta,
                Err(field) => return Some(Err(field)),
            };
            Frame::Request {
                flow,
                sequence,
                charge_end,
                bytes,
                meta,
            }
        }
        GRANT => {
            let (flow, sequence) = (from.flow()?, from.u64()?);
            let (grant, offset, count) = (from.u64()?, from.u64()?, from.u8()?);
            let mut numbers = [0; LANES_MAX];
            for number in &mut numbers {
                *number = from.u32()?;
            }
            let listed = numbers.get(..usize::from(count)).and_then(Lanes::new);
            let Some(lanes) = listed.filter(|lanes| lanes.numbers == numbers) else {
                return Some(Err("lanes"));
            };
            let remote = match decode_remote(from)? {
                Ok(remote) => remote,
                Err(field) => return Some(Err(field)),
            };
            Frame::Grant {
                flow,
                sequence,
                grant,
                offset,
                lanes,
                remote,
            }
        }
        CHUNK => Frame::Chunk {
            grant: from.u64()?,
            offset: from.u64()?,
            bytes: from.u32()?,
        },
        ACK => Frame::Ack {
            flow: from.flow()?,
            next: from.u64()?,
            limit: from.u64()?,
        },
        HEAD => Frame::Head { head: from.u64()? },
        STALL => Frame::Stall { tail: from.u64()? },
        ABANDON => Frame::Abandon { grant: from.u64()? },
        GAP => Frame::Gap {
            flow: from.flow()?,
            first: from.u64()?,
            next: from.u64()?,
            charge_end: from.u64()?,
        },
        CLOSE => Frame::Close {
            flow: from.flow()?,
            next: from.u64()?,
        },
        ALIVE => Frame::Alive { beat: from.u64()? },
        RESET => match ResetReason::from_wire(from.u8()?) {
            Some(reason) => Frame::Reset {
                reason,
                ours: from.u64()?,
            },
            None => return Some(Err("reason")),
        },
        GOODBYE => Frame::Goodbye,
        CHANNEL => {
            let rail = from.u8()?;
            match decode_meta(from)? {
                Ok(address) => Frame::Channel { rail, address },
                Err(field) => return Some(Err(field)),
            }
        }
        READY => Frame::Ready { step: from.u8()? },
        NO_CHANNEL => match decode_meta(from)? {
            Ok(why) => Frame::NoChannel { why },
            Err(field) => return Some(Err(field)),
        },
        _ => return None,
    };
    Some(check(&frame).map(|()| frame))
}

/// A length, and so many bytes.
fn decode_meta(from: &mut Fields<'_>) -> Option<Result<Meta, &'static str>> {
    let length = usize::from(from.u16()?);
    Some(Meta::new(from.bytes(length)?).ok_or("meta_bytes"))
}

/// An address and its keys, of which those behind their count are zero; without keys there is no address.
fn decode_remote(from: &mut Fields<'_>) -> Option<Result<Option<Remote>, &'static str>> {
    let (address, count) = (from.u64()?, from.u8()?);
    let mut rkeys = [0; RAILS_MAX];
    for rkey in &mut rkeys {
        *rkey = from.u32()?;
    }
    if (address, count, rkeys) == (0, 0, [0; RAILS_MAX]) {
        return Some(Ok(None));
    }
    let listed = rkeys.get(..usize::from(count));
    let remote = listed.and_then(|listed| Remote::new(address, listed));
    let whole = remote.filter(|remote| remote.rkeys == rkeys);
    Some(whole.map(Some).ok_or("remote"))
}

/// Bounds that hold whatever the state of the link.
fn check(frame: &Frame) -> Result<(), &'static str> {
    let verdicts: &[(bool, &'static str)] = match *frame {
        Frame::Hello { ring_bytes, .. } => {
            &[(crate::cursors::Ring::new(ring_bytes).is_ok(), "ring_bytes")]
        }
        Frame::Eager {
            sequence,
            charge_end,
            bytes,
            meta_bytes,
            ..
        } => &[
            (sequence < u64::MAX, "sequence"),
            (bytes > 0 && u64::from(bytes) <= charge_end, "bytes"),
            (usize::from(meta_bytes) <= META_BYTES_MAX, "meta_bytes"),
            (u32::from(meta_bytes) <= bytes, "meta_bytes"),
        ],
        Frame::Request {
            sequence, bytes, ..
        } => &[
            (sequence < u64::MAX, "sequence"),
            (bytes > 0 && bytes <= MESSAGE_BYTES_MAX, "bytes"),
        ],
        Frame::Grant {
            sequence, offset, ..
        } => &[
            (sequence < u64::MAX, "sequence"),
            (offset < MESSAGE_BYTES_MAX, "offset"),
        ],
        Frame::Chunk { offset, bytes, .. } => &[
            (bytes > 0 && bytes <= CHUNK_BYTES_MAX, "bytes"),
            (offset < MESSAGE_BYTES_MAX, "offset"),
        ],
        Frame::Gap { first, next, .. } => &[(first < next, "next")],
        _ => &[],
    };
    verdicts
        .iter()
        .find(|(holds, _)| !holds)
        .map_or(Ok(()), |(_, field)| Err(field))
}
