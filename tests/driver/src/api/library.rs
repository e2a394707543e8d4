//! Libraries and their kernels.

use crate::abi::Code;
use crate::call::{call, put, put_named, Global};
use crate::context::current;
use crate::kernel::MAX_THREADS;
use crate::library::{Function, Library, SHARED_BYTES_OPTIN};
use crate::ptx::Geometry;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::atomic::Ordering;
use std::sync::Arc;

const FAT_BINARY_MAGIC: u32 = 0xBA55_ED50;
const SM_SHARED_BYTES: u64 = 228 << 10;
const SM_THREADS: u64 = 2048;
const SM_BLOCKS: u64 = 32;

/// # Safety
/// A fat binary, or text that ends in a zero.
unsafe fn bytes_of<'a>(image: *const c_void) -> &'a [u8] {
    // SAFETY: a fat binary says how long it is behind its magic number: 16 bits at 6, 64 bits at 8; text ends in a zero.
    unsafe {
        if image.cast::<u32>().read_unaligned() != FAT_BINARY_MAGIC {
            return CStr::from_ptr(image.cast()).to_bytes();
        }
        let head = image.cast::<u16>().add(3).read_unaligned() as usize;
        let body = image.cast::<u64>().add(1).read_unaligned() as usize;
        std::slice::from_raw_parts(image.cast(), head + body)
    }
}

#[no_mangle]
#[allow(clippy::too_many_arguments, reason = "they are the driver's")]
unsafe extern "C" fn cuLibraryLoadData(
    library: *mut usize,
    image: *const c_void,
    _jit_options: *const c_void,
    _jit_values: *const c_void,
    _jit_count: c_uint,
    _options: *const c_void,
    _values: *const c_void,
    _count: c_uint,
) -> c_int {
    call("cuLibraryLoadData", |g| {
        if library.is_null() || image.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's.
        let parsed = Library::parse(unsafe { bytes_of(image) })?;
        // SAFETY: the caller's.
        unsafe { put(library, g.libraries.add(parsed)) }
    })
}

/// The module of a library is the library.
#[no_mangle]
extern "C" fn cuLibraryGetModule(module: *mut usize, library: usize) -> c_int {
    call("cuLibraryGetModule", |g| {
        if module.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        g.libraries.library(library)?;
        // SAFETY: the caller's.
        unsafe { put(module, library) }
    })
}

#[no_mangle]
extern "C" fn cuLibraryUnload(library: usize) -> c_int {
    call("cuLibraryUnload", |g| g.libraries.remove(g, library))
}

#[no_mangle]
unsafe extern "C" fn cuLibraryGetKernel(
    kernel: *mut usize,
    library: usize,
    name: *const c_char,
) -> c_int {
    call("cuLibraryGetKernel", |g| {
        // SAFETY: the caller's.
        unsafe { put_named(kernel, name, |name| g.libraries.function(library, name)) }
    })
}

/// # Safety
/// Places for an address and a number, and null or a C string.
unsafe fn put_variable(
    g: &Global,
    (address, bytes): (*mut u64, *mut usize),
    library: usize,
    (name, is_managed): (*const c_char, bool),
) -> Result<(), Code> {
    let context = current()?;
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's: a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let library = g.libraries.library(library)?;
    let (start, size) = library.variable(g, &context, (&name, is_managed))?;
    // SAFETY: the caller's.
    unsafe {
        put(address, start)?;
        put(bytes, size)
    }
}

#[no_mangle]
unsafe extern "C" fn cuLibraryGetGlobal(
    address: *mut u64,
    bytes: *mut usize,
    library: usize,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's.
    call("cuLibraryGetGlobal", |g| unsafe {
        put_variable(g, (address, bytes), library, (name, false))
    })
}

#[no_mangle]
unsafe extern "C" fn cuLibraryGetManaged(
    address: *mut u64,
    bytes: *mut usize,
    library: usize,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's.
    call("cuLibraryGetManaged", |g| unsafe {
        put_variable(g, (address, bytes), library, (name, true))
    })
}

fn find(g: &Global, kernel: usize) -> Result<Arc<Function>, Code> {
    g.libraries.get(kernel).ok_or(Code::INVALID_HANDLE)
}

