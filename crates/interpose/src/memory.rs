//! Addresses that the program has from CUDA.
//!
//! Device memory has the server's addresses. The same addresses are reserved here, without access: so nothing of the program's own
//! can lie there, an address is either of the device or of the host, and following one faults, as it does with a GPU.

use crate::servers::{at, is_here, number_of};
use crate::session;
use crate::thread;
use rgaps_remoting::{Call, Code};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: u64 = 4096;
/// How often another address is asked for, when one is taken here.
const ATTEMPTS_MAX: usize = 32;

/// Memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) device: u16,
    is_variable: bool,
}

/// Host memory of `cudaHostAlloc` or `cudaHostRegister`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Host {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    /// Ours, to give back.
    is_mapped: bool,
    region: Backing,
    /// A GPU of the server that has the region.
    pub(crate) device: u16,
}

/// What stands behind host memory on the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backing {
    /// Nothing.
    None,
    /// A region that is the same memory.
    Shared(u64),
    /// A region of the same size, where copies from the device wait until they are sent.
    Twin(u64),
}

#[derive(Default)]
struct Tables {
    device: BTreeMap<u64, Range>,
    /// Messages of topics, by number: two may be the same bytes.
    messages: BTreeMap<u64, Range>,
    host: BTreeMap<u64, Host>,
    /// Reserved addresses, from start to end, and the server that uses them; they stay reserved, since it gives the same addresses again.
    reserved: BTreeMap<u64, (u64, usize)>,
}

fn tables() -> MutexGuard<'static, Tables> {
    static TABLES: Mutex<Tables> = Mutex::new(Tables {
        device: BTreeMap::new(),
        messages: BTreeMap::new(),
        host: BTreeMap::new(),
        reserved: BTreeMap::new(),
    });
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    /// Reserves the pages of a range for the current server that it has not yet; fails where something else is mapped.
    fn reserve(&mut self, start: u64, bytes: u64) -> Result<(), ()> {
        let server = number_of(thread::device());
        let mut at = start / PAGE_BYTES * PAGE_BYTES;
        let end = start
            .checked_add(bytes)
            .ok_or(())?
            .next_multiple_of(PAGE_BYTES);
        while at < end {
            let before = self.reserved.range(..=at).next_back();
            if let Some((_, (covered, owner))) = before.filter(|(_, (to, _))| *to > at) {
                if *owner != server {
                    return Err(());
                }
                at = *covered;
                continue;
            }
            let next = self
                .reserved
                .range(at..)
                .next()
                .map_or(end, |(from, _)| (*from).min(end));
            // SAFETY: a new mapping without access, which replaces nothing.
            let mapped = unsafe {
                libc::mmap(
                    at as *mut libc::c_void,
                    (next - at) as usize,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE
                        | libc::MAP_ANONYMOUS
                        | libc::MAP_NORESERVE
                        | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(());
            }
            if mapped as u64 != at {
                // An old kernel takes the address as a wish.
                // SAFETY: the mapping was just made, and nobody knows it.
                unsafe { libc::munmap(mapped, (next - at) as usize) };
                return Err(());
            }
            self.reserved.insert(at, (next, server));
            at = next;
        }
        Ok(())
    }
}

/// Allocates device memory with a call that gives its address.
pub(crate) fn allocate(call: &Call<'_>, bytes: u64) -> Result<u64, Code> {
    let mut taken = Vec::new();
    let mut found = Err(Code::OUT_OF_MEMORY);
    for _ in 0..ATTEMPTS_MAX {
        let start = session::number(call)?;
        let mut tables = tables();
        if tables.reserve(start, bytes).is_ok() {
            let range = Range {
                start,
                bytes,
                device: thread::device(),
                is_variable: false,
            };
            tables.device.insert(start, range);
            found = Ok(start);
            break;
        }
        // Something of the program's own lies there. Kept meanwhile, so that the server gives another address.
        taken.push(start);
    }
    for address in taken {
        session::send(&Call::Free { address }, &[])?;
    }
    found
}

