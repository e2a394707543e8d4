//! Reading structures of options, which may have fewer or more fields in the caller's version of the header.

use crate::status::{Failure, Outcome};

/// An upper limit for the size of a structure of options: a larger `size` means that the caller did not set the field.
const MAX_OPTIONS_BYTES: usize = 4096;

/// A structure of options. Its first field, `size`, is its size in bytes in the caller's version.
///
/// # Safety
/// The type is `repr(C)` without padding, its first field is that `usize`, and all-zero bits are a valid value.
pub(crate) unsafe trait Plain: Copy {
    /// Its name in C.
    const NAME: &'static str;
}

/// Copies the options that C passes. Fields that the caller's version lacks are 0, their default; so are all for NULL. Fails
/// if the caller sets a field that this version lacks.
///
/// # Safety
/// `options` is NULL, or points to `size` bytes, or to a `size` outside the limits, which this function refuses.
pub(crate) unsafe fn read_options<T: Plain>(options: *const T) -> Outcome<T> {
    // SAFETY: whoever implements `Plain` promises that all-zero bits are a valid value.
    let mut known: T = unsafe { std::mem::zeroed() };
    if options.is_null() {
        return Ok(known);
    }
    let given = options.cast::<u8>();
    // SAFETY: it is not NULL, so our caller promises at least the first field, `size`.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=MAX_OPTIONS_BYTES).contains(&size) {
        return Err(Failure::argument(format!(
            "the field size of {name} is {size}: set it to sizeof({name})",
            name = T::NAME
        )));
    }
    let common = size.min(size_of::<T>());
    // SAFETY: our caller promises `size` readable bytes, and `known` has at least `common`. `Plain` promises that there is no
    // padding, so every byte belongs to a field; the fields are numbers and pointers, for which all bits are valid.
    unsafe { std::ptr::copy_nonoverlapping(given, (&raw mut known).cast::<u8>(), common) };
    for at in common..size {
        // SAFETY: `at` is below `size`, and our caller promises that many bytes.
        if unsafe { given.add(at).read() } != 0 {
            return Err(Failure::argument(format!(
                "{name} has options that this library, {version}, does not know; use a library as \
                 new as the header",
                name = T::NAME,
                version = env!("CARGO_PKG_VERSION"),
            )));
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Code;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Old {
        size: usize,
        one: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct New {
        size: usize,
        one: u64,
        two: u64,
    }

    // SAFETY: numbers, without padding.
    unsafe impl Plain for Old {
        const NAME: &'static str = "options";
    }
    // SAFETY: numbers, without padding.
    unsafe impl Plain for New {
        const NAME: &'static str = "options";
    }

    fn read<Theirs, T: Plain>(options: &Theirs) -> Outcome<T> {
        // SAFETY: a structure whose field `size` is its size, or is one that `read_options` refuses.
        unsafe { read_options((options as *const Theirs).cast::<T>()) }
    }

    #[test]
    fn versions_meet() {
        let old = Old {
            size: size_of::<Old>(),
            one: 1,
        };
        let read_new: New = read(&old).unwrap();
        assert_eq!((read_new.one, read_new.two), (1, 0));
        let mut new = New {
            size: size_of::<New>(),
            one: 1,
            two: 0,
        };
        let read_old: Old = read(&new).unwrap();
        assert_eq!(read_old.one, 1);
        new.two = 2;
        let error = read::<New, Old>(&new).err().unwrap();
        assert!(
            error.message.contains("as new as the header"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_size_that_was_not_set_is_refused() {
        for size in [0, 7, usize::MAX, MAX_OPTIONS_BYTES + 1] {
            let error = read::<Old, Old>(&Old { size, one: 1 }).err().unwrap();
            assert_eq!(error.code, Code::Argument);
            assert!(
                error.message.contains("sizeof(options)"),
                "{}",
                error.message
            );
        }
        // SAFETY: NULL.
        let defaults = unsafe { read_options::<Old>(std::ptr::null()) };
        assert_eq!(defaults.unwrap().one, 0);
    }
}
