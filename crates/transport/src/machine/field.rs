//! Fields of frames: how each type is written, and which bytes are invalid.

use super::values::{Description, LaneKey, Lanes, RdmaMode, Remote, LANES_MAX, RAILS_MAX};

/// The type of a frame's field.
pub(super) trait Field: Sized {
    fn put(&self, into: &mut Vec<u8>);
    /// Takes the field from the beginning of the bytes; `None` if the bytes are too few, or encode no value of the type.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

fn take_array<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*array)
}

macro_rules! numbers {
    ($($of:ident)*) => {$(
        impl Field for $of {
            fn put(&self, into: &mut Vec<u8>) {
                into.extend(self.to_le_bytes());
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                take_array(from).map(Self::from_le_bytes)
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

impl Field for RdmaMode {
    fn put(&self, into: &mut Vec<u8>) {
        into.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let code = usize::from(u8::take(from)?);
        [Self::No, Self::Prefer, Self::Require].get(code).copied()
    }
}

impl Field for Description {
    fn put(&self, into: &mut Vec<u8>) {
        let length = u16::try_from(self.as_slice().len()).expect("descriptions are short");
        length.put(into);
        into.extend_from_slice(self.as_slice());
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let length = u16::take(from)?.into();
        let (bytes, rest) = from.split_at_checked(length)?;
        *from = rest;
        Self::new(bytes)
    }
}

impl Field for LaneKey {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend(self.0);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        take_array(from).map(Self)
    }
}

/// Takes `count` numbers; `None` if that is more than `MAX`, or more than there are.
fn take_some<const MAX: usize>(count: usize, from: &mut &[u8]) -> Option<[u32; MAX]> {
    let mut numbers = [0; MAX];
    for number in numbers.get_mut(..count)? {
        *number = u32::take(from)?;
    }
    Some(numbers)
}

impl Field for Lanes {
    fn put(&self, into: &mut Vec<u8>) {
        let numbers = self.as_slice();
        into.push(u8::try_from(numbers.len()).expect("a link has few lanes"));
        numbers.iter().for_each(|number| number.put(into));
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let count = u8::take(from)?.into();
        let numbers: [u32; LANES_MAX] = take_some(count, from)?;
        Self::new(&numbers[..count])
    }
}

/// The count of keys, the address, and the key of each rail; only a count of 0 for `None`.
impl Field for Option<Remote> {
    fn put(&self, into: &mut Vec<u8>) {
        let keys = self.as_ref().map_or(&[][..], Remote::keys);
        into.push(u8::try_from(keys.len()).expect("a host has few rails"));
        self.iter().for_each(|remote| remote.address.put(into));
        keys.iter().for_each(|key| key.put(into));
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let count = u8::take(from)?.into();
        if count == 0 {
            return Some(None);
        }
        let address = u64::take(from)?;
        let keys: [u32; RAILS_MAX] = take_some(count, from)?;
        Remote::new(address, &keys[..count]).map(Some)
    }
}
