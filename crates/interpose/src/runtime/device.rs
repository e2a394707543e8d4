//! Devices. The server has described them when the session began, so this process answers nearly all questions.

use super::runtime;
use crate::abi::{put_text, In, Out, Text};
use crate::properties::{Field, FIELDS_12, FIELDS_13, SIZE_12, SIZE_13};
use crate::reset::reset;
use crate::{notice, session, thread, waits};
use rgaps_remoting::{Call, CallValue, Code, DeviceInfo};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Cache and bank configurations, which current GPUs take as hints.
const BANK_FOUR_BYTES: c_int = 1;
const CACHE_MAX: c_int = 3;
/// Attributes: compute capability.
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
/// The cache configuration and the flags that the program has set.
static CACHE: AtomicI32 = AtomicI32::new(0);
static FLAGS: AtomicU32 = AtomicU32::new(0);

/// Fills `cudaDeviceProp`.
fn properties(
    to: Out<u8>,
    of: &DeviceInfo,
    (bytes, total_at): (usize, usize),
    fields: &[Field],
) -> Result<(), Code> {
    to.check()?;
    let mut all = vec![0u8; bytes];
    let name = &of.name.as_bytes()[..of.name.len().min(255)];
    all[..name.len()].copy_from_slice(name);
    all[256..272].copy_from_slice(&of.uuid);
    all[total_at..total_at + 8].copy_from_slice(&of.total_bytes.to_le_bytes());
    for (offset, width, number) in fields {
        let value = session::attribute(of, *number).unwrap_or(0);
        let value = i64::from(value).to_le_bytes();
        all[*offset..offset + width].copy_from_slice(&value[..*width]);
    }
    // SAFETY: by CUDA's contract `to`, which is not null, is the program's `cudaDeviceProp`, which it leaves to this call. The exported
    // name tells its CUDA version, for which `bytes` is the size of the structure; `all` has as many.
    unsafe { to.bytes().copy_from_nonoverlapping(all.as_ptr(), bytes) };
    Ok(())
}

/// The first GPU with this compute capability and memory or more; the first of all if none has.
fn choose(to: Out<c_int>, wanted: In<u8>, total_at: usize, fields: &[Field]) -> Result<(), Code> {
    to.check()?;
    let number = |at: usize, width: usize| -> Result<u64, Code> {
        let bytes = (0..width).map(|byte| Ok(u64::from(wanted.at(at + byte)?) << (8 * byte)));
        bytes.sum()
    };
    let attribute = |number_of: c_int| {
        let field = fields.iter().find(|(_, _, number)| *number == number_of);
        field.map_or(Ok(0), |(at, width, _)| number(*at, *width))
    };
    let capability = (attribute(MAJOR)?, attribute(MINOR)?);
    let bytes = number(total_at, 8)?;
    let fits = |device: &DeviceInfo| {
        let of = |number| session::attribute(device, number).unwrap_or(0) as u64;
        (of(MAJOR), of(MINOR)) >= capability && device.total_bytes >= bytes
    };
    let found = session::devices()?.iter().position(fits);
    to.put(found.unwrap_or(0) as c_int)
}

#[export_name = "rgaps_rt12_cudaChooseDevice"]
extern "C" fn choose_device_12(to: Out<c_int>, wanted: In<u8>) -> c_int {
    super::finish(|| choose(to, wanted, SIZE_12.1, FIELDS_12))
}

#[export_name = "rgaps_rt12_cudaGetDeviceProperties_v2"]
extern "C" fn get_device_properties_12(to: Out<u8>, device: c_int) -> c_int {
    super::finish(|| properties(to, session::device(device)?, SIZE_12, FIELDS_12))
}

