//! Pools of device memory.

use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::{In, Out, PoolProperties};
use crate::handles::pools;
use crate::{notice, session};
use rgaps_remoting::Code;
use std::ffi::{c_int, c_uint};

/// `cudaMemAllocationTypePinned`, `cudaMemLocationTypeDevice`.
const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
/// Attributes whose value is a C int; the others are 64 bits wide.
const INT_ATTRIBUTES: [c_uint; 3] = [1, 2, 3];

/// Refuses an ordinal that is no device's.
fn ordinal(device: c_int) -> Result<u16, Code> {
    session::device(device)?;
    Ok(device as u16)
}

fn create(properties: In<PoolProperties>) -> Result<u64, Code> {
    let wanted = properties.get()?;
    if wanted.handles != 0 {
        notice::unsupported("cudaMemPoolCreate for other processes");
        return Err(Code::NOT_SUPPORTED);
    }
    if wanted.allocation != PINNED || wanted.location_kind != ON_DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    pools::create(ordinal(wanted.device)?, wanted.bytes_max as u64)
}

runtime! {
    fn cudaDeviceGetDefaultMemPool(pool: Out<u64>, device: c_int) {
        pool.check()?;
        pool.put(pools::default_of(ordinal(device)?)?)
    }

    fn cudaDeviceGetMemPool(pool: Out<u64>, device: c_int) {
        pool.check()?;
        pool.put(pools::used_by(ordinal(device)?)?)
    }

    fn cudaDeviceSetMemPool(device: c_int, pool: u64) {
        pools::set_used(ordinal(device)?, pool)
    }

    fn cudaMemPoolCreate(pool: Out<u64>, properties: In<PoolProperties>) {
        pool.check()?;
        pool.put(create(properties)?)
    }

    fn cudaMemPoolDestroy(pool: u64) {
        pools::destroy(pool)
    }

    fn cudaMemPoolTrimTo(pool: u64, bytes: usize) {
        pools::trim(pool, bytes as u64)
    }

    fn cudaMemPoolSetAttribute(pool: u64, attribute: c_uint, value: Out<u64>) {
        value.check()?;
        // SAFETY: by the contract of `cudaMemPoolSetAttribute`, `value`, which is not null, is the address of a C int for these
        // attributes and of 64 bits for all others, which the program keeps as they are until its call returns.
        let value = unsafe {
            match INT_ATTRIBUTES.contains(&attribute) {
                true => u64::from(value.bytes().cast::<c_uint>().read_unaligned()),
                false => value.bytes().cast::<u64>().read_unaligned(),
            }
        };
        pools::set(pool, attribute, value)
    }

    fn cudaMemPoolGetAttribute(pool: u64, attribute: c_uint, value: Out<u64>) {
        value.check()?;
        let found = pools::get(pool, attribute)?;
        // SAFETY: by the contract of `cudaMemPoolGetAttribute`, `value`, which is not null, is the address of a C int for these
        // attributes and of 64 bits for all others, which the program leaves to this call.
        unsafe {
            match INT_ATTRIBUTES.contains(&attribute) {
                true => value.bytes().cast::<c_uint>().write_unaligned(found as c_uint),
                false => value.bytes().cast::<u64>().write_unaligned(found),
            }
        }
        Ok(())
    }
}

runtime_on_stream! {
    fn cudaMallocFromPoolAsync "_ptsz" (default; address: Out<u64>, bytes: usize, pool: u64, stream: usize) {
        address.check()?;
        match bytes {
            0 => address.put(0),
            bytes => address.put(pools::allocate(pool, bytes as u64, stream_of(stream, default))?),
        }
    }
}
