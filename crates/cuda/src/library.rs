//! The shared library that holds the driver.

use std::ffi::{c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

/// The environment variable that names a driver library to load in place of the system's.
pub const LIBRARY_ENV: &str = "RGAPS_CUDA_LIBRARY";

/// The system's driver. The toolkit's `libcuda.so` is a link for the linker, often to a stub.
pub(crate) const SYSTEM_LIBRARY: &str = "libcuda.so.1";

/// A loaded library. It is never closed, since the driver starts threads and registers handlers.
pub struct Library {
    handle: NonNull<c_void>,
}

// SAFETY: the handle is only passed to dlsym, which may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: the handle never changes and is never closed; dlsym may be called from several threads at a time.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the driver that [`LIBRARY_ENV`](crate::LIBRARY_ENV) names, or else the system's, without initialising it. For
    /// callers that resolve functions themselves.
    pub fn driver() -> Result<Library, String> {
        match std::env::var_os(LIBRARY_ENV).filter(|path| !path.is_empty()) {
            Some(path) => Library::open(&path),
            None => Library::open(OsStr::new(SYSTEM_LIBRARY)),
        }
    }

    /// Loads `path`. A name without a slash is searched for in the system's library folders, as `dlopen` does.
    pub fn open(path: &OsStr) -> Result<Library, String> {
        let path = CString::new(path.as_bytes())
            .map_err(|_| "the path contains a NUL character".to_owned())?;
        // SAFETY: the path is a C string. Loading runs the library's initialisers; the user trusts them, since he
        // installed the library as the driver or named it in the environment.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle)
            .map(|handle| Library { handle })
            .ok_or_else(last_error)
    }

    /// The address of a symbol. None: the library lacks it.
    pub fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is of a library that `open` loaded and that is never closed.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

fn last_error() -> String {
    // SAFETY: dlerror gives null or a C string that is valid until this thread's next dl call.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "dlopen failed without a reason".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
