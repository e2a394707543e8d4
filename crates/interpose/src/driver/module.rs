//! Modules, libraries and launches. A module is a library: the difference is which context has it, and each device has one.

use super::driver;
use crate::abi::{Address, In, Out, Text};
use crate::kernels::{attribute, Kernel, Library};
use crate::launch::{self, Launch};
use crate::session;
use rgaps_remoting::{Call, Code};
use std::ffi::{c_int, c_uint};

fn load(image: Address) -> Result<usize, Code> {
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the program passes an image in memory, as CUDA's function demands.
    let library = unsafe { Library::load(image.cast()) }?;
    library.load_all()?;
    Ok(std::ptr::from_ref(library) as usize)
}

/// Also has the driver look at the code.
fn load_now(image: Address) -> Result<usize, Code> {
    let library = load(image)?;
    let checked = Library::of(library)?.load_now();
    if checked.is_err() {
        let _ = Library::of(library)?.unload();
    }
    checked.map(|()| library)
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

driver! {
    fn cuModuleLoadData(module: Out<usize>, image: Address) {
        module.check()?;
        module.put(load_now(image)?)
    }

    // The options are for the compiler of PTX; the image is loaded as it is.
    fn cuModuleLoadDataEx(module: Out<usize>, image: Address, _count: c_uint, _options: Address, _values: Address) {
        module.check()?;
        module.put(load_now(image)?)
    }

    fn cuModuleLoadFatBinary(module: Out<usize>, image: Address) {
        module.check()?;
        module.put(load_now(image)?)
    }

    fn cuModuleLoad(module: Out<usize>, path: Text) {
        module.check()?;
        let path = path.get()?.to_string_lossy().into_owned();
        let mut image = std::fs::read(path).map_err(|_| Code(301))?;
        // Text ends with a zero.
        image.push(0);
        module.put(load_now(image.as_ptr().cast())?)
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
        library.put(load(image)?)
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
        let info = Kernel::of(function)?.info()?;
        let (at, size) = info.parameters.get(position).ok_or(Code::INVALID_VALUE)?;
        offset.put(*at as usize)?;
        bytes.put_if_wanted(*size as usize);
        Ok(())
    }

    fn cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: u64, parameters: In<*const u8>, extra: In<usize>
    ) {
        let wanted = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes: shared_bytes as usize,
            stream,
            cooperative: false,
        };
        launch::launch_driver(function, &wanted, parameters, extra)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: usize, block_threads: c_int, shared_bytes: usize
    ) {
        blocks.check()?;
        blocks.put(launch::occupancy(function, block_threads, shared_bytes, 0)?)
    }
}