/// Changes the access to the pages of a range of device memory; of the first and the last one only if `is_whole`.
fn protect(start: u64, bytes: u64, access: i32, is_whole: bool) -> Result<(), Code> {
    let (first, end) = match is_whole {
        true => (
            start / PAGE_BYTES * PAGE_BYTES,
            (start + bytes).next_multiple_of(PAGE_BYTES),
        ),
        false => (
            start.next_multiple_of(PAGE_BYTES),
            (start + bytes) / PAGE_BYTES * PAGE_BYTES,
        ),
    };
    if first >= end {
        return Ok(());
    }
    // SAFETY: the pages are reserved by this module, so nothing of the program's own is there.
    let failed = unsafe { libc::mprotect(first as *mut _, (end - first) as usize, access) } != 0;
    match failed {
        true => Err(Code::OUT_OF_MEMORY),
        false => Ok(()),
    }
}

/// Makes the addresses of device memory memory of this host, too.
pub(crate) fn open(start: u64, bytes: u64) -> Result<(), Code> {
    protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE, true)
}

/// Gives that memory back. Pages that other memory may share stay.
pub(crate) fn shut(start: u64, bytes: u64) {
    let end = (start + bytes) / PAGE_BYTES * PAGE_BYTES;
    let first = start.next_multiple_of(PAGE_BYTES);
    if first < end {
        // SAFETY: pages of this module, which hold nothing any more.
        unsafe { libc::madvise(first as *mut _, (end - first) as usize, libc::MADV_DONTNEED) };
    }
    // They stay accessible if the kernel refuses.
    let _ = protect(start, bytes, libc::PROT_NONE, false);
}

/// Notes a variable of the program on the device.
pub(crate) fn add_variable(start: u64, bytes: u64) -> Result<(), Code> {
    let mut tables = tables();
    tables.reserve(start, bytes).map_err(|()| Code::UNKNOWN)?;
    let range = Range {
        start,
        bytes,
        device: thread::device(),
        is_variable: true,
    };
    tables.device.insert(start, range);
    Ok(())
}

/// Notes a message of a topic; fails where something of the program's own is.
pub(crate) fn add_message(number: u64, start: u64, bytes: u64) -> Result<(), ()> {
    let mut tables = tables();
    tables.reserve(start, bytes)?;
    let range = Range {
        start,
        bytes,
        device: thread::device(),
        is_variable: false,
    };
    tables.messages.insert(number, range);
    Ok(())
}

/// Forgets a message; gives its GPU.
pub(crate) fn forget_message(number: u64) -> Result<u16, Code> {
    let gone = tables().messages.remove(&number);
    gone.map(|range| range.device).ok_or(Code::INVALID_HANDLE)
}

/// Forgets an allocation, which begins at `start`.
pub(crate) fn forget(start: u64) -> Result<Range, Code> {
    let mut tables = tables();
    match tables.device.get(&start) {
        Some(range) if !range.is_variable => {}
        _ => return Err(Code::INVALID_VALUE),
    }
    tables.device.remove(&start).ok_or(Code::INVALID_VALUE)
}

/// Gives up everything on the current device.
pub(crate) fn reset() -> Result<(), Code> {
    session::wait_for_async_copies(0, u64::MAX)?;
    let device = thread::device();
    tables().device.retain(|_, range| range.device != device);
    tables().messages.retain(|_, range| !is_here(range.device));
    session::call(&Call::Reset, &[]).map(drop)
}

/// The device memory at an address.
pub(crate) fn device_at(address: u64) -> Option<Range> {
    let tables = tables();
    let has = |range: &&Range| address - range.start < range.bytes;
    let own = tables.device.range(..=address).next_back();
    let own = own.map(|(_, range)| range).filter(has);
    let holds = |range: &&Range| address >= range.start && has(range);
    own.or_else(|| tables.messages.values().find(holds))
        .copied()
}

/// Whether all of a range is device memory.
pub(crate) fn check(address: u64, bytes: u64) -> Result<(), Code> {
    let range = device_at(address).ok_or(Code::INVALID_VALUE)?;
    match bytes <= range.bytes - (address - range.start) {
        true => Ok(()),
        false => Err(Code::INVALID_VALUE),
    }
}

/// Host memory that CUDA knows, at an address.
pub(crate) fn host_at(address: u64) -> Option<Host> {
    let tables = tables();
    let (start, host) = tables.host.range(..=address).next_back()?;
    (address - start < host.bytes).then_some(*host)
}

/// The region of the current server that holds all of a range, and the range's offset there.
pub(crate) fn shared_at(address: u64, bytes: u64) -> Option<(u64, u64)> {
    let host = host_at(address)?;
    let offset = address - host.start;
    let fits = bytes <= host.bytes - offset;
    match host.region {
        Backing::Shared(region) if fits && is_here(host.device) => Some((region, offset)),
        _ => None,
    }
}

