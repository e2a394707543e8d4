//! Pools of memory. Memory of all pools comes from the same place; what a pool holds is not counted.

use crate::abi::Code;
use crate::call::{call, put, Global};
use crate::context::current;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUmemPoolProps`.
#[repr(C)]
struct Properties {
    allocation: c_int,
    handles: c_int,
    place: c_int,
    device: c_int,
    security: *mut c_void,
    bytes_max: usize,
    usage: u16,
    reserved: [u8; 54],
}

const _: () = assert!(size_of::<Properties>() == 88);
/// Reuse rules, which are C ints, and the threshold of release.
const REUSE: std::ops::RangeInclusive<c_uint> = 1..=3;
const RELEASE_THRESHOLD: c_uint = 4;

struct Pool {
    position: usize,
    attributes: HashMap<c_uint, u64>,
}

impl Pool {
    fn new(position: usize) -> Pool {
        Pool {
            position,
            attributes: REUSE.map(|attribute| (attribute, 1)).collect(),
        }
    }
}

/// All pools, by handle; those that devices have from the start, and those that they use, by position.
#[derive(Default)]
pub(crate) struct Pools {
    pools: HashMap<usize, Pool>,
    defaults: HashMap<usize, usize>,
    used: HashMap<usize, usize>,
    last: usize,
}

impl Pools {
    fn add(&mut self, position: usize) -> usize {
        self.last += 1;
        let handle = 0x9001_0000 + self.last * 16;
        self.pools.insert(handle, Pool::new(position));
        handle
    }

    fn get(&mut self, pool: usize) -> Result<&mut Pool, Code> {
        self.pools.get_mut(&pool).ok_or(Code::INVALID_VALUE)
    }
}

fn pools(g: &Global) -> MutexGuard<'_, Pools> {
    let pools: &Mutex<Pools> = &g.pools;
    pools.lock().unwrap_or_else(PoisonError::into_inner)
}

#[no_mangle]
unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) -> c_int {
    call("cuDeviceGetDefaultMemPool", |g| {
        let position = g.position(device)?;
        let mut pools = pools(g);
        let handle = match pools.defaults.get(&position) {
            Some(handle) => *handle,
            None => {
                let handle = pools.add(position);
                pools.defaults.insert(position, handle);
                handle
            }
        };
        // SAFETY: the caller's.
        unsafe { put(pool, handle) }
    })
}

#[no_mangle]
extern "C" fn cuDeviceSetMemPool(device: c_int, pool: usize) -> c_int {
    call("cuDeviceSetMemPool", |g| {
        let position = g.position(device)?;
        let mut pools = pools(g);
        if pools.get(pool)?.position != position {
            return Err(Code::INVALID_VALUE);
        }
        pools.used.insert(position, pool);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemPoolCreate(pool: *mut usize, properties: *const Properties) -> c_int {
    call("cuMemPoolCreate", |g| {
        if properties.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's: a structure of this kind.
        let wanted = unsafe { properties.read() };
        let is_plain = wanted.security.is_null() && wanted.reserved == [0; 54] && wanted.usage == 0;
        if (wanted.allocation, wanted.handles, wanted.place) != (1, 0, 1) || !is_plain {
            return Err(Code::INVALID_VALUE);
        }
        if wanted.bytes_max as u64 > g.config().memory_bytes {
            return Err(Code::INVALID_VALUE);
        }
        let position = g.position(wanted.device)?;
        let handle = pools(g).add(position);
        // SAFETY: the caller's.
        unsafe { put(pool, handle) }
    })
}

#[no_mangle]
extern "C" fn cuMemPoolDestroy(pool: usize) -> c_int {
    call("cuMemPoolDestroy", |g| {
        let mut pools = pools(g);
        if pools.defaults.values().any(|default| *default == pool) {
            return Err(Code::INVALID_VALUE);
        }
        pools.used.retain(|_, used| *used != pool);
        pools
            .pools
            .remove(&pool)
            .map(drop)
            .ok_or(Code::INVALID_VALUE)
    })
}

#[no_mangle]
extern "C" fn cuMemPoolTrimTo(pool: usize, _bytes: usize) -> c_int {
    call("cuMemPoolTrimTo", |g| pools(g).get(pool).map(drop))
}

#[no_mangle]
unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: usize,
    attribute: c_uint,
    value: *const c_void,
) -> c_int {
    call("cuMemPoolSetAttribute", |g| {
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's: a value as wide as the attribute.
        let value = unsafe {
            match attribute {
                attribute if REUSE.contains(&attribute) => value.cast::<c_uint>().read().into(),
                RELEASE_THRESHOLD => value.cast::<u64>().read(),
                _ => return Err(Code::NOT_SUPPORTED),
            }
        };
        pools(g).get(pool)?.attributes.insert(attribute, value);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: usize,
    attribute: c_uint,
    value: *mut c_void,
) -> c_int {
    call("cuMemPoolGetAttribute", |g| {
        let found = pools(g).get(pool)?.attributes.get(&attribute).copied();
        // SAFETY: the caller's: room for a value as wide as the attribute.
        unsafe {
            match attribute {
                attribute if REUSE.contains(&attribute) => {
                    put(value.cast::<c_uint>(), found.unwrap_or(0) as c_uint)
                }
                RELEASE_THRESHOLD => put(value.cast::<u64>(), found.unwrap_or(0)),
                _ => Err(Code::NOT_SUPPORTED),
            }
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut u64,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> c_int {
    call("cuMemAllocFromPoolAsync", |g| {
        current()?.stream(g, stream)?;
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let position = pools(g).get(pool)?.position;
        if bytes as u64 > g.config().memory_bytes {
            return Err(Code::OUT_OF_MEMORY);
        }
        let at = g.memory_mut().allocate(bytes as u64, position)?;
        // SAFETY: the caller's.
        unsafe { put(address, at) }
    })
}