runtime! {
    fn cudaGetDeviceCount(count: Out<c_int>) {
        count.put(0)?;
        let devices = session::devices()?;
        session::answered_locally();
        count.put(devices.len() as c_int)
    }

    fn cudaGetDevice(device: Out<c_int>) {
        session::devices()?;
        session::answered_locally();
        device.put(thread::device().into())
    }

    fn cudaSetDevice(device: c_int) {
        session::device(device)?;
        session::answered_locally();
        thread::set_device(device as u16);
        Ok(())
    }

    fn cudaInitDevice(device: c_int, _device_flags: c_uint, _flags: c_uint) {
        session::device(device).map(drop)
    }

    fn cudaSetValidDevices(devices: In<c_int>, count: c_int) {
        for position in 0..count.max(0) {
            session::device(devices.at(position as usize)?)?;
        }
        Ok(())
    }

    fn cudaChooseDevice(to: Out<c_int>, wanted: In<u8>) {
        choose(to, wanted, SIZE_13.1, FIELDS_13)
    }

    fn cudaGetDeviceProperties(to: Out<u8>, device: c_int) {
        session::answered_locally();
        properties(to, session::device(device)?, SIZE_13, FIELDS_13)
    }

    fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        let device = session::device(device)?;
        session::answered_locally();
        value.put(session::attribute(device, attribute).ok_or(Code::INVALID_VALUE)?)
    }

    fn cudaDeviceGetPCIBusId(text: Out<c_char>, room: c_int, device: c_int) {
        put_text(text, room, &session::device(device)?.pci_bus_id)
    }

    fn cudaDeviceGetByPCIBusId(device: Out<c_int>, text: Text) {
        let wanted = text.get()?.to_string_lossy().to_lowercase();
        let found = session::devices()?.iter().position(|of| of.pci_bus_id.to_lowercase() == wanted);
        device.put(found.ok_or(Code::INVALID_VALUE)? as c_int)
    }

    fn cudaDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        session::device(peer)?;
        let device = session::device(device)?;
        session::answered_locally();
        can.put(device.peers.get(peer as usize).copied().unwrap_or(false).into())
    }

    fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        session::device(peer)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        session::call(&Call::PeerEnable { device: session::peer(peer)? }, &[]).map(drop)
    }

    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        // No access was given to the memory of another server.
        let device = session::peer(peer).map_err(|code| match code {
            Code::PEER_ACCESS_UNSUPPORTED => Code::PEER_ACCESS_NOT_ENABLED,
            code => code,
        })?;
        session::call(&Call::PeerDisable { device }, &[]).map(drop)
    }

    fn cudaDeviceSynchronize() {
        waits::device()
    }

    fn cudaDeviceReset() {
        reset()
    }

    fn cudaDeviceGetLimit(value: Out<usize>, limit: c_int) {
        value.put(session::number(&Call::Limit { limit: limit as u32 })? as usize)
    }

    fn cudaDeviceSetLimit(limit: c_int, value: usize) {
        session::call(&Call::LimitSet { limit: limit as u32, value: value as u64 }, &[]).map(drop)
    }

    fn cudaDeviceGetCacheConfig(configuration: Out<c_int>) {
        session::check_alive()?;
        configuration.put(CACHE.load(Ordering::Relaxed))
    }

    fn cudaDeviceSetCacheConfig(configuration: c_int) {
        session::check_alive()?;
        if !(0..=CACHE_MAX).contains(&configuration) {
            return Err(Code::INVALID_VALUE);
        }
        CACHE.store(configuration, Ordering::Relaxed);
        Ok(())
    }

    fn cudaDeviceGetSharedMemConfig(configuration: Out<c_int>) {
        session::check_alive()?;
        configuration.put(BANK_FOUR_BYTES)
    }

    fn cudaDeviceSetSharedMemConfig(_configuration: c_int) {
        session::check_alive()
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        let CallValue::Pair(low, high) = session::call(&Call::StreamPriorities, &[])? else {
            return Err(Code::UNKNOWN);
        };
        least.put_if_wanted(low as c_int);
        greatest.put_if_wanted(high as c_int);
        Ok(())
    }

    fn cudaGetDeviceFlags(flags: Out<c_uint>) {
        session::check_alive()?;
        flags.put(FLAGS.load(Ordering::Relaxed))
    }

    // Flags say how this host waits and whether it maps memory; waiting here is a read.
    fn cudaSetDeviceFlags(flags: c_uint) {
        const MAP_HOST: c_uint = 8;
        if flags & MAP_HOST != 0 {
            notice::once("cudaDeviceMapHost does nothing: kernels cannot read this host's memory");
        }
        session::devices()?;
        FLAGS.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cudaProfilerStart() {
        session::check_alive()?;
        session::write_statistics("start");
        Ok(())
    }

    fn cudaProfilerStop() {
        session::check_alive()?;
        session::write_statistics("stop");
        Ok(())
    }

    fn cudaCtxResetPersistingL2Cache() {
        session::check_alive()
    }

    // Of CUDA 12.
    fn cudaThreadSynchronize() {
        waits::device()
    }

    fn cudaThreadExit() {
        reset()
    }
}
