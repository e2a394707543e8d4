//! Modules and kernels.

use crate::abi::Code;
use crate::call::{call, put, put_named};
use crate::context::current;
use crate::kernel::{Module, MAX_THREADS};
use crate::library::Library;
use crate::ptx::Geometry;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::Arc;

#[no_mangle]
unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> c_int {
    call("cuModuleLoadData", |g| {
        let context = current()?;
        if module.is_null() || image.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's: text that ends in NUL. Compiled code starts with bytes that are no
        // text, and is refused.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let text = text.to_str().map_err(|_| Code::INVALID_IMAGE)?;
        let parsed = Module::parse(text, Arc::downgrade(&context))?;
        // Kernels that are not known by their names are interpreted.
        let handle = match parsed.is_strange() {
            true => g.libraries.add(Library::parse(text.as_bytes())?),
            false => g.modules.add(parsed),
        };
        // SAFETY: the caller's.
        unsafe { put(module, handle) }
    })
}

#[no_mangle]
extern "C" fn cuModuleUnload(module: usize) -> c_int {
    call("cuModuleUnload", |g| {
        current()?;
        match g.libraries.library(module) {
            Ok(_) => g.libraries.remove(g, module),
            Err(_) => g.modules.remove(module),
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut usize,
    module: usize,
    name: *const c_char,
) -> c_int {
    call("cuModuleGetFunction", |g| {
        // SAFETY: the caller's.
        unsafe {
            put_named(function, name, |name| match g.libraries.library(module) {
                Ok(_) => g.libraries.function(module, name),
                Err(_) => g.modules.function(module, name),
            })
        }
    })
}

#[no_mangle]
#[allow(clippy::too_many_arguments, reason = "they are the driver's")]
unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    parameters: *const *const u64,
    extra: *const *const c_void,
) -> c_int {
    call("cuLaunchKernel", |g| {
        if let Some(function) = g.libraries.get(function) {
            let geometry = Geometry {
                grid: [grid_x, grid_y, grid_z],
                block: [block_x, block_y, block_z],
                shared_bytes: shared_bytes as usize,
            };
            if !extra.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: the caller's: as many pointers as the kernel has parameters, to values of their sizes.
            return unsafe {
                super::library::launch(g, function, geometry, stream, parameters.cast())
            };
        }
        let context = current()?;
        let function = g.modules.get(function)?;
        let stream = context.stream(g, stream)?;
        let is_here = stream
            .context()
            .is_some_and(|of| Arc::ptr_eq(&of, &context));
        if !is_here || !function.is_of(&context) {
            return Err(Code::INVALID_HANDLE);
        }
        let blocks = [grid_x, grid_y, grid_z];
        let threads = u64::from(block_x) * u64::from(block_y) * u64::from(block_z);
        if blocks.contains(&0) || threads == 0 || threads > MAX_THREADS.into() {
            return Err(Code::INVALID_VALUE);
        }
        if parameters.is_null() || !extra.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's: as many pointers as the kernel has parameters, all 64 bits wide.
        // They are read now, as the driver does.
        let values: Vec<u64> = (0..function.parameters())
            .map(|i| unsafe { parameters.add(i).read().read_unaligned() })
            .collect();
        let on = Arc::downgrade(&stream);
        context
            .submit(g, &stream, Vec::new(), move || {
                function.run(on.clone(), &values)
            })
            .map(drop)
    })
}
