//! Fields of frames: how each type is written, how long it may be, and which bytes are none.

use super::values::{
    Description, LaneKey, Lanes, RdmaMode, Remote, ResetReason, DESCRIPTION_BYTES_MAX, KEY_BYTES,
    LANES_MAX, RAILS_MAX,
};
use crate::wire::Fields;

/// The bytes are no value of the field's type.
pub(super) struct Invalid;

/// A type that frames have fields of.
pub(super) trait Field: Sized {
    /// The least and the greatest length.
    const BYTES: (usize, usize);
    fn put(&self, into: &mut Vec<u8>);
    /// `None` if there are too few bytes.
    fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>>;
}

macro_rules! numbers {
    ($($of:ident $bytes:literal)*) => {$(
        impl Field for $of {
            const BYTES: (usize, usize) = ($bytes, $bytes);
            fn put(&self, into: &mut Vec<u8>) {
                into.extend(self.to_le_bytes());
            }
            fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>> {
                from.$of().map(Ok)
            }
        }
    )*};
}
numbers!(u8 1 u16 2 u32 4 u64 8);

impl Field for Description {
    const BYTES: (usize, usize) = (2, 2 + DESCRIPTION_BYTES_MAX);
    fn put(&self, into: &mut Vec<u8>) {
        let length = u16::try_from(self.as_slice().len()).expect("descriptions are short");
        length.put(into);
        into.extend_from_slice(self.as_slice());
    }
    fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>> {
        let length = usize::from(from.u16()?);
        Some(Self::new(from.bytes(length)?).ok_or(Invalid))
    }
}

impl Field for LaneKey {
    const BYTES: (usize, usize) = (KEY_BYTES, KEY_BYTES);
    fn put(&self, into: &mut Vec<u8>) {
        into.extend(self.0);
    }
    fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>> {
        let key = from.bytes(KEY_BYTES)?.try_into().ok()?;
        Some(Ok(Self(key)))
    }
}

impl Field for RdmaMode {
    const BYTES: (usize, usize) = (1, 1);
    fn put(&self, into: &mut Vec<u8>) {
        into.push(*self as u8);
    }
    fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>> {
        Some(Self::from_wire(from.u8()?).ok_or(Invalid))
    }
}

impl Field for ResetReason {
    const BYTES: (usize, usize) = (1, 1);
    fn put(&self, into: &mut Vec<u8>) {
        into.push(*self as u8);
    }
    fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>> {
        Some(Self::from_wire(from.u8()?).ok_or(Invalid))
    }
}

impl Field for Lanes {
    const BYTES: (usize, usize) = (1 + 4, 1 + 4 * LANES_MAX);
    fn put(&self, into: &mut Vec<u8>) {
        let numbers = self.as_slice();
        into.push(u8::try_from(numbers.len()).expect("a link has few lanes"));
        numbers.iter().for_each(|number| number.put(into));
    }
    fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>> {
        let count = usize::from(from.u8()?);
        if count > LANES_MAX {
            return Some(Err(Invalid));
        }
        let mut numbers = [0; LANES_MAX];
        for number in &mut numbers[..count] {
            *number = from.u32()?;
        }
        Some(Self::new(&numbers[..count]).ok_or(Invalid))
    }
}

/// An address and the key of each rail; no keys if there is none.
impl Field for Option<Remote> {
    const BYTES: (usize, usize) = (1, 1 + 8 + 4 * RAILS_MAX);
    fn put(&self, into: &mut Vec<u8>) {
        let rails = 0..u8::try_from(RAILS_MAX).expect("a host has few rails");
        let keys = rails.filter_map(|rail| self.as_ref()?.at(0, rail));
        into.push(u8::try_from(keys.clone().count()).expect("a host has few rails"));
        for (at, (address, key)) in keys.enumerate() {
            if at == 0 {
                address.put(into);
            }
            key.put(into);
        }
    }
    fn take(from: &mut Fields<'_>) -> Option<Result<Self, Invalid>> {
        let count = usize::from(from.u8()?);
        if count == 0 {
            return Some(Ok(None));
        }
        if count > RAILS_MAX {
            return Some(Err(Invalid));
        }
        let address = from.u64()?;
        let mut keys = [0; RAILS_MAX];
        for key in &mut keys[..count] {
            *key = from.u32()?;
        }
        let remote = Remote::new(address, &keys[..count]);
        Some(remote.map(Some).ok_or(Invalid))
    }
}
