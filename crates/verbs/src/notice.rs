//! What the 32 bits of immediate data say.

use crate::cursors::FRAME_ALIGN;

/// A notification. It names a place and relies on no order beyond its queue pair's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A frame lies at this offset of the ring.
    Frame { offset: u64 },
    /// The bytes of a direct write are where they belong; what they are both ends know by this mark.
    Written { mark: u32 },
    /// The sender lacks credit and wants a head with a notice. Its own credit words came with this.
    Stall,
    /// The head that a stalled sender asked for came with this.
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
