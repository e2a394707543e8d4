//! Copies to host memory from GPU memory that other code in this process allocated.
//!
//! A publisher of a host topic copies messages from any address, and only the driver knows which addresses
//! are a GPU's. We ask it only if the process has loaded it already: otherwise no such address exists, and
//! a program without CUDA should not load a driver through us. Nor do we initialise the driver, since
//! forked children cannot use a driver that their parent initialised.

use crate::abi::*;
use crate::context::Context;
use crate::driver::{cu, Driver};
use crate::error::CudaError;
use crate::foreign::ForeignStreams;
use crate::library::LIBRARY_ENV;
use crate::stream::CudaStream;
use rgaps_pool::Stream;
use std::ffi::{c_int, c_void, CStr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Copies from addresses of GPUs.
#[derive(Debug)]
pub struct DeviceReader {
    driver: Arc<Driver>,
    /// By ordinal. An entry is made when the GPU is first used.
    devices: Mutex<Vec<(c_int, Arc<ReadDevice>)>>,
}

#[derive(Debug)]
struct ReadDevice {
    copies: CudaStream,
    foreign: ForeignStreams,
}

/// The kind of an address, as the driver reports it.
enum AddressKind {
    /// The driver does not know it: ordinary host memory.
    Unknown,
    /// Host memory that GPUs can write.
    Pinned,
    /// Memory of the GPU of this ordinal.
    Device(c_int),
}

impl DeviceReader {
    /// The reader of this process. None: the process has not loaded the driver, or the driver is too old.
    pub fn of_process() -> Option<&'static DeviceReader> {
        static READER: OnceLock<Option<DeviceReader>> = OnceLock::new();
        if let Some(known) = READER.get() {
            return known.as_ref();
        }
        if !is_driver_loaded() {
            return None;
        }
        // A driver without the functions that we need counts as none, also later.
        let attach = || {
            Driver::attach().ok().map(|driver| DeviceReader {
                driver,
                devices: Mutex::default(),
            })
        };
        READER.get_or_init(attach).as_ref()
    }

    /// Waits for the work queued on `stream`, copies from an address of a GPU and returns true. If the
    /// address is the host's, copies nothing and returns false, after waiting for the work on `stream`
    /// that may write there.
    ///
    /// # Safety
    /// If `from` is an address of a GPU, it is readable for `to.len()` bytes.
    pub unsafe fn read(&self, to: &mut [u8], from: u64, stream: Stream) -> Result<bool, CudaError> {
        let Some(asking) = self.ordinal_to_ask()? else {
            return Ok(false); // without a context there is neither memory nor work of a GPU
        };
        let kind = match self.address_kind(asking, from)? {
            // Copies to pageable memory have finished when their calls return. We wait for other work
            // only on a stream that the user names.
            AddressKind::Unknown if stream.0 == 0 => return Ok(false),
            kind => kind,
        };
        let (ordinal, is_device) = match kind {
            AddressKind::Device(ordinal) => (ordinal, true),
            AddressKind::Unknown | AddressKind::Pinned => (asking, false),
        };
        let device = self.device(ordinal)?;
        let outcome = device
            .foreign
            .synchronize(device.copies.context(), stream)
            .and_then(|()| match is_device && !to.is_empty() {
                // SAFETY: the driver reported a GPU's memory, and our caller promises that it is readable for `to.len()` bytes.
                true => unsafe { device.copies.read(to, from) },
                false => Ok(()),
            });
        if outcome.is_err() {
            // The next call opens the device anew, which is needed after a reset.
            self.devices().retain(|(known, _)| *known != ordinal);
        }
        outcome.map(|()| is_device)
    }

    /// A GPU of which this process has a context: the calling thread's current one, or else the first
    /// whose primary context is active. None: there is no such GPU.
    fn ordinal_to_ask(&self) -> Result<Option<c_int>, CudaError> {
        let table = self.driver.table();
        let mut device: CUdevice = -1;
        // SAFETY: the out pointer is ours. Without a current context the call returns an error.
        match unsafe { (table.cuCtxGetDevice)(&mut device) } {
            CUDA_SUCCESS => return Ok(Some(device)),
            CUDA_ERROR_NOT_INITIALIZED => return Ok(None),
            _ => {}
        }
        let mut count: c_int = 0;
        // SAFETY: the out pointer is ours.
        unsafe { cu!(&self.driver, cuDeviceGetCount(&mut count))? };
        for ordinal in 0..count {
            let (mut flags, mut active) = (0, 0);
            // SAFETY: the out pointers are ours, the ordinal is below the count.
            unsafe {
                cu!(
                    &self.driver,
                    cuDevicePrimaryCtxGetState(ordinal, &mut flags, &mut active)
                )?
            };
            if active != 0 {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    fn address_kind(&self, asking: c_int, address: u64) -> Result<AddressKind, CudaError> {
        let mut caller: CUdevice = -1;
        // SAFETY: the out pointer is ours.
        let has_context =
            unsafe { (self.driver.table().cuCtxGetDevice)(&mut caller) } == CUDA_SUCCESS;
        let device = match has_context {
            true => None,
            false => Some(self.device(asking)?),
        };
        let _entered = match &device {
            Some(device) => Some(device.copies.context().enter()?),
            None => None,
        };
        let Some(kind) = self.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)? else {
            return Ok(AddressKind::Unknown);
        };
        if kind == CU_MEMORYTYPE_HOST {
            return Ok(AddressKind::Pinned);
        }
        let ordinal = self.attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
        Ok(ordinal.map_or(AddressKind::Unknown, |ordinal| {
            AddressKind::Device(ordinal as c_int)
        }))
    }

    /// A 32-bit attribute of an address. None: the driver does not know the address.
    fn attribute(&self, attribute: c_int, address: u64) -> Result<Option<u32>, CudaError> {
        let mut value: u32 = 0;
        // SAFETY: both attributes that callers ask for are 32-bit numbers, like `value`; the driver
        // only looks the address up.
        let code = unsafe {
            (self.driver.table().cuPointerGetAttribute)((&raw mut value).cast(), attribute, address)
        };
        if code == CUDA_ERROR_INVALID_VALUE {
            return Ok(None);
        }
        self.driver.check("cuPointerGetAttribute", code)?;
        Ok(Some(value))
    }

    fn devices(&self) -> MutexGuard<'_, Vec<(c_int, Arc<ReadDevice>)>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self, ordinal: c_int) -> Result<Arc<ReadDevice>, CudaError> {
        let mut devices = self.devices();
        if let Some((_, device)) = devices.iter().find(|(known, _)| *known == ordinal) {
            return Ok(device.clone());
        }
        let context = Context::retain_ordinal(self.driver.clone(), ordinal)?;
        let device = Arc::new(ReadDevice {
            copies: CudaStream::new(context)?,
            foreign: ForeignStreams::default(),
        });
        devices.push((ordinal, device.clone()));
        Ok(device)
    }
}

/// Whether the process has loaded the driver. Compares names of libraries only if the process has loaded
/// one since the last search; otherwise it compares a counter.
fn is_driver_loaded() -> bool {
    /// The loader's count of loads (`dlpi_adds`) at the last search that did not find the driver.
    static WITHOUT: AtomicU64 = AtomicU64::new(0);
    let mut search = Search {
        without: WITHOUT.load(Ordering::Relaxed),
        adds: 0,
        found: false,
    };
    // SAFETY: `look` expects a `Search`, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    if !search.found {
        WITHOUT.store(search.adds, Ordering::Relaxed);
    }
    search.found
}

struct Search {
    /// The count of loads at the last search that did not find the driver.
    without: u64,
    /// The count of loads during this search.
    adds: u64,
    found: bool,
}

/// Compares one loaded library with the driver, for `dl_iterate_phdr`. Returns 1 to end the search.
unsafe extern "C" fn look(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a structure that is valid during the call, and the pointer to the `Search`
    // that `is_driver_loaded` gave it.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    search.adds = info.dlpi_adds;
    if search.adds == search.without {
        return 1;
    }
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the name is not NULL, so the loader passes a C string that is valid during the call.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
    search.found = match std::env::var_os(LIBRARY_ENV).filter(|named| !named.is_empty()) {
        Some(named) => Path::new(&named).file_name() == Path::new(&*path).file_name(),
        None => path.contains("libcuda.so"),
    };
    c_int::from(search.found)
}
