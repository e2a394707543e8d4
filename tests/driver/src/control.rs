//! How a test in the same process finds, loads and steers the stand-in.

use crate::abi::Code;
use crate::call::global;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// File name of the shared library.
const FILE: &str = "librgaps_test_driver.so";

#[no_mangle]
unsafe extern "C" fn rgaps_test_driver_configure(settings: *const c_char) -> c_int {
    // SAFETY: the caller passes a C string.
    let settings = unsafe { CStr::from_ptr(settings) }.to_string_lossy();
    match global().configure(&settings) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("rgaps test driver: {reason}");
            Code::INVALID_VALUE.0
        }
    }
}

#[no_mangle]
unsafe extern "C" fn rgaps_test_driver_calls(call: *const c_char) -> u64 {
    // SAFETY: the caller passes a C string.
    let call = unsafe { CStr::from_ptr(call) }.to_string_lossy();
    global().faults().count(&call)
}

#[no_mangle]
unsafe extern "C" fn rgaps_test_driver_live(what: *const c_char) -> u64 {
    // SAFETY: the caller passes a C string.
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy();
    let global = global();
    match &*what {
        "contexts" => global.contexts.live(),
        "modules" => global.modules.live(),
        other => {
            let found = global
                .memory()
                .live(other)
                .or_else(|| global.streams.live(other));
            found.unwrap_or(u64::MAX)
        }
    }
}

#[no_mangle]
extern "C" fn rgaps_test_driver_lose_context(device: c_int) -> c_int {
    let global = global();
    let context = global
        .position(device)
        .ok()
        .and_then(|p| global.contexts.primary(p));
    match context {
        Some(context) => {
            context.lose(Code::ILLEGAL_ADDRESS);
            0
        }
        None => Code::INVALID_CONTEXT.0,
    }
}

/// Holds a stream, or lets it go on. Not the special handles: they mean streams of a context.
#[no_mangle]
extern "C" fn rgaps_test_driver_hold(stream: usize, held: c_int) -> c_int {
    match global().streams.get(stream) {
        Ok(stream) => {
            stream.hold(held != 0);
            0
        }
        Err(code) => code.0,
    }
}

/// Where cargo put the shared library: beside this program, or in the folder above it. Test
/// programs and their dependencies lie in `target/<profile>/deps`, what was built by name in
/// `target/<profile>`; `RGAPS_TEST_DRIVER` names it elsewhere.
///
/// Panics, with what to do, where it is not: this is for tests.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("RGAPS_TEST_DRIVER") {
        return path.into();
    }
    let program = std::env::current_exe().expect("a program knows where it is");
    let folders = program.ancestors().skip(1).take(3);
    let candidates = folders.flat_map(|folder| [folder.join(FILE), folder.join("deps").join(FILE)]);
    let found = candidates.into_iter().find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "{FILE} is not near {}: make rgaps-test-driver a dev-dependency of this test, \
             or run 'cargo build -p rgaps-test-driver'",
            program.display()
        )
    })
}

/// Gives a symbol another name of the same length. It stands as a C string in the table of symbol
/// names, maybe in several.
fn rename(library: &mut [u8], symbol: &str) {
    let name: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let mut found = 0;
    let mut from = 0;
    while let Some(at) = library[from..].windows(name.len()).position(|w| w == name) {
        library[from + at + 1] = b'_';
        from += at + 1;
        found += 1;
    }
    assert!(found > 0, "the test driver has no {symbol}");
}

/// A copy of the stand-in of a test's own, so that tests in one process do not meet: a library
/// that is loaded from another file has a state of its own.
pub struct TestDriver {
    path: PathBuf,
    handle: *mut c_void,
    is_copy: bool,
}

// SAFETY: the handle is only passed to dlsym, and the library's functions are made for threads.
unsafe impl Send for TestDriver {}
// SAFETY: as above.
unsafe impl Sync for TestDriver {}

impl TestDriver {
    /// Copies and loads the shared library. Panics where that fails.
    pub fn private() -> TestDriver {
        TestDriver::older(&[])
    }

