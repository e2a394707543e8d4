//! Start-up, errors, devices, and how functions are found.

use super::driver;
use crate::abi::{put_text, Address, In, Out, Text};
use crate::errors::ERRORS;
use crate::handles::pools;
use crate::{notice, session};
use rgaps_remoting::Code;
use std::ffi::{c_char, c_int, c_uint, c_void, CString};

/// The version that this library implements. It reports no higher one, whatever the server's driver supports.
const VERSION_MAX: c_int = 13000;
/// `cuGetProcAddress`: found, or not.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
/// Flag of `cuGetProcAddress`: asks for the form that uses the calling thread's default stream.
const PER_THREAD: u64 = 2;

fn error_text(
    code: c_int,
    which: fn(&(i32, &'static str, &'static str, &'static str)) -> &'static str,
) -> Result<*const c_char, Code> {
    let found = ERRORS
        .iter()
        .find(|(number, _, driver, _)| *number == code && !driver.is_empty());
    Ok(which(found.ok_or(Code::INVALID_VALUE)?).as_ptr().cast())
}

/// The address of this library's function for a function of the driver; tries the newest version first.
pub(crate) fn address_of(name: &str, flags: u64) -> Option<*mut c_void> {
    let endings: &[&str] = match flags & PER_THREAD != 0 {
        true => &[
            "_v3_ptsz", "_v2_ptsz", "_ptsz", "_v2_ptds", "_ptds", "_v4", "_v3", "_v2", "",
        ],
        false => &["_v4", "_v3", "_v2", ""],
    };
    endings.iter().find_map(|ending| {
        let symbol = CString::new(format!("rgaps_cu_{name}{ending}")).ok()?;
        // SAFETY: `symbol` is a C string that outlives the call. RTLD_DEFAULT needs no handle: it searches all loaded libraries, of which
        // this is one.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
        (!found.is_null()).then_some(found)
    })
}

fn proc_address(
    name: Text,
    function: Out<*mut c_void>,
    flags: u64,
    status: Option<Out<c_int>>,
) -> Result<(), Code> {
    function.check()?;
    let name = name.get()?.to_string_lossy();
    let found = address_of(&name, flags);
    if let Some(status) = status {
        status.put_if_wanted(if found.is_some() { FOUND } else { NOT_FOUND });
    }
    function.put(found.unwrap_or(std::ptr::null_mut()))?;
    // No notice: a program that looks up all functions when it starts may never call this one.
    Ok(())
}

driver! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        session::devices().map(drop)
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.check()?;
        let driver = session::driver_version();
        version.put(driver.min(VERSION_MAX))
    }

    fn cuGetErrorName(code: c_int, text: Out<*const c_char>) {
        text.put(error_text(code, |(_, _, driver, _)| driver)?)
    }

    fn cuGetErrorString(code: c_int, text: Out<*const c_char>) {
        text.put(error_text(code, |(.., text)| text)?)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(session::devices()?.len() as c_int)
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        session::device(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(text: Out<c_char>, room: c_int, device: c_int) {
        let name = &session::device(device)?.name;
        let most = usize::try_from(room).unwrap_or(0).saturating_sub(1);
        put_text(text, room, &name[..name.len().min(most)])
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.put(session::device(device)?.uuid)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.put(session::device(device)?.uuid)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        bytes.put(session::device(device)?.total_bytes as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        value.put(session::attribute(session::device(device)?, attribute).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: c_int, device: c_int) {
        put_text(text, room, &session::device(device)?.pci_bus_id)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        let of = |number| session::attribute(session::device(device)?, number).ok_or(Code::INVALID_VALUE);
        major.put(of(75)?)?;
        minor.put(of(76)?)
    }

    fn cuDeviceGetByPCIBusId(device: Out<c_int>, text: Text) {
        device.check()?;
        let wanted = text.get()?;
        let found = session::devices()?.iter().position(|device| wanted.to_string_lossy().eq_ignore_ascii_case(&device.pci_bus_id));
        device.put(found.ok_or(Code::INVALID_DEVICE)? as c_int)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: c_int) {
        pool.check()?;
        session::device(device)?;
        pool.put(pools::default_of(device as u16)?)
    }

    fn cuDeviceGetMemPool(pool: Out<u64>, device: c_int) {
        pool.check()?;
        session::device(device)?;
        pool.put(pools::used_by(device as u16)?)
    }

    fn cuDeviceSetMemPool(device: c_int, pool: u64) {
        session::device(device)?;
        pools::set_used(device as u16, pool)
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        session::device(peer)?;
        can.put(session::device(device)?.peers.get(peer as usize).copied().unwrap_or(false).into())
    }

    fn cuGetProcAddress(name: Text, function: Out<*mut c_void>, _version: c_int, flags: u64) {
        proc_address(name, function, flags, None)
    }

    fn cuGetProcAddress_v2(
        name: Text, function: Out<*mut c_void>, _version: c_int, flags: u64, status: Out<c_int>
    ) {
        proc_address(name, function, flags, Some(status))
    }

    fn cuGetProcAddress_v2_ptsz(
        name: Text, function: Out<*mut c_void>, _version: c_int, flags: u64, status: Out<c_int>
    ) {
        proc_address(name, function, flags | PER_THREAD, Some(status))
    }

    // CUDA's static runtime asks for private tables, one of which proves that the driver is NVIDIA's. No answer is made up.
    fn cuGetExportTable(table: Out<Address>, id: In<[u8; 16]>) {
        table.put_if_wanted(std::ptr::null());
        let id: String = id.get()?.iter().map(|byte| format!("{byte:02x}")).collect();
        notice::once(&format!(
            "this program has CUDA's runtime linked into it, or needs a private table of NVIDIA's driver ({id}); neither works with a \
             GPU of another host: build the program with 'nvcc -cudart shared'"
        ));
        Err(Code::NOT_SUPPORTED)
    }
}
