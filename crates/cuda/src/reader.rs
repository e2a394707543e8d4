//! Reading GPU memory that something else in this process allocated, into host memory.
//!
//! A topic on the host takes messages from any address, and only the driver knows which addresses
//! are a GPU's. It is asked only where the process has loaded it already: otherwise there can be
//! no such address, and a program without CUDA does not get a driver through us. Nor do we
//! initialise it: a process that did so could not use it in forked children any more.

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

/// Copies from GPUs' addresses.
#[derive(Debug)]
pub struct DeviceReader {
    driver: Arc<Driver>,
    /// By ordinal, made when a GPU's memory is first read.
    devices: Mutex<Vec<(c_int, Arc<ReadDevice>)>>,
}

#[derive(Debug)]
struct ReadDevice {
    copies: CudaStream,
    foreign: ForeignStreams,
}

/// What the driver knows of an address.
enum AddressKind {
    /// Nothing: ordinary host memory.
    Unknown,
    /// Host memory that GPUs can write.
    Pinned,
    /// Memory of the GPU of this ordinal.
    Device(c_int),
}

impl DeviceReader {
    /// The reader of this process. None: it has not loaded the driver.
    pub fn of_process() -> Option<&'static DeviceReader> {
        static READER: OnceLock<Option<DeviceReader>> = OnceLock::new();
        if let Some(known) = READER.get() {
            return known.as_ref();
        }
        if !is_driver_loaded() {
            return None;
        }
        // A driver that lacks functions that we need is none.
        let attach = || {
            Driver::attach().ok().map(|driver| DeviceReader {
                driver,
                devices: Mutex::default(),
            })
        };
        READER.get_or_init(attach).as_ref()
    }

    /// Copies from an address of a GPU after the work queued on `stream`, and waits. False: the
    /// address is the host's and nothing was copied; work on `stream` that may write there has
    /// finished all the same.
    ///
    /// # Safety
    /// If `from` is an address of a GPU, it is readable for `to.len()` bytes.
    pub unsafe fn read(&self, to: &mut [u8], from: u64, stream: Stream) -> Result<bool, CudaError> {
        let Some(asking) = self.ordinal_to_ask()? else {
            return Ok(false); // without a context there is neither memory nor work of a GPU
        };
        let kind = match self.address_kind(asking, from)? {
            // Copies to pageable memory have finished when they return; other work on a stream is
            // waited for where the user names it.
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
                // SAFETY: the driver says that it is a GPU's memory; our caller promises that it can be read for as many bytes.
                true => unsafe { device.copies.read(to, from) },
                false => Ok(()),
            });
        if outcome.is_err() {
            // A device that was reset is opened again the next time.
            self.devices().retain(|(known, _)| *known != ordinal);
        }
        outcome.map(|()| is_device)
    }

    /// A GPU that this process has a context of: the caller's, or the first whose primary context
    /// is in use.
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

    /// A 32-bit attribute of an address; none where the driver does not know it.
    fn attribute(&self, attribute: c_int, address: u64) -> Result<Option<u32>, CudaError> {
        let mut value: u32 = 0;
        // SAFETY: both attributes that are asked for are 32-bit numbers, written to ours; the
        // address is only looked up.
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

/// Whether the process has loaded the driver. Costs a look at a counter, but for the first time
/// after another library was loaded.
fn is_driver_loaded() -> bool {
    /// The loader's count of libraries when the driver was last not among them.
    static WITHOUT: AtomicU64 = AtomicU64::new(0);
    let mut search = Search {
        without: WITHOUT.load(Ordering::Relaxed),
        adds: 0,
        found: false,
    };
    // SAFETY: `look` gets what it is written for, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    if !search.found {
        WITHOUT.store(search.adds, Ordering::Relaxed);
    }
    search.found
}

struct Search {
    without: u64,
    adds: u64,
    found: bool,
}

/// Looks at one loaded library; anything but 0 ends the search.
unsafe extern "C" fn look(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a structure that is valid during the call, with a C string in it
    // or NULL, and what `is_driver_loaded` gave it.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    search.adds = info.dlpi_adds;
    if search.adds == search.without {
        return 1;
    }
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: it is not NULL, so it is the C string that the loader passes, valid during the call.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
    search.found = match std::env::var_os(LIBRARY_ENV).filter(|named| !named.is_empty()) {
        Some(named) => Path::new(&named).file_name() == Path::new(&*path).file_name(),
        None => path.contains("libcuda.so"),
    };
    c_int::from(search.found)
}
