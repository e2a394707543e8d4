//! Frames of wire version 6: what travels over a lane of a [`super::LinkMachine`].
//!
//! A frame is a header of 8 bytes and a body, little-endian, at most [`FRAME_BYTES_MAX`] together. Bytes of messages follow SMALL and
//! CHUNK frames. One table (`frames!`) lists each kind's fields, and a macro derives encoder and decoder from it.
//!
//! ```text
//! 0      1        2         4            8
//! | kind | version | 0 | body bytes | body ...
//! ```
//! The decoder copies each field once and checks the copy, allocates only for descriptions, and cannot panic. The machine checks
//! whether a frame is valid in the link's state (its grants, windows and flows).

use super::field::Field;
pub use super::values::{
    Description, LaneKey, Lanes, RdmaMode, Remote, CHUNK_BYTES_MAX, DESCRIPTION_BYTES_MAX,
    HEADER_BYTES, LANES_MAX, RAILS_MAX,
};
use thiserror::Error;

/// The version of these frames.
pub const WIRE_VERSION: u8 = 6;
/// The longest frame, header included, without the message's bytes.
pub const FRAME_BYTES_MAX: usize = 128 + DESCRIPTION_BYTES_MAX;
/// The most chunks of a message. All chunks but the last have one size.
pub const CHUNKS_MAX: u32 = 1 << 16;
/// The most bytes of a message.
pub const MESSAGE_BYTES_MAX: u64 = CHUNK_BYTES_MAX as u64 * CHUNKS_MAX as u64;
/// [`Ack::next`] of a flow that has ended, and [`Close::next`] of one that its sender cut. No message has this sequence.
pub const FLOW_ENDED: u64 = u64::MAX;
/// The last number that a message may have. The number after it is still a valid position, and is not [`FLOW_ENDED`].
pub const SEQUENCE_MAX: u64 = FLOW_ENDED - 2;
/// The flow of a link's control messages. It is open from the start and never ends.
pub const CONTROL_FLOW: u64 = 0;

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The frame has another version.
    #[error("the peer uses version {0} of the frame format, and this host version {WIRE_VERSION}; run the same version of rgaps on both hosts")]
    Version(u8),
    /// A field has an invalid value; kind and length count as fields, too.
    #[error("a frame of kind {kind} has an invalid {field}")]
    Field {
        /// The frame's kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
}

/// The result of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A frame, and the bytes that it took.
    Frame(Frame, usize),
    /// The bytes are too few: decoding needs so many from the frame's start on, at most [`FRAME_BYTES_MAX`].
    Short(usize),
}

