//! Pools of device memory.

use super::streams;
use crate::servers::at;
use crate::thread::with_device;
use crate::{memory, session};
use rgaps_remoting::{Call, Code};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Default)]
struct Pools {
    /// The device of each pool.
    devices: HashMap<u64, u16>,
    /// The pool that a device has from the start.
    defaults: HashMap<u16, u64>,
    /// The pool from which a device allocates, if that is not its first one.
    used: HashMap<u16, u64>,
}

fn pools() -> MutexGuard<'static, Pools> {
    static POOLS: OnceLock<Mutex<Pools>> = OnceLock::new();
    POOLS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn device_of(pool: u64) -> Result<u16, Code> {
    let device = pools().devices.get(&pool).copied();
    device.ok_or(Code::INVALID_VALUE)
}

/// The pool that a device has from the start.
pub(crate) fn default_of(device: u16) -> Result<u64, Code> {
    session::device(device.into())?;
    let mut pools = pools();
    if let Some(pool) = pools.defaults.get(&device) {
        return Ok(*pool);
    }
    let pool = session::mint();
    with_device(device, || session::send(&Call::PoolDefault { pool }, &[]))?;
    pools.devices.insert(pool, device);
    pools.defaults.insert(device, pool);
    Ok(pool)
}

/// The pool from which a device allocates.
pub(crate) fn used_by(device: u16) -> Result<u64, Code> {
    let used = pools().used.get(&device).copied();
    match used {
        Some(pool) => Ok(pool),
        None => default_of(device),
    }
}

/// Makes a device allocate from a pool.
pub(crate) fn set_used(device: u16, pool: u64) -> Result<(), Code> {
    if device_of(pool)? != device {
        return Err(Code::INVALID_VALUE);
    }
    with_device(device, || session::call(&Call::PoolUse { pool }, &[]))?;
    pools().used.insert(device, pool);
    Ok(())
}

pub(crate) fn create(device: u16, bytes_max: u64) -> Result<u64, Code> {
    let pool = session::mint();
    let call = Call::PoolCreate { pool, bytes_max };
    with_device(device, || session::call(&call, &[]))?;
    pools().devices.insert(pool, device);
    Ok(pool)
}

/// Destroys a pool. What was allocated from it stays until it is freed.
pub(crate) fn destroy(pool: u64) -> Result<(), Code> {
    let device = device_of(pool)?;
    {
        let mut pools = pools();
        if pools.defaults.get(&device) == Some(&pool) {
            return Err(Code::INVALID_VALUE);
        }
        pools.devices.remove(&pool);
        // Its device then allocates from the pool that it has from the start.
        pools.used.retain(|_, used| *used != pool);
    }
    at(device, || session::send(&Call::PoolDestroy { pool }, &[]))
}

pub(crate) fn set(pool: u64, attribute: u32, value: u64) -> Result<(), Code> {
    let call = Call::PoolSet {
        pool,
        attribute,
        value,
    };
    at(device_of(pool)?, || session::call(&call, &[])).map(drop)
}

pub(crate) fn get(pool: u64, attribute: u32) -> Result<u64, Code> {
    at(device_of(pool)?, || {
        session::number(&Call::PoolGet { pool, attribute })
    })
}

/// Gives unused memory of a pool back, until the pool has no more than `bytes` bytes.
pub(crate) fn trim(pool: u64, bytes: u64) -> Result<(), Code> {
    let call = Call::PoolTrim { pool, bytes };
    at(device_of(pool)?, || session::call(&call, &[])).map(drop)
}

/// Allocates from a pool, in the order of a stream.
pub(crate) fn allocate(pool: u64, bytes: u64, stream: u64) -> Result<u64, Code> {
    let device = device_of(pool)?;
    let call = Call::AllocateFromPool {
        bytes,
        pool,
        stream,
    };
    at(device, || streams::check_here(stream))?;
    with_device(device, || memory::allocate(&call, bytes))
}
