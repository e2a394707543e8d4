//! Pools of device memory, from which streams allocate.

use super::api::{cu, Api, PoolProperties};
use super::handles::Pool;
use super::session::{done, number, Outcome, Session};
use crate::call::Call;
use crate::codes::Code;
use crate::frame::FrameHeader;
use std::ffi::{c_int, c_void};

const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
/// Attributes whose value is a C int; the others are 64 bits wide.
const INT_ATTRIBUTES: [u32; 3] = [1, 2, 3];
/// Attributes are numbered up to here.
const ATTRIBUTE_MAX: u32 = 8;

impl Session {
    pub(super) fn pool_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::PoolDefault { pool } => {
                let mut raw = 0;
                let default = || {
                    // SAFETY: the out pointer is to a variable of this function; ordinals of devices are devices.
                    unsafe { cu!(api, pool_default(&mut raw, of.device.into())) }.map(|()| raw)
                };
                self.add_pool(pool, true, default)
            }
            Call::PoolCreate { pool, bytes_max } => {
                self.add_pool(pool, false, || create(&api, of.device, bytes_max))
            }
            Call::PoolDestroy { pool } => {
                let raw = self.pools.remove(pool)?;
                // SAFETY: a pool of this session, just taken out of its table, so no later call uses it.
                done(unsafe { cu!(api, pool_destroy(raw)) })
            }
            Call::PoolUse { pool } => {
                let pool = self.pools.get(pool)?;
                // SAFETY: a pool of this session; ordinals of devices are devices.
                done(unsafe { cu!(api, pool_use(of.device.into(), pool)) })
            }
            Call::PoolTrim { pool, bytes } => {
                let pool = self.pools.get(pool)?;
                // SAFETY: a pool of this session.
                done(unsafe { cu!(api, pool_trim(pool, bytes as usize)) })
            }
            Call::AllocateFromPool {
                bytes,
                pool,
                stream,
            } => self.allocate_from(of, bytes, pool, stream),
            _ => self.pool_attribute(call),
        }
    }

    /// Notes a pool that `make` gives under the client's number.
    fn add_pool(
        &mut self,
        pool: u64,
        is_default: bool,
        make: impl FnOnce() -> Result<usize, Code>,
    ) -> Result<Outcome, Code> {
        self.pools.is_free(pool)?;
        let raw = make()?;
        self.pools.pools.insert(pool, Pool { raw, is_default });
        done(Ok(()))
    }

    fn allocate_from(
        &mut self,
        of: &FrameHeader,
        bytes: u64,
        pool: u64,
        stream: u64,
    ) -> Result<Outcome, Code> {
        self.memory.admit(bytes)?;
        let (pool, stream) = (self.pools.get(pool)?, self.stream(of, stream)?);
        self.refuse_recording(stream)?;
        let (mut address, size) = (0, bytes as usize);
        // SAFETY: the out pointer is to a variable of this function; pool and stream are of this session.
        unsafe { cu!(self.api, allocate_from(&mut address, size, pool, stream))? };
        self.memory.add(address, bytes, of.device);
        number(address)
    }

    fn pool_attribute(&self, call: &Call<'_>) -> Result<Outcome, Code> {
        match *call {
            Call::PoolSet {
                pool,
                attribute,
                value,
            } => {
                let pool = self.pools.get(pool)?;
                let (mut short, mut long) = (value as c_int, value);
                let value = attribute_value(attribute, &mut short, &mut long)?;
                // SAFETY: a pool of this session; the value is as wide as the attribute.
                done(unsafe { cu!(self.api, pool_set(pool, attribute, value)) })
            }
            Call::PoolGet { pool, attribute } => {
                let pool = self.pools.get(pool)?;
                let (mut short, mut long) = (0, 0);
                let value = attribute_value(attribute, &mut short, &mut long)?;
                // SAFETY: a pool of this session; the value is as wide as the attribute.
                unsafe { cu!(self.api, pool_get(pool, attribute, value))? };
                number(long | short as u64)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

fn create(api: &Api, device: u16, bytes_max: u64) -> Result<usize, Code> {
    let properties = PoolProperties {
        allocation: PINNED,
        handles: 0,
        location_kind: ON_DEVICE,
        device: device.into(),
        security: std::ptr::null_mut(),
        bytes_max: bytes_max as usize,
        usage: 0,
        reserved: [0; 54],
    };
    let mut raw = 0;
    // SAFETY: the out pointer is to a variable of this function, as are the properties.
    unsafe { cu!(api, pool_create(&mut raw, &properties))? };
    Ok(raw)
}

/// Where the driver reads or writes an attribute's value.
fn attribute_value(attribute: u32, short: &mut c_int, long: &mut u64) -> Result<*mut c_void, Code> {
    match attribute {
        0 => Err(Code::INVALID_VALUE),
        attribute if INT_ATTRIBUTES.contains(&attribute) => Ok(std::ptr::from_mut(short).cast()),
        attribute if attribute <= ATTRIBUTE_MAX => Ok(std::ptr::from_mut(long).cast()),
        _ => Err(Code::INVALID_VALUE),
    }
}