/// Defines [`Frame`], a type for each kind, and their encoder and decoder from one table of kinds and fields.
macro_rules! frames {
    ($($(#[$doc:meta])* $kind:literal $name:ident { $($(#[$field_doc:meta])* $field:ident: $of:ty,)* })*) => {
        /// A frame without the message's bytes that may follow.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Frame {
            $($(#[$doc])* $name($name),)*
        }

        $(
            $(#[$doc])*
            // Some fields need no comment beside their name.
            #[allow(missing_docs)]
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $of,)*
            }

            impl From<$name> for Frame {
                fn from(frame: $name) -> Self {
                    Self::$name(frame)
                }
            }
        )*

        /// `Err`: the field that is wrong.
        fn decode_body(kind: u8, from: &mut &[u8]) -> Result<Frame, &'static str> {
            let frame = match kind {
                $($kind => Frame::$name($name {
                    $($field: Field::take(from).ok_or(stringify!($field))?,)*
                }),)*
                _ => return Err("kind"),
            };
            check(&frame).map(|()| frame)
        }

        impl Frame {
            fn kind(&self) -> u8 {
                match self { $(Self::$name(_) => $kind,)* }
            }

            /// Its name in errors.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }

            fn put_body(&self, into: &mut Vec<u8>) {
                match self {
                    $(Self::$name($name { $($field,)* }) => {
                        $(Field::put($field, into);)*
                        let _ = &into;
                    })*
                }
            }
        }
    };
}

frames! {
    /// The first frame on a lane, in both directions.
    1 Hello {
        /// The incarnation of the daemon that sends it.
        node: u64,
        /// The number of this link's machine, unique within the incarnation. A peer that knew another number restarts its end.
        machine: u64,
        /// The realm, as a number that both ends derive from its name.
        realm: u64,
        /// The lane's number, which the end that accepts assigns; 0 from the end that dials.
        lane: u32,
        /// Bytes of small messages that each flow may send to this end before its first acknowledgement.
        first_window: u32,
        /// Whether the lane is to be an RDMA lane. If neither end says [`RdmaMode::No`], they set up a channel next.
        rdma: RdmaMode,
        /// The incarnation that the sender expects at the other end; 0 for any.
        to: u64,
        /// The link's key.
        key: LaneKey,
    }
    /// A flow begins. On each lane it precedes the flow's other frames, until the receiver has answered.
    2 Open {
        /// The flow's number, from 1 on. The sender gives it to no other flow.
        flow: u64,
        /// The number of its first message.
        first: u64,
        /// What the sending user tells the receiving user of the flow. This crate does not read it.
        description: Description,
    }
    /// A small message; its bytes follow, the description first.
    3 Small {
        flow: u64,
        sequence: u64,
        /// The sum of the flow's charges after it.
        charge_end: u64,
        /// Bytes that follow the frame: the description and the message.
        bytes: u32,
        /// Bytes of the description.
        description_bytes: u16,
    }
    /// A large message requests a receive buffer.
    4 Request {
        flow: u64,
        sequence: u64,
        /// The sum of the flow's charges before it. A large message charges nothing.
        charge_end: u64,
        /// Its bytes, without the description.
        bytes: u64,
        /// Bytes of each chunk except the last.
        chunk_bytes: u32,
        description: Description,
    }
    /// The receiver has a receive buffer for a large message.
    5 Grant {
        flow: u64,
        sequence: u64,
        /// The grant's number, which no other grant of this machine has until it restarts.
        grant: u64,
        /// The first chunk to send: all chunks before it have landed.
        from_chunk: u32,
        /// The lanes that may bring chunks of this grant.
        lanes: Lanes,
        /// Where the sender's card may write the buffer directly (RDMA); `None` if it cannot.
        remote: Option<Remote>,
    }
    /// A chunk of a large message; its bytes follow, unless the sender's card has written them already.
    6 Chunk {
        grant: u64,
        /// Its index in the message.
        chunk: u32,
        bytes: u32,
    }
    /// The flow's delivered position, and its window.
    7 Ack {
        flow: u64,
        /// The first message that is not delivered, or [`FLOW_ENDED`].
        next: u64,
        /// The sum up to which the flow may charge.
        limit: u64,
    }
    /// No chunk of a grant follows on this lane.
    8 Abandon {
        grant: u64,
    }
    /// The messages of a range that have not arrived never will.
    9 Gap {
        flow: u64,
        /// The first number of the range.
        first: u64,
        /// The number after the range.
        next: u64,
        /// The sum of the flow's charges for messages before `next`.
        charge_end: u64,
    }
    /// The flow ends.
    10 Close {
        flow: u64,
        /// The number after its last message; [`FLOW_ENDED`] if the sender cut the flow, as it also does after REFUSE.
        next: u64,
    }
    /// The receiver takes nothing more of a flow. The sender answers with [`Frame::Close`].
    11 Refuse {
        flow: u64,
        why: Description,
    }
    /// The lane works.
    12 Alive {}
    /// The link or the lane ends.
    13 Reset {
        why: Description,
    }
    /// Setting up an RDMA lane: how the peer reaches this end's channel.
    14 RdmaAddress {
        /// The index of this end's rail.
        rail: u8,
        /// The channel's address, as `rgaps_verbs` encodes it.
        address: Description,
    }
    /// Setting up an RDMA lane: this end has done a step.
    15 RdmaReady {
        /// 1: this end has connected its channel; 2: it has received a record through the channel.
        step: u8,
    }
    /// Setting up an RDMA lane failed at this end.
    16 RdmaRefused {
        why: Description,
    }
}

impl Frame {
    /// Bytes of the message that follow the frame.
    pub fn payload_bytes(&self) -> u64 {
        match self {
            Self::Small(Small { bytes, .. }) | Self::Chunk(Chunk { bytes, .. }) => (*bytes).into(),
            _ => 0,
        }
    }

    /// Appends the encoded frame. Returns its length.
    pub fn encode(&self, into: &mut Vec<u8>) -> usize {
        let (kind, start) = (self.kind(), into.len());
        into.extend([kind, WIRE_VERSION, 0, 0, 0, 0, 0, 0]);
        self.put_body(into);
        let body = into.len() - start - HEADER_BYTES;
        let length = u32::try_from(body).expect("bodies are short");
        into[start + 4..start + HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        HEADER_BYTES + body
    }

    /// Decodes a frame at the beginning of a peer's bytes.
    pub fn decode(from: &[u8]) -> Result<Decoded, DecodeError> {
        let [kind, version, header @ ..] = from else {
            return Ok(Decoded::Short(HEADER_BYTES));
        };
        let (kind, mut header) = (*kind, header);
        if *version != WIRE_VERSION {
            return Err(DecodeError::Version(*version));
        }
        let (Some(zero), Some(bytes)) = (u16::take(&mut header), u32::take(&mut header)) else {
            return Ok(Decoded::Short(HEADER_BYTES));
        };
        let invalid = |field| DecodeError::Field { kind, field };
        if zero != 0 {
            return Err(invalid("reserved"));
        }
        let whole = HEADER_BYTES.saturating_add(bytes as usize);
        if whole > FRAME_BYTES_MAX {
            return Err(invalid("length"));
        }
        let Some(mut body) = from.get(HEADER_BYTES..whole) else {
            return Ok(Decoded::Short(whole));
        };
        let frame = decode_body(kind, &mut body).map_err(invalid)?;
        match body.is_empty() {
            true => Ok(Decoded::Frame(frame, whole)),
            false => Err(invalid("length")),
        }
    }
}

/// Checks the bounds that hold in every state of the link, except a CHUNK's, which depend on its grant. `Err`: the field that is out
/// of bounds.
fn check(frame: &Frame) -> Result<(), &'static str> {
    Err(match frame {
        Frame::Open(of) if of.flow == CONTROL_FLOW => "flow",
        Frame::Open(of) if of.first > SEQUENCE_MAX => "first",
        Frame::Small(of) if of.sequence > SEQUENCE_MAX => "sequence",
        Frame::Small(of) if u64::from(of.bytes) > of.charge_end => "bytes",
        Frame::Small(of) if !of.has_description() => "description_bytes",
        Frame::Request(of) if of.sequence > SEQUENCE_MAX => "sequence",
        Frame::Request(of) if !(1..=CHUNK_BYTES_MAX).contains(&of.chunk_bytes) => "chunk_bytes",
        Frame::Request(of) if !of.has_chunks() => "bytes",
        Frame::Grant(of) if of.sequence > SEQUENCE_MAX => "sequence",
        Frame::Grant(of) if of.from_chunk >= CHUNKS_MAX => "from_chunk",
        Frame::Gap(of) if of.first >= of.next || of.next == FLOW_ENDED => "next",
        Frame::Close(of) if of.flow == CONTROL_FLOW => "flow",
        Frame::Refuse(of) if of.flow == CONTROL_FLOW => "flow",
        _ => return Ok(()),
    })
}

impl Small {
    fn has_description(&self) -> bool {
        u32::from(self.description_bytes) < self.bytes
            && usize::from(self.description_bytes) <= DESCRIPTION_BYTES_MAX
    }
}

impl Request {
    fn has_chunks(&self) -> bool {
        let most = u64::from(self.chunk_bytes) * u64::from(CHUNKS_MAX);
        (1..=most).contains(&self.bytes)
    }
}
