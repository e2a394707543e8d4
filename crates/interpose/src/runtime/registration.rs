//! The functions that nvcc's code calls before `main`, to register fat binaries, kernels and variables.

use super::runtime;
use crate::abi::{Address, Out, Text};
use crate::kernels::{self, Kernel, Library};
use crate::notice;
use rgaps_remoting::Code;
use std::ffi::{c_char, c_int};
use std::panic::catch_unwind;

#[export_name = "rgaps_rt___cudaRegisterFatBinary"]
extern "C" fn register_fat_binary(wrapper: Address) -> usize {
    if wrapper.is_null() {
        return 0;
    }
    // SAFETY: nvcc's code calls this, with the address of its `__fatBinC_Wrapper_t`, which is not null. Wrapper and image are data of the
    // program or library, which nobody changes while it is loaded.
    std::ptr::from_ref(unsafe { Library::register(wrapper) }) as usize
}

#[export_name = "rgaps_rt___cudaRegisterFatBinaryEnd"]
extern "C" fn register_fat_binary_end(_library: usize) {}

// Runs when a library is unloaded, and at the end of the program, when the session may have ended. What the servers have loaded stays.
#[export_name = "rgaps_rt___cudaUnregisterFatBinary"]
extern "C" fn unregister_fat_binary(library: usize) {
    // SAFETY: nvcc's code passes what `register_fat_binary` returned: 0, or the address of a library, which `Library::register` has leaked.
    // So it lives as long as the process, and nobody has a `&mut` to it.
    if let Some(library) = unsafe { (library as *const Library).as_ref() } {
        library.unregister();
    }
}

// Called before the host's first use of a managed variable.
#[export_name = "rgaps_rt___cudaInitModule"]
extern "C" fn init_module(library: usize) -> c_char {
    let ready = catch_unwind(|| kernels::ready_managed(library));
    if let Err(code) = ready.unwrap_or(Err(Code::UNKNOWN)) {
        notice::once(&format!(
            "the program's __managed__ variables cannot be made (CUDA error {}); the program ends where it uses them",
            code.0
        ));
    }
    1
}

#[export_name = "rgaps_rt___cudaRegisterFunction"]
#[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
extern "C" fn register_function(
    library: usize,
    function: usize,
    _device_function: usize,
    name: Text,
    _thread_limit: c_int,
    _tid: usize,
    _bid: usize,
    _block: usize,
    _grid: usize,
    _warp: usize,
) {
    if let (Ok(library), Ok(name)) = (Library::of(library), name.get()) {
        Kernel::register(library, function, name);
    }
}

#[export_name = "rgaps_rt___cudaRegisterVar"]
#[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
extern "C" fn register_variable(
    library: usize,
    variable: usize,
    _device_address: usize,
    name: Text,
    _external: c_int,
    _bytes: usize,
    _constant: c_int,
    _global: c_int,
) {
    if let (Ok(library), Ok(name)) = (Library::of(library), name.get()) {
        kernels::register_variable(library, variable, name);
    }
}

#[export_name = "rgaps_rt___cudaRegisterManagedVar"]
#[allow(clippy::too_many_arguments, reason = "they are CUDA's")]
extern "C" fn register_managed_variable(
    library: usize,
    pointer: usize,
    _device_address: usize,
    name: Text,
    _external: c_int,
    _bytes: usize,
    _constant: c_int,
    _global: c_int,
) {
    if let (Ok(of), Ok(name)) = (Library::of(library), name.get()) {
        kernels::register_variable(of, pointer, name);
        kernels::register_managed(library, pointer);
    }
}

runtime! {
    fn __cudaGetKernel(kernel: Out<usize>, function: usize) {
        kernel.put(std::ptr::from_ref(Kernel::of(function)?) as usize)
    }

    fn cudaGetKernel(kernel: Out<usize>, function: usize) {
        kernel.put(std::ptr::from_ref(Kernel::of(function)?) as usize)
    }

    fn cudaGetFuncBySymbol(kernel: Out<usize>, function: usize) {
        kernel.put(std::ptr::from_ref(Kernel::of(function)?) as usize)
    }

    fn cudaFuncGetName(name: Out<*const c_char>, function: usize) {
        name.put(Kernel::of(function)?.c_name().as_ptr())
    }

    // The options are for linking and for PTX; the image is loaded as it is.
    fn cudaLibraryLoadData(
        library: Out<usize>, image: Address, _jit_options: Address, _jit_values: Address, _jit_count: u32,
        _options: Address, _values: Address, _count: u32
    ) {
        library.check()?;
        // SAFETY: by the contract of `cudaLibraryLoadData` the program passes null or a whole image (a fat binary, an ELF file, or text
        // that ends with a zero), which it keeps as it is until its call returns.
        let loaded = unsafe { Library::load(image.cast()) }?;
        loaded.load_all()?;
        library.put(std::ptr::from_ref(loaded) as usize)
    }

    fn cudaLibraryUnload(library: usize) {
        Library::of(library)?.unload()
    }

    fn cudaLibraryGetKernel(kernel: Out<usize>, library: usize, name: Text) {
        kernel.check()?;
        let found = Library::of(library)?.kernel(name.get()?);
        match found.info() {
            Ok(_) => kernel.put(std::ptr::from_ref(found) as usize),
            Err(code) => Err(code),
        }
    }

    fn cudaLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: usize, name: Text) {
        let name = name.get()?.to_str().map_err(|_| Code::NOT_FOUND)?;
        let (start, size) = Library::of(library)?.variable(name)?;
        address.put_if_wanted(start);
        bytes.put_if_wanted(size as usize);
        Ok(())
    }
}
