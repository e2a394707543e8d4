//! Macros that define structures. One line defines a field with its offset. Everything else (types, assertions, packed words, and
//! the accessors in `rgaps-topic`) is generated from that line.

/// Defines structures of the control segment. A row is an offset, a field and its kind: `u32` or `u64` (one atomic
/// word), a type of [`packed!`] (one atomic word of 64 bits), `KIND[N]` (an array of words), `pad[N]` (padding, in
/// bytes), or `(TYPE)` (its accessor is written by hand). `as VIEW` names the type with the accessors in `rgaps-topic`.
macro_rules! define {
    ($(
        $(#[$doc:meta])*
        $name:ident $(as $view:ident)? [$bytes:expr] {
            $($(#[$field_doc:meta])* $at:literal $field:ident: $kind:tt $([$count:expr])?,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[repr(C, align(64))]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $crate::define::field_type!($kind $([$count])?),)*
        }

        const _: () = {
            assert!(::std::mem::size_of::<$name>() == $bytes);
            $(assert!(::std::mem::offset_of!($name, $field) == $at);)*
        };
    )*};
}

/// The type of a field, by its kind.
macro_rules! field_type {
    (pad [$bytes:expr]) => {
        [u8; $bytes]
    };
    (($type:ty)) => {
        $type
    };
    ($type:tt [$count:expr]) => {
        [$type; $count]
    };
    ($type:tt) => {
        $type
    };
}

/// Defines structures that fill one word of 64 bits, read and written as a whole.
macro_rules! packed {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[repr(C, align(8))]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $name {
            /// The word that has these fields.
            #[inline(always)]
            pub fn to_word(self) -> u64 {
                0 $(| u64::from(self.$field) << (8 * ::std::mem::offset_of!($name, $field)))*
            }

            /// The fields of a word.
            #[inline(always)]
            pub fn of_word(word: u64) -> $name {
                $name { $($field: (word >> (8 * ::std::mem::offset_of!($name, $field))) as $type,)* }
            }
        }

        const _: () = assert!(0 $(+ ::std::mem::size_of::<$type>())* == 8 && cfg!(target_endian = "little"));
    )*};
}

/// Defines structures that are written to a file as they lie in memory: integers, with no gap between them.
macro_rules! record {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $name {
            /// The bytes of its fields. Only bytes behind them can be padding.
            pub const BYTES: usize = {
                let mut end = 0;
                $(
                    assert!(::std::mem::offset_of!($name, $field) == end);
                    end += ::std::mem::size_of::<$type>();
                    assert!(<$type as $crate::define::Integers>::BYTES == ::std::mem::size_of::<$type>());
                )*
                end
            };
        }

        impl $crate::define::Integers for $name {
            const BYTES: usize = $name::BYTES;
        }
    )*};
}

/// Types of fields of a [`record!`]: any bytes are a valid value, and the first `BYTES` have no padding.
pub(crate) trait Integers: Copy {
    const BYTES: usize = size_of::<Self>();
}
impl Integers for u8 {}
impl Integers for u32 {}
impl Integers for u64 {}
impl<T: Integers, const N: usize> Integers for [T; N] {
    const BYTES: usize = N * T::BYTES;
}

/// Defines a structure that travels between hosts as it lies in memory. A row is an offset, a field and its type.
macro_rules! encoded {
    (
        $(#[$doc:meta])*
        pub struct $name:ident [$bytes:literal] {
            $($(#[$field_doc:meta])* $at:literal $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $name {
            /// The bytes in memory and on the wire.
            pub fn encode(&self) -> [u8; $bytes] {
                let mut to = [0; $bytes];
                $($crate::define::LittleEndian::put(&self.$field, &mut to[$at..]);)*
                to
            }

            /// The structure in these bytes. Its fields come from a peer and are not checked.
            pub fn decode(from: &[u8; $bytes]) -> $name {
                $name { $($field: $crate::define::LittleEndian::get(&from[$at..]),)* }
            }
        }

        const _: () = {
            assert!(::std::mem::size_of::<$name>() == $bytes);
            $(assert!(::std::mem::offset_of!($name, $field) == $at);)*
        };
    };
}

/// Types of fields of an [`encoded!`], read from and written to the beginning of some bytes, little-endian.
pub(crate) trait LittleEndian: Sized {
    fn put(&self, to: &mut [u8]);
    fn get(from: &[u8]) -> Self;
}

macro_rules! little_endian {
    ($($integer:ty)*) => {$(
        impl LittleEndian for $integer {
            fn put(&self, to: &mut [u8]) {
                to[..size_of::<$integer>()].copy_from_slice(&self.to_le_bytes());
            }
            fn get(from: &[u8]) -> $integer {
                let (bytes, _) = from.split_first_chunk().expect("a field lies within its structure");
                <$integer>::from_le_bytes(*bytes)
            }
        }
    )*};
}
little_endian!(u8 u16 u64 i64);

impl<T: LittleEndian, const N: usize> LittleEndian for [T; N] {
    fn put(&self, to: &mut [u8]) {
        for (to, item) in to.chunks_exact_mut(size_of::<T>()).zip(self) {
            item.put(to);
        }
    }
    fn get(from: &[u8]) -> [T; N] {
        std::array::from_fn(|index| T::get(&from[index * size_of::<T>()..]))
    }
}

pub(crate) use {define, encoded, field_type, packed, record};
