//! The records that programs and the module exchange, as its headers declare them.
//!
//! All padding has a name, so all bytes of a record are initialised, and none of this process's memory leaks into the kernel.

/// Declares records: the C structure's name and size, then fields in order.
macro_rules! records {
    ($prefix:literal, $($(#[$doc:meta])* $name:ident = $c:literal, $bytes:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[allow(missing_docs)] // as in the header
            pub struct $name {
                $(pub $field: $type,)*
            }

            const _: () = assert!(size_of::<$name>() == $bytes);
        )*

        /// The C name, the size, and the offset of each field, of every record.
        #[cfg(test)]
        pub(crate) const RECORDS: &[(&str, usize, &[(&str, usize)])] = &[
            $((
                concat!($prefix, $c),
                size_of::<$name>(),
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*
        ];
    };
}

pub(crate) mod device;
pub(crate) mod realm;

#[cfg(test)]
mod tests;
