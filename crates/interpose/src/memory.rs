//! Addresses that the program has from CUDA.
//!
//! Device memory has the server's addresses. The same addresses are reserved here, without access: so nothing of the program's own
//! can lie there, an address is either of the device or of the host, and the host's access to the device's addresses faults, as with a GPU.

use crate::servers::{at, is_here, number_of};
use crate::session;
use crate::thread;
use rgaps_remoting::{Call, Code};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: u64 = 4096;
/// How often the server is asked for memory at most, when this process has something at each address that it gives.
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
    /// Whether [`map_host`] mapped it.
    is_mapped: bool,
    region: Backing,
    /// A GPU of the server that has the region.
    pub(crate) device: u16,
}

/// The server's region for host memory.
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
    /// The GPUs that have copied from or to shared host memory, behind its start.
    users: BTreeSet<(u64, u16)>,
    /// Reserved addresses, from start to end, and the server that uses them. They stay reserved, since the server gives the same
    /// addresses again.
    reserved: BTreeMap<u64, (u64, usize)>,
}

fn tables() -> MutexGuard<'static, Tables> {
    static TABLES: Mutex<Tables> = Mutex::new(Tables {
        device: BTreeMap::new(),
        messages: BTreeMap::new(),
        host: BTreeMap::new(),
        users: BTreeSet::new(),
        reserved: BTreeMap::new(),
    });
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    fn host_at(&self, address: u64) -> Option<Host> {
        let (start, host) = self.host.range(..=address).next_back()?;
        (address - start < host.bytes).then_some(*host)
    }

    /// The GPUs that have copied from or to the shared host memory that begins at `start`.
    fn users_of(&self, start: u64) -> BTreeSet<u16> {
        let all = self.users.range((start, 0)..=(start, u16::MAX));
        all.map(|(_, gpu)| *gpu).collect()
    }

    /// Reserves for the current server those pages of a range that are not reserved for it yet. Fails where another server or the program
    /// has some.
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
            // SAFETY: a new mapping without access. `MAP_FIXED_NOREPLACE` has the kernel refuse it where anything is mapped.
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
                // SAFETY: `mmap` has just made this mapping, of this length, and nobody else knows its address.
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
        // The program or another server has something there. The allocation is kept for now, so that the server gives another address.
        taken.push(start);
    }
    for address in taken {
        session::send(&Call::Free { address }, &[])?;
    }
    found
}

/// Changes the access to the pages of a range of device memory. `is_whole`: also to those that other memory may share, the first and the
/// last one.
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
    // SAFETY: the range is device memory, whose pages `reserve` has mapped and keeps. The program has nothing there but managed memory,
    // for which the access changes when the program may use it and when it has freed it.
    let failed = unsafe { libc::mprotect(first as *mut _, (end - first) as usize, access) } != 0;
    match failed {
        true => Err(Code::OUT_OF_MEMORY),
        false => Ok(()),
    }
}

/// Makes the pages at the addresses of device memory readable and writable here, as memory of this host.
pub(crate) fn open(start: u64, bytes: u64) -> Result<(), Code> {
    protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE, true)
}

/// Takes the memory of [`open`] back, but not pages that other memory may share.
pub(crate) fn shut(start: u64, bytes: u64) {
    let end = (start + bytes) / PAGE_BYTES * PAGE_BYTES;
    let first = start.next_multiple_of(PAGE_BYTES);
    if first < end {
        // SAFETY: `reserve` has mapped these pages and keeps them; no other memory shares them. Their managed memory was freed or its
        // device reset, so by CUDA's contract the program does not use their bytes.
        unsafe { libc::madvise(first as *mut _, (end - first) as usize, libc::MADV_DONTNEED) };
    }
    // The pages stay accessible if the kernel refuses.
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
    let removed = tables().messages.remove(&number);
    removed
        .map(|range| range.device)
        .ok_or(Code::INVALID_HANDLE)
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

/// Forgets all memory on the current device, and resets it on the server.
pub(crate) fn reset() -> Result<(), Code> {
    session::wait_for_async_copies(0, u64::MAX)?;
    let device = thread::device();
    tables().device.retain(|_, range| range.device != device);
    tables().messages.retain(|_, range| !is_here(range.device));
    tables().users.retain(|(_, user)| *user != device);
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
    tables().host_at(address)
}

/// The region of the current server that holds all of a range, and the range's offset there, for a copy that the GPU `user` makes.
pub(crate) fn shared_at(address: u64, bytes: u64, user: u16) -> Option<(u64, u64)> {
    let mut tables = tables();
    let host = tables.host_at(address)?;
    let offset = address - host.start;
    let fits = bytes <= host.bytes - offset;
    match host.region {
        Backing::Shared(region) if fits && is_here(host.device) => {
            tables.users.insert((host.start, user));
            Some((region, offset))
        }
        _ => None,
    }
}

/// The server's region of the same size for host memory that CUDA knows and that is not shared, and a range's offset there. Makes the
/// region at the first use. `None` if the range is in no such memory, or the server refuses.
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

/// Maps host memory for the program, shared with the backend where that is possible.
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
    // SAFETY: a new private mapping. The kernel chooses a free address, so it replaces nothing.
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
        true => {
            tables.users.retain(|(of, _)| *of != start);
            tables.host.remove(&start)
        }
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

/// Waits for the GPUs that may use host memory, before that memory is given back: those that have copied from or to it, and the current
/// one, or another of the server that has the memory's region.
pub(crate) fn finish_uses(address: u64) -> Result<(), Code> {
    let of = host_at(address).map_or_else(thread::device, |host| host.device);
    let mut gpus = tables().users_of(address);
    gpus.insert(at(of, thread::device));
    let finish = |gpu| thread::with_device(gpu, || session::call(&Call::Synchronize, &[]));
    gpus.into_iter().try_for_each(|gpu| finish(gpu).map(drop))
}

/// Gives back host memory of [`map_host`].
pub(crate) fn unmap_host(start: u64) -> Result<(), Code> {
    let host = take_host(start, true).ok_or(Code::INVALID_VALUE)?;
    let settled = settle(&host);
    // SAFETY: `map_host` mapped `bytes` bytes at `start`. `take_host` has removed the entry, so this is the only call that unmaps them.
    // By CUDA's contract the program does not use memory that it gives back, and `settle` has waited for the bytes that threads of ours
    // write there.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_knows_the_gpus_that_have_copied_it() {
        // No other test has host memory there.
        let start = 0x7777_0000_0000;
        let host = Host {
            start,
            bytes: 4096,
            flags: 0,
            is_mapped: true,
            region: Backing::Shared(5),
            device: 0,
        };
        tables().host.insert(start, host);
        assert_eq!(shared_at(start + 16, 32, 1), Some((5, 16)));
        assert_eq!(shared_at(start, 4096, 3), Some((5, 0)));
        assert_eq!(shared_at(start + 16, 4096, 4), None);
        assert!(tables().users_of(start).into_iter().eq([1, 3]));
        assert_eq!(take_host(start, true), Some(host));
        assert!(tables().users_of(start).is_empty());
    }
}