/// The region behind host memory of CUDA that holds all of a range and is not shared, and the range's offset there. It is made at the
/// first use; `None` if there is none.
pub(crate) fn twin_at(address: u64, bytes: u64) -> Result<Option<(u64, u64)>, Code> {
    let Some(host) = host_at(address) else {
        return Ok(None);
    };
    let offset = address - host.start;
    if bytes > host.bytes - offset {
        return Ok(None);
    }
    match host.region {
        Backing::Shared(_) => Ok(None),
        Backing::Twin(_) if !is_here(host.device) => Ok(None),
        Backing::Twin(region) => Ok(Some((region, offset))),
        Backing::None => {
            let Some((region, _)) = session::make_region(host.bytes)? else {
                return Ok(None);
            };
            let mut tables = tables();
            match tables.host.get_mut(&host.start) {
                Some(host) if host.region == Backing::None => {
                    host.region = Backing::Twin(region);
                    host.device = thread::device();
                    Ok(Some((region, offset)))
                }
                // Another thread has made one, or given the memory back.
                _ => {
                    drop(tables);
                    session::send(&Call::Unshare { region }, &[])?;
                    Ok(None)
                }
            }
        }
    }
}

/// Maps host memory, which the backend has, too, where it can.
pub(crate) fn map_host(bytes: u64, flags: u32) -> Result<u64, Code> {
    let (region, start) = match session::share(bytes)? {
        Some((region, start)) => (Backing::Shared(region), start),
        None => (Backing::None, map_private(bytes)?),
    };
    let host = Host {
        start,
        bytes,
        flags,
        is_mapped: true,
        region,
        device: thread::device(),
    };
    tables().host.insert(start, host);
    Ok(start)
}

fn map_private(bytes: u64) -> Result<u64, Code> {
    // SAFETY: a new private mapping where the kernel likes.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    match start == libc::MAP_FAILED {
        true => Err(Code::OUT_OF_MEMORY),
        false => Ok(start as u64),
    }
}

/// Takes host memory out of the table: of [`map_host`], or of [`register_host`].
fn take_host(start: u64, is_mapped: bool) -> Option<Host> {
    let mut tables = tables();
    let found = tables.host.get(&start)?;
    match found.is_mapped == is_mapped {
        true => tables.host.remove(&start),
        false => None,
    }
}

/// Waits for bytes that are on their way to host memory, and gives its region back.
fn settle(host: &Host) -> Result<(), Code> {
    match host.region {
        Backing::None => Ok(()),
        Backing::Shared(region) => at(host.device, || {
            session::send(&Call::Unshare { region }, &[])
        }),
        Backing::Twin(region) => at(host.device, || {
            session::wait_for_async_copies(host.start, host.bytes)?;
            session::send(&Call::Unshare { region }, &[])
        }),
    }
}

/// Waits until no copy uses host memory that CUDA knows: what was queued on its server before is done.
pub(crate) fn finish_uses(address: u64) -> Result<(), Code> {
    let device = host_at(address).map_or_else(thread::device, |host| host.device);
    at(device, || session::call(&Call::Synchronize, &[])).map(drop)
}

/// Gives back host memory of [`map_host`].
pub(crate) fn unmap_host(start: u64) -> Result<(), Code> {
    let host = take_host(start, true).ok_or(Code::INVALID_VALUE)?;
    let settled = settle(&host);
    // SAFETY: mapped by `map_host`, and given back once: the entry is gone.
    unsafe { libc::munmap(start as *mut libc::c_void, host.bytes as usize) };
    settled
}

/// Notes host memory of the program.
pub(crate) fn register_host(start: u64, bytes: u64, flags: u32) -> Result<(), Code> {
    let end = start
        .checked_add(bytes)
        .filter(|_| start != 0 && bytes > 0)
        .ok_or(Code::INVALID_VALUE)?;
    let mut tables = tables();
    let before = tables.host.range(..end).next_back();
    if before.is_some_and(|(at, host)| at + host.bytes > start) {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let host = Host {
        start,
        bytes,
        flags,
        is_mapped: false,
        region: Backing::None,
        device: thread::device(),
    };
    tables.host.insert(start, host);
    Ok(())
}

/// Forgets host memory of the program.
pub(crate) fn unregister_host(start: u64) -> Result<(), Code> {
    let host = take_host(start, false).ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?;
    settle(&host)
}
