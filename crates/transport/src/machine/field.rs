//! Fields of frames: how each type is written, how long it may be, and which bytes are none.

use super::values::{
    Description, LaneKey, Lanes, RdmaMode, Remote, ResetReason, DESCRIPTION_BYTES_MAX, KEY_BYTES,
    LANES_MAX, RAILS_MAX,
};

/// Why bytes are no field.
pub(super) enum NoField {
    /// There are too few.
    Short,
    /// They are no value of its type.
    Invalid,
}

/// A type that frames have fields of.
pub(super) trait Field: Sized {
    /// The least and the greatest length.
    const BYTES: (usize, usize);
    fn put(&self, into: &mut Vec<u8>);
    /// Takes the field from the beginning of the bytes.
    fn take(from: &mut &[u8]) -> Result<Self, NoField>;
}

fn take_array<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], NoField> {
    let (array, rest) = from.split_first_chunk().ok_or(NoField::Short)?;
    *from = rest;
    Ok(*array)
}

macro_rules! numbers {
    ($($of:ident)*) => {$(
        impl Field for $of {
            const BYTES: (usize, usize) = (size_of::<Self>(), size_of::<Self>());
            fn put(&self, into: &mut Vec<u8>) {
                into.extend(self.to_le_bytes());
            }
            fn take(from: &mut &[u8]) -> Result<Self, NoField> {
                take_array(from).map(Self::from_le_bytes)
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

/// Each value is its number, of one byte.
macro_rules! codes {
    ($($of:ident: $($name:ident)*;)*) => {$(
        impl Field for $of {
            const BYTES: (usize, usize) = (1, 1);
            fn put(&self, into: &mut Vec<u8>) {
                into.push(*self as u8);
            }
            fn take(from: &mut &[u8]) -> Result<Self, NoField> {
                let code = u8::take(from)?;
                let mut all = [$(Self::$name),*].into_iter();
                all.find(|of| *of as u8 == code).ok_or(NoField::Invalid)
            }
        }
    )*};
}
codes! {
    RdmaMode: No Prefer Require;
    ResetReason: Protocol Version Realm Lanes Incarnation Key Rdma;
}

impl Field for Description {
    const BYTES: (usize, usize) = (2, 2 + DESCRIPTION_BYTES_MAX);
    fn put(&self, into: &mut Vec<u8>) {
        let length = u16::try_from(self.as_slice().len()).expect("descriptions are short");
        length.put(into);
        into.extend_from_slice(self.as_slice());
    }
    fn take(from: &mut &[u8]) -> Result<Self, NoField> {
        let length = u16::take(from)?.into();
        let (bytes, rest) = from.split_at_checked(length).ok_or(NoField::Short)?;
        *from = rest;
        Self::new(bytes).ok_or(NoField::Invalid)
    }
}

impl Field for LaneKey {
    const BYTES: (usize, usize) = (KEY_BYTES, KEY_BYTES);
    fn put(&self, into: &mut Vec<u8>) {
        into.extend(self.0);
    }
    fn take(from: &mut &[u8]) -> Result<Self, NoField> {
        take_array(from).map(Self)
    }
}

/// So many numbers of at most `MAX`.
fn take_some<const MAX: usize>(count: usize, from: &mut &[u8]) -> Result<[u32; MAX], NoField> {
    let mut numbers = [0; MAX];
    for number in numbers.get_mut(..count).ok_or(NoField::Invalid)? {
        *number = u32::take(from)?;
    }
    Ok(numbers)
}

impl Field for Lanes {
    const BYTES: (usize, usize) = (1 + 4, 1 + 4 * LANES_MAX);
    fn put(&self, into: &mut Vec<u8>) {
        let numbers = self.as_slice();
        into.push(u8::try_from(numbers.len()).expect("a link has few lanes"));
        numbers.iter().for_each(|number| number.put(into));
    }
    fn take(from: &mut &[u8]) -> Result<Self, NoField> {
        let count = u8::take(from)?.into();
        let numbers: [u32; LANES_MAX] = take_some(count, from)?;
        Self::new(&numbers[..count]).ok_or(NoField::Invalid)
    }
}

/// An address and the key of each rail; no keys if there is none.
impl Field for Option<Remote> {
    const BYTES: (usize, usize) = (1, 1 + 8 + 4 * RAILS_MAX);
    fn put(&self, into: &mut Vec<u8>) {
        let keys = self.as_ref().map_or(&[][..], Remote::keys);
        into.push(u8::try_from(keys.len()).expect("a host has few rails"));
        self.iter().for_each(|remote| remote.address.put(into));
        keys.iter().for_each(|key| key.put(into));
    }
    fn take(from: &mut &[u8]) -> Result<Self, NoField> {
        let count = u8::take(from)?.into();
        if count == 0 {
            return Ok(None);
        }
        let address = u64::take(from)?;
        let keys: [u32; RAILS_MAX] = take_some(count, from)?;
        let remote = Remote::new(address, &keys[..count]);
        remote.map(Some).ok_or(NoField::Invalid)
    }
}
