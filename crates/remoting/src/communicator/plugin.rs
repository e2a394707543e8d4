//! Communicators in libraries of their own (`rgaps/communicator.h`).

use super::Communicator;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// `RGAPS_COMMUNICATOR_VERSION`.
const VERSION: u32 = 1;

/// `rgaps_communicator`.
#[repr(C)]
struct Methods {
    version: u32,
    reserved: u32,
    create: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    serve: unsafe extern "C" fn(*mut c_void) -> c_int,
    accept: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    connect: unsafe extern "C" fn(*mut c_void) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> isize,
    sync: unsafe extern "C" fn(*mut c_void) -> c_int,
    close: unsafe extern "C" fn(*mut c_void),
    to_string: unsafe extern "C" fn(*mut c_void) -> *const c_char,
}

const _: () = assert!(size_of::<Methods>() == 88);

pub(super) struct Plugin {
    methods: &'static Methods,
    object: *mut c_void,
}

// SAFETY: the header demands that all methods may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: the header demands that all methods may be called from several threads at a time.
unsafe impl Sync for Plugin {}

fn last() -> io::Error {
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::Error::other("the plug-in gives no reason"),
        error => error,
    }
}

fn check(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(last()),
    }
}

impl Plugin {
    /// Loads a library, which stays loaded, and makes a communicator for an address.
    pub(super) fn load(path: &Path, address: &str) -> io::Result<Plugin> {
        let wrong = |what: &str| {
            let text = format!("the communicator {} {what}", path.display());
            io::Error::new(io::ErrorKind::Unsupported, text)
        };
        let name = CString::new(path.as_os_str().as_bytes())?;
        let address = CString::new(address)?;
        // SAFETY: the name is a C string. Loading runs the library's initialisers, which the user asks for by naming it in the
        // configuration; the function that is called is the one that the header declares under its name.
        let methods = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if handle.is_null() {
                let reason = libc::dlerror();
                let reason = match reason.is_null() {
                    true => "without a reason".into(),
                    false => CStr::from_ptr(reason).to_string_lossy(),
                };
                return Err(wrong(&format!("cannot be loaded: {reason}")));
            }
            let symbol = libc::dlsym(handle, c"rgaps_communicator_plugin".as_ptr());
            if symbol.is_null() {
                return Err(wrong("has no function rgaps_communicator_plugin"));
            }
            let entry: unsafe extern "C" fn() -> *const Methods = std::mem::transmute(symbol);
            entry().as_ref()
        };
        let methods = methods.filter(|methods| methods.version == VERSION);
        let methods = methods.ok_or_else(|| wrong("is of another version"))?;
        // SAFETY: `methods` came from the plug-in, and is of the version that declares `create` so; its library stays loaded. `address`
        // is a C string that lives until `create` returns.
        let object = unsafe { (methods.create)(address.as_ptr()) };
        match object.is_null() {
            true => Err(last()),
            false => Ok(Plugin { methods, object }),
        }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. This is the only call of `destroy`, and no
        // method runs or follows: `drop` has the only reference.
        unsafe { (self.methods.destroy)(self.object) }
    }
}

impl Communicator for Plugin {
    fn serve(&self) -> io::Result<()> {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it.
        check(unsafe { (self.methods.serve)(self.object) })
    }

    fn accept(&self) -> io::Result<Arc<dyn Communicator>> {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it.
        let object = unsafe { (self.methods.accept)(self.object) };
        match object.is_null() {
            true => Err(last()),
            false => Ok(Arc::new(Plugin {
                methods: self.methods,
                object,
            })),
        }
    }

    fn connect(&self) -> io::Result<()> {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it.
        check(unsafe { (self.methods.connect)(self.object) })
    }

    fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it. `to` is
        // borrowed until the call returns, and has as many bytes as the call is told.
        let count = unsafe { (self.methods.read)(self.object, to.as_mut_ptr().cast(), to.len()) };
        match usize::try_from(count) {
            Ok(count) => Ok(count.min(to.len())),
            Err(_) => Err(last()),
        }
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(first) = pieces.iter().find(|piece| !piece.is_empty()) else {
            return Ok(0);
        };
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it.
        // `first` is borrowed until the call returns, and has as many bytes as the call is told.
        let count =
            unsafe { (self.methods.write)(self.object, first.as_ptr().cast(), first.len()) };
        match usize::try_from(count) {
            Ok(count) => Ok(count.min(first.len())),
            Err(_) => Err(last()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it.
        check(unsafe { (self.methods.sync)(self.object) })
    }

    fn close(&self) {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it.
        unsafe { (self.methods.close)(self.object) }
    }

    fn to_string(&self) -> String {
        // SAFETY: `object` came from `create` or `accept` of these `methods`, and was not null. It lives until `drop` destroys it, and so
        // does the text, as the header demands. The text is null or ends with a 0 byte, and is copied here.
        unsafe {
            let text = (self.methods.to_string)(self.object);
            match text.is_null() {
                true => "a plug-in".to_owned(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        }
    }
}
