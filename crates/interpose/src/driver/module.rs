//! Modules, libraries and launches. A module is a library here: CUDA loads a module into one context, and each device has only one.

use super::{driver, driver_on_stream};
use crate::abi::{Address, DriverLaunchConfig, In, Out, Text};
use crate::handles::streams::meant;
use crate::kernels::{attribute, Kernel, Library};
use crate::launch::{self, Launch};
use crate::{session, thread};
use rgaps_remoting::{Call, Code};
use std::ffi::{c_char, c_int, c_uint};

fn load(image: Address) -> Result<&'static Library, Code> {
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by the contract of the functions that load modules and libraries, the program passes a whole image (a fat binary, an ELF
    // file, or text that ends with a zero) that stays as it is until the call returns.
    unsafe { Library::load(image.cast()) }
}

/// Sends a library to the server. Gives its handle.
fn send(library: &'static Library) -> Result<usize, Code> {
    library.load_all()?;
    Ok(std::ptr::from_ref(library) as usize)
}

/// Sends a library, and has the server's driver load its code at once, so that an error in it is this call's.
fn send_now(library: &'static Library) -> Result<usize, Code> {
    let handle = send(library)?;
    let checked = library.load_now();
    if checked.is_err() {
        let _ = library.unload();
    }
    checked.map(|()| handle)
}

fn kernel(library: usize, name: Text) -> Result<usize, Code> {
    let found = Library::of(library)?.kernel(name.get()?);
    found.info()?;
    Ok(std::ptr::from_ref(found) as usize)
}

fn global(address: Out<u64>, bytes: Out<usize>, library: usize, name: Text) -> Result<(), Code> {
    let name = name.get()?.to_str().map_err(|_| Code::NOT_FOUND)?;
    let (start, size) = Library::of(library)?.variable(name)?;
    address.put_if_wanted(start);
    bytes.put_if_wanted(size as usize);
    Ok(())
}

/// Writes the offset and the size of a kernel's parameter.
fn parameter(
    function: usize,
    position: usize,
    offset: Out<usize>,
    bytes: Out<usize>,
) -> Result<(), Code> {
    let info = Kernel::of(function)?.info()?;
    let (at, size) = info.parameters.get(position).ok_or(Code::INVALID_VALUE)?;
    offset.put(*at as usize)?;
    bytes.put_if_wanted(*size as usize);
    Ok(())
}

driver! {
    fn cuModuleLoadData(module: Out<usize>, image: Address) {
        module.check()?;
        module.put(send_now(load(image)?)?)
    }

    // The options are for the compiler of PTX; the image is loaded as it is.
    fn cuModuleLoadDataEx(module: Out<usize>, image: Address, _count: c_uint, _options: Address, _values: Address) {
        module.check()?;
        module.put(send_now(load(image)?)?)
    }

    fn cuModuleLoadFatBinary(module: Out<usize>, image: Address) {
        module.check()?;
        module.put(send_now(load(image)?)?)
    }

    fn cuModuleLoad(module: Out<usize>, path: Text) {
        module.check()?;
        let path = path.get()?.to_string_lossy().into_owned();
        let file = std::fs::read(path).map_err(|_| Code(301))?;
        module.put(send_now(Library::load_file(file)?)?)
    }

    fn cuModuleUnload(module: usize) {
        Library::of(module)?.unload()
    }

    fn cuModuleGetFunction(function: Out<usize>, module: usize, name: Text) {
        function.check()?;
        function.put(kernel(module, name)?)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: usize, name: Text) {
        global(address, bytes, module, name)
    }

    fn cuLibraryLoadData(
        library: Out<usize>, image: Address, _jit_options: Address, _jit_values: Address, _jit_count: c_uint,
        _options: Address, _values: Address, _count: c_uint
    ) {
        library.check()?;
        library.put(send(load(image)?)?)
    }

    fn cuLibraryUnload(library: usize) {
        Library::of(library)?.unload()
    }

    fn cuLibraryGetKernel(function: Out<usize>, library: usize, name: Text) {
        function.check()?;
        function.put(kernel(library, name)?)
    }

    fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: usize, name: Text) {
        global(address, bytes, library, name)
    }

    fn cuKernelGetFunction(function: Out<usize>, kernel: usize) {
        Kernel::of(kernel)?;
        function.put(kernel)
    }

    fn cuFuncGetAttribute(value: Out<c_int>, number: c_int, function: usize) {
        value.put(attribute(Kernel::of(function)?.info()?, number))
    }

    fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
        let kernel = Kernel::of(function)?;
        kernel.info()?;
        session::call(&Call::KernelSet { kernel: kernel.id(), attribute, value }, &[])?;
        kernel.forget_info();
        Ok(())
    }

    fn cuFuncGetParamInfo(function: usize, position: usize, offset: Out<usize>, bytes: Out<usize>) {
        parameter(function, position, offset, bytes)
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: usize) {
        name.put(Kernel::of(function)?.c_name().as_ptr())
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: usize) {
        name.put(Kernel::of(kernel)?.c_name().as_ptr())
    }

    fn cuKernelGetAttribute(value: Out<c_int>, number: c_int, kernel: usize, device: c_int) {
        session::device(device)?;
        let info = thread::with_device(device as u16, || Kernel::of(kernel)?.info())?;
        value.put(attribute(info, number))
    }

    fn cuKernelGetParamInfo(kernel: usize, position: usize, offset: Out<usize>, bytes: Out<usize>) {
        parameter(kernel, position, offset, bytes)
    }

    // Hints for caches, which current GPUs do not need.
    fn cuFuncSetCacheConfig(function: usize, _configuration: c_int) {
        Kernel::of(function).map(drop)
    }

    fn cuFuncSetSharedMemConfig(function: usize, _configuration: c_int) {
        Kernel::of(function).map(drop)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: usize, block_threads: c_int, shared_bytes: usize, flags: c_uint
    ) {
        blocks.check()?;
        blocks.put(launch::occupancy(function, block_threads, shared_bytes, flags)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: usize, block_threads: c_int, shared_bytes: usize
    ) {
        blocks.check()?;
        blocks.put(launch::occupancy(function, block_threads, shared_bytes, 0)?)
    }
}

driver_on_stream! {
    fn cuLaunchKernel "_ptsz" (
        default; function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: u64, parameters: In<*const u8>, extra: In<usize>
    ) {
        let stream = meant(stream, default);
        let wanted = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes: shared_bytes as usize,
            stream,
            cooperative: false,
        };
        launch::launch_driver(function, &wanted, (parameters, extra), &[])
    }

    fn cuLaunchCooperativeKernel "_ptsz" (
        default; function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: u64, parameters: In<*const u8>
    ) {
        let wanted = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes: shared_bytes as usize,
            stream: meant(stream, default),
            cooperative: true,
        };
        launch::launch(function, &wanted, parameters, &[])
    }

    fn cuLaunchKernelEx "_ptsz" (
        default; config: In<DriverLaunchConfig>, function: usize, parameters: In<*const u8>, extra: In<usize>
    ) {
        let config = config.get()?;
        let wanted = Launch {
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes as usize,
            stream: meant(config.stream, default),
            cooperative: false,
        };
        // SAFETY: by the contract of `cuLaunchKernelEx`, `config.attributes` has `config.attribute_count` attributes, which the program
        // keeps as they are until its call returns; `launch_driver` does not keep them longer.
        let attributes = unsafe { launch::attributes(config.attributes, config.attribute_count) }?;
        launch::launch_driver(function, &wanted, (parameters, extra), attributes)
    }
}