    /// The same without some driver functions (by their symbols), as an older driver is.
    pub fn older(missing: &[&str]) -> TestDriver {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("rgaps-test-driver-{}-{number}.so", std::process::id());
        let path = std::env::temp_dir().join(name);
        let from = library();
        let mut library = std::fs::read(&from)
            .unwrap_or_else(|error| panic!("{} cannot be read: {error}", from.display()));
        missing
            .iter()
            .for_each(|symbol| rename(&mut library, symbol));
        std::fs::write(&path, library)
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", path.display()));
        Self::open(path, true)
    }

    /// The stand-in that this process loads as its driver from `path`, which stays.
    pub fn loaded(path: &Path) -> TestDriver {
        Self::open(path.to_owned(), false)
    }

    fn open(path: PathBuf, is_copy: bool) -> TestDriver {
        let text = CString::new(path.as_os_str().as_bytes()).expect("paths hold no NUL");
        // SAFETY: a C string; the library is our own and stays loaded.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", path.display());
        TestDriver {
            path,
            handle,
            is_copy,
        }
    }

    /// The copy, to load the driver from. It is removed with this value; what is loaded stays.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes settings (`name=value;...`, see the crate's documentation) and counts calls anew.
    /// Panics if the settings are wrong.
    pub fn configure(&self, settings: &str) {
        // SAFETY: the type is that of the function above.
        let function: unsafe extern "C" fn(*const c_char) -> c_int =
            unsafe { self.function(c"rgaps_test_driver_configure") };
        let text = CString::new(settings).expect("settings hold no NUL");
        // SAFETY: a C string.
        let code = unsafe { function(text.as_ptr()) };
        assert_eq!(code, 0, "'{settings}' is refused");
    }

    /// How often a driver function was called since the last `configure`; its name without `_v2`.
    pub fn calls(&self, name: &str) -> u64 {
        self.number(c"rgaps_test_driver_calls", name)
    }

    /// How many `handles`, `reservations`, `mappings`, `allocations`, `registrations`, `contexts`,
    /// `streams`, `events` or `modules` there are in this process.
    pub fn live(&self, what: &str) -> u64 {
        let found = self.number(c"rgaps_test_driver_live", what);
        assert_ne!(found, u64::MAX, "'{what}' is not counted");
        found
    }

    /// Ends the context of a GPU, as a kernel that fails does.
    pub fn lose_context(&self, ordinal: i32) {
        // SAFETY: the type is that of the function above.
        let function: extern "C" fn(c_int) -> c_int =
            unsafe { self.function(c"rgaps_test_driver_lose_context") };
        assert_eq!(function(ordinal), 0, "GPU {ordinal} has no context");
    }

    /// Holds a stream: what is queued on it and has not begun does not begin until the value that
    /// this gives is dropped. For a minute at most, then the process is ended (`patience_ms`).
    pub fn hold(&self, stream: u64) -> Held<'_> {
        let held = Held {
            driver: self,
            stream: stream as usize,
        };
        assert_eq!(
            held.set(true),
            0,
            "{stream:#x} is no stream that can be held"
        );
        held
    }

    /// A function of the library, for what rgaps itself does not call.
    ///
    /// # Safety
    /// `F` is the type of that function.
    pub unsafe fn function<F: Copy>(&self, symbol: &CStr) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is of a library that stays loaded.
        let address = unsafe { libc::dlsym(self.handle, symbol.as_ptr()) };
        assert!(!address.is_null(), "the test driver has no {symbol:?}");
        // SAFETY: the sizes agree, the caller vouches for the type.
        unsafe { std::mem::transmute_copy(&address) }
    }

    fn number(&self, symbol: &CStr, argument: &str) -> u64 {
        // SAFETY: both functions have this type.
        let function: unsafe extern "C" fn(*const c_char) -> u64 = unsafe { self.function(symbol) };
        let text = CString::new(argument).expect("names hold no NUL");
        // SAFETY: a C string.
        unsafe { function(text.as_ptr()) }
    }
}

/// A stream that is held.
pub struct Held<'a> {
    driver: &'a TestDriver,
    stream: usize,
}

impl Held<'_> {
    fn set(&self, held: bool) -> c_int {
        // SAFETY: the type is that of the function above.
        let function: extern "C" fn(usize, c_int) -> c_int =
            unsafe { self.driver.function(c"rgaps_test_driver_hold") };
        function(self.stream, held.into())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A stream that is gone by now holds nothing up.
        self.set(false);
    }
}

impl Drop for TestDriver {
    fn drop(&mut self) {
        if self.is_copy {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