#[no_mangle]
unsafe extern "C" fn cuKernelGetParamInfo(
    kernel: usize,
    position: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> c_int {
    call("cuKernelGetParamInfo", |g| {
        let function = find(g, kernel)?;
        let parameter = function.kernel().parameters.get(position).copied();
        let (at, size) = parameter.ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's.
        unsafe {
            put(offset, at)?;
            put(bytes, size)
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuKernelGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    kernel: usize,
    device: c_int,
) -> c_int {
    call("cuKernelGetAttribute", |g| {
        g.position(device)?;
        let function = find(g, kernel)?;
        let of = function.kernel();
        let found = match attribute {
            0 => of.threads_max.unwrap_or(MAX_THREADS) as c_int, // MAX_THREADS_PER_BLOCK
            1 => of.shared_bytes as c_int,                       // SHARED_SIZE_BYTES
            2 => 0,                                              // CONST_SIZE_BYTES
            3 => of.local_bytes as c_int,                        // LOCAL_SIZE_BYTES
            4 => of.registers.min(255) as c_int,                 // NUM_REGS
            5 | 6 => 90,                                         // PTX_VERSION, BINARY_VERSION
            7 => 0,                                              // CACHE_MODE_CA
            8 => function.dynamic_shared_max.load(Ordering::Acquire) as c_int,
            9 => -1, // PREFERRED_SHARED_MEMORY_CARVEOUT
            10..=15 => 0,
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the caller's.
        unsafe { put(value, found) }
    })
}

#[no_mangle]
extern "C" fn cuKernelSetAttribute(
    attribute: c_int,
    value: c_int,
    kernel: usize,
    device: c_int,
) -> c_int {
    call("cuKernelSetAttribute", |g| {
        g.position(device)?;
        let function = find(g, kernel)?;
        match attribute {
            8 if (0..=SHARED_BYTES_OPTIN as c_int).contains(&value) => {
                function
                    .dynamic_shared_max
                    .store(value as u32, Ordering::Release);
                Ok(())
            }
            9 if (-1..=100).contains(&value) => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

/// Queues a launch of a library's kernel.
///
/// # Safety
/// As many pointers as the kernel has parameters, to values of their sizes.
pub(crate) unsafe fn launch(
    g: &Global,
    function: Arc<Function>,
    geometry: Geometry,
    stream: usize,
    parameters: *const *const c_void,
) -> Result<(), Code> {
    let context = current()?;
    let stream = context.stream(g, stream)?;
    if !stream
        .context()
        .is_some_and(|of| Arc::ptr_eq(&of, &context))
    {
        return Err(Code::INVALID_HANDLE);
    }
    function.check(&geometry)?;
    let of = function.kernel();
    let end = of
        .parameters
        .last()
        .map_or(0, |(offset, bytes)| offset + bytes);
    let mut values = vec![0u8; end];
    for (position, (offset, bytes)) in of.parameters.iter().enumerate() {
        if parameters.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's. They are read now, as the driver does.
        unsafe {
            let value = parameters.add(position).read();
            values[*offset..]
                .as_mut_ptr()
                .copy_from_nonoverlapping(value.cast(), *bytes);
        }
    }
    let owner = Arc::downgrade(&context);
    let work = move || {
        if let Some(context) = owner.upgrade() {
            function.run(&context, &values, geometry);
        }
    };
    context.submit(g, &stream, Vec::new(), work).map(drop)
}

#[no_mangle]
#[allow(clippy::too_many_arguments, reason = "they are the driver's")]
unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    parameters: *const *const c_void,
) -> c_int {
    call("cuLaunchCooperativeKernel", |g| {
        let geometry = Geometry {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes: shared_bytes as usize,
        };
        // SAFETY: the caller's. Barriers over the grid are of an instruction that is not interpreted.
        unsafe { launch(g, find(g, function)?, geometry, stream, parameters) }
    })
}

/// As `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *const c_void,
    attribute_count: c_uint,
}

#[no_mangle]
unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: usize,
    parameters: *const *const c_void,
    _extra: *const *const c_void,
) -> c_int {
    call("cuLaunchKernelEx", |g| {
        // SAFETY: the caller's. Attributes change when and where a kernel runs, not what it does.
        unsafe {
            let config = config.as_ref().ok_or(Code::INVALID_VALUE)?;
            let geometry = Geometry {
                grid: config.grid,
                block: config.block,
                shared_bytes: config.shared_bytes as usize,
            };
            launch(g, find(g, function)?, geometry, config.stream, parameters)
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: usize,
    block_threads: c_int,
    shared_bytes: usize,
    flags: c_uint,
) -> c_int {
    call(
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        |g| {
            let function = find(g, function)?;
            let threads = u64::try_from(block_threads)
                .ok()
                .filter(|threads| *threads > 0);
            let threads = threads.filter(|_| flags <= 1).ok_or(Code::INVALID_VALUE)?;
            let shared = (function.kernel().shared_bytes + shared_bytes) as u64;
            let by_shared = SM_SHARED_BYTES.checked_div(shared).unwrap_or(SM_BLOCKS);
            let fit = (SM_THREADS / threads).min(by_shared).min(SM_BLOCKS);
            let fit = if threads > MAX_THREADS.into() { 0 } else { fit };
            // SAFETY: the caller's.
            unsafe { put(blocks, fit as c_int) }
        },
    )
}

#[no_mangle]
unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: usize,
    blocks: c_int,
    block_threads: c_int,
) -> c_int {
    call("cuOccupancyAvailableDynamicSMemPerBlock", |g| {
        let function = find(g, function)?;
        let blocks = usize::try_from(blocks)
            .ok()
            .filter(|blocks| *blocks > 0 && block_threads > 0);
        let all = SM_SHARED_BYTES as usize / blocks.ok_or(Code::INVALID_VALUE)?;
        let left = all.saturating_sub(function.kernel().shared_bytes + 1024);
        // SAFETY: the caller's.
        unsafe { put(bytes, left.min(SHARED_BYTES_OPTIN as usize)) }
    })
}
