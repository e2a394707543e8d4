//! Notices: what the 32 bits of immediate data mean.

use crate::cursors::FRAME_ALIGN;

/// A notice, which a write brings in its immediate data. Notices rely on the queue pair's order, and on no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A frame lies at this offset of the ring.
    Frame { offset: u64 },
    /// The bytes of a direct write have arrived. Users of both ends know by the mark which bytes.
    Written { mark: u32 },
    /// The sender lacks credit and asks for credits with a head notice. The write brings the sender's own credit words.
    Stall,
    /// The answer to a stall. The write brings the receiver's credit words.
    Head,
}

/// The greatest mark of a direct write.
pub const MARK_MAX: u32 = (1 << 28) - 1;

impl Notice {
    const WRITTEN: u32 = 1 << 29;
    const STALL: u32 = 1 << 31;
    const HEAD: u32 = 1 << 30;

    pub(crate) fn to_immediate(self) -> u32 {
        match self {
            Self::Frame { offset } => {
                let slot = u32::try_from(offset / FRAME_ALIGN).expect("rings are small enough");
                debug_assert!(slot < 1 << 28 && offset % FRAME_ALIGN == 0);
                slot
            }
            Self::Written { mark } => {
                debug_assert!(mark <= MARK_MAX);
                Self::WRITTEN | mark
            }
            Self::Stall => Self::STALL,
            Self::Head => Self::HEAD,
        }
    }

    pub(crate) fn from_immediate(immediate: u32) -> Option<Self> {
        match immediate {
            Self::STALL => Some(Self::Stall),
            Self::HEAD => Some(Self::Head),
            slot if slot < 1 << 28 => Some(Self::Frame {
                offset: u64::from(slot) * FRAME_ALIGN,
            }),
            marked if marked & !MARK_MAX == Self::WRITTEN => Some(Self::Written {
                mark: marked & MARK_MAX,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_come_back_and_others_mean_nothing() {
        let last = FRAME_ALIGN * ((1 << 28) - 1);
        for notice in [
            Notice::Frame { offset: 0 },
            Notice::Frame { offset: last },
            Notice::Written { mark: 0 },
            Notice::Written { mark: MARK_MAX },
            Notice::Stall,
            Notice::Head,
        ] {
            assert_eq!(Notice::from_immediate(notice.to_immediate()), Some(notice));
        }
        for immediate in [
            1 << 28,
            Notice::WRITTEN | 1 << 28,
            Notice::HEAD | Notice::WRITTEN,
            Notice::STALL | 1,
            Notice::HEAD | Notice::STALL,
            u32::MAX,
        ] {
            assert_eq!(Notice::from_immediate(immediate), None);
        }
    }
}
