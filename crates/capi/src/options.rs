//! Structures of options, which grow from version to version.

use crate::status::{Failure, Outcome};

/// No structure of options is larger: a larger `size` was never set.
const MAX_OPTIONS_BYTES: usize = 4096;

/// A structure of options: its first field says how many bytes the caller's version of it has.
///
/// # Safety
/// `repr(C)`, the first field is that `usize`, all bits 0 is a value, and there is no padding.
pub(crate) unsafe trait Plain: Copy {
    /// Its name in C.
    const NAME: &'static str;
}

/// Copies what C passes. Fields that it does not know of are 0, which is their default.
///
/// # Safety
/// `options` is NULL, or points to as many bytes as its field `size` says, or to a `size` that
/// is refused.
pub(crate) unsafe fn read_options<T: Plain>(options: *const T) -> Outcome<T> {
    // SAFETY: all bits 0 is a value, as `Plain` says.
    let mut known: T = unsafe { std::mem::zeroed() };
    if options.is_null() {
        return Ok(known);
    }
    let theirs = options.cast::<u8>();
    // SAFETY: it is not NULL, so our caller promises the first field, `size`, at least.
    let size = unsafe { theirs.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=MAX_OPTIONS_BYTES).contains(&size) {
        return Err(Failure::argument(format!(
            "the field size of {name} is {size}: set it to sizeof({name})",
            name = T::NAME
        )));
    }
    let common = size.min(size_of::<T>());
    // SAFETY: our caller promises `size` bytes, and `known` has at least `common`; without padding all of its bytes are
    // part of a field, and every value of a field is one (`Plain`).
    unsafe { std::ptr::copy_nonoverlapping(theirs, (&raw mut known).cast::<u8>(), common) };
    for at in common..size {
        // SAFETY: `at` is below `size`, and our caller promises that many bytes.
        if unsafe { theirs.add(at).read() } != 0 {
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
        // SAFETY: a structure whose size is as it says, or is refused.
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
