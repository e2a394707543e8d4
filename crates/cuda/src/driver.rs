//! The loaded CUDA driver, and the macros that call its functions.

use crate::abi::*;
use crate::error::{hint, CudaError};
use crate::library::{Library, LIBRARY_ENV, SYSTEM_LIBRARY};
use crate::table::Table;
use std::ffi::{c_char, c_int, CStr, OsStr};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The CUDA driver, loaded and initialised.
pub struct Driver {
    table: Table,
    library: String,
    version: (u32, u32),
}

/// Calls a driver function and turns its code into a result. Needs an `unsafe` block around it.
macro_rules! cu {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let driver: &$crate::driver::Driver = $driver;
        driver.check(stringify!($name), (driver.table().$name)($($argument),*))
    }};
}
pub(crate) use cu;

/// `cu!` for a function that older drivers lack: fails with [`CudaError::Lacks`] there.
macro_rules! cu_newer {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let driver: &$crate::driver::Driver = $driver;
        match driver.table().$name {
            Some(function) => driver.check(stringify!($name), function($($argument),*)),
            None => Err(driver.lacks(stringify!($name))),
        }
    }};
}
pub(crate) use cu_newer;

impl Driver {
    /// Loads the driver that [`LIBRARY_ENV`] names, or else the system's, and initialises it.
    /// Creates no context and allocates nothing on a GPU.
    pub fn load() -> Result<Arc<Driver>, CudaError> {
        Driver::attach()?.initialised()
    }

    /// Loads the same driver without initialising it, for looking at what the rest of the process does with it.
    pub(crate) fn attach() -> Result<Arc<Driver>, CudaError> {
        match std::env::var_os(LIBRARY_ENV).filter(|path| !path.is_empty()) {
            Some(path) => Driver::open(&path),
            None => Driver::open(OsStr::new(SYSTEM_LIBRARY)),
        }
    }

    /// Loads the driver from `path` and initialises it.
    pub fn load_from(path: &Path) -> Result<Arc<Driver>, CudaError> {
        Driver::open(path.as_os_str())?.initialised()
    }

    fn initialised(self: Arc<Self>) -> Result<Arc<Driver>, CudaError> {
        // SAFETY: cuInit takes the number 0 and may be called more than once.
        unsafe { cu!(&self, cuInit(0))? };
        Ok(self)
    }

    fn open(path: &OsStr) -> Result<Arc<Driver>, CudaError> {
        let name = path.to_string_lossy().into_owned();
        let library = Library::open(path).map_err(|reason| CudaError::LibraryMissing {
            library: name.clone(),
            reason,
        })?;
        let table = Table::resolve(&library).map_err(|symbol| CudaError::TooOld {
            library: name.clone(),
            symbol,
            version: version_of(&library).map_or_else(|| "?".to_owned(), show_version),
        })?;
        let version = version_of(&library).unwrap_or((0, 0));
        Ok(Arc::new(Driver {
            table,
            library: name,
            version,
        }))
    }

    /// The name or path by which the library was loaded.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// The newest CUDA version that the driver supports, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The error for a code that `call` returned, unless the code is success.
    pub(crate) fn check(&self, call: &'static str, code: CUresult) -> Result<(), CudaError> {
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        Err(CudaError::Call {
            call,
            name: self.error_name(code),
            code,
            hint: hint(code),
        })
    }

    /// The error for a function that this driver is too old for.
    pub(crate) fn lacks(&self, call: &'static str) -> CudaError {
        CudaError::Lacks {
            call,
            version: show_version(self.version),
        }
    }

    fn error_name(&self, code: CUresult) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the out pointer is ours; on success the driver gives a static C string.
        unsafe {
            let found = (self.table.cuGetErrorName)(code, &mut text) == CUDA_SUCCESS;
            if found && !text.is_null() {
                return CStr::from_ptr(text).to_string_lossy().into_owned();
            }
        }
        "an error this driver has no name for".to_owned()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("library", &self.library)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn version_of(library: &Library) -> Option<(u32, u32)> {
    let address = library.symbol(c"cuDriverGetVersion")?;
    let mut version: c_int = 0;
    // SAFETY: cuDriverGetVersion has had this signature since CUDA 2.2 and needs no cuInit.
    let code = unsafe {
        let function: unsafe extern "C" fn(*mut c_int) -> CUresult = std::mem::transmute(address);
        function(&mut version)
    };
    let version = u32::try_from(version)
        .ok()
        .filter(|_| code == CUDA_SUCCESS)?;
    Some((version / 1000, version % 1000 / 10))
}

fn show_version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}
