//! Host memory that CUDA knows. It is the program's own and not the GPU's: copies may use it, kernels may not.

use super::runtime;
use crate::abi::Out;
use crate::{memory, notice, session};
use rgaps_remoting::Code;
use std::ffi::c_uint;

/// Flags of `cudaHostAlloc` and `cudaHostRegister`: portable, mapped, write-combined; portable, mapped, I/O memory, read-only.
const ALLOCATE_FLAGS: c_uint = 7;
const REGISTER_FLAGS: c_uint = 15;
const IO_MEMORY: c_uint = 4;

fn allocate(address: Out<u64>, bytes: usize, flags: c_uint) -> Result<(), Code> {
    address.check()?;
    if flags & !ALLOCATE_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    session::check_alive()?;
    match bytes {
        0 => address.put(0),
        bytes => address.put(memory::map_host(bytes as u64, flags)?),
    }
}

runtime! {
    fn cudaHostAlloc(address: Out<u64>, bytes: usize, flags: c_uint) {
        allocate(address, bytes, flags)
    }

    fn cudaMallocHost(address: Out<u64>, bytes: usize) {
        allocate(address, bytes, 0)
    }

    fn cudaFreeHost(address: u64) {
        if address == 0 {
            return session::check_alive();
        }
        memory::finish_uses(address)?;
        memory::unmap_host(address)
    }

    fn cudaHostRegister(address: u64, bytes: usize, flags: c_uint) {
        if flags & !REGISTER_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & IO_MEMORY != 0 {
            notice::unsupported("cudaHostRegister of I/O memory");
            return Err(Code::NOT_SUPPORTED);
        }
        session::check_alive()?;
        memory::register_host(address, bytes as u64, flags)
    }

    fn cudaHostUnregister(address: u64) {
        memory::finish_uses(address)?;
        memory::unregister_host(address)
    }

    fn cudaHostGetFlags(flags: Out<c_uint>, address: u64) {
        flags.put(memory::host_at(address).ok_or(Code::INVALID_VALUE)?.flags)
    }

    fn cudaHostGetDevicePointer(address: Out<u64>, _host: u64, _flags: c_uint) {
        address.check()?;
        notice::unsupported("cudaHostGetDevicePointer (kernels cannot read this host's memory)");
        Err(Code::NOT_SUPPORTED)
    }
}
