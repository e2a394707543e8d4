//! Host memory that a client of this host shares with its backend: what it copies from or to such memory crosses no socket.
//!
//! The backend makes a region, has the driver pin it, and sends the client its descriptor. Seals keep its size, so a client
//! cannot take pages away under a copy. The backend only copies the bytes of a region to and from GPUs, and never interprets
//! them. Copies name a region, an offset and an extent, which are checked against the region's size.

use super::api::{cu, Api};
use super::memory::span;
use crate::codes::Code;
use crate::extent::{Extent, Pitched};
use crate::limits::{MARKS_MAX, REGIONS_MAX, SHARED_BYTES_MAX};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const REGISTER_PORTABLE: u32 = 1;
const EVENT_WITHOUT_TIMES: u32 = 2;

struct Region {
    start: u64,
    bytes: u64,
    /// The device in whose context it is pinned, for all devices; `None` if it is not.
    pinned_by: Option<u16>,
}

/// The copy behind which an event is recorded: one that the client has numbered, or the last one of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Mark {
    /// By its number.
    Number(u16),
    /// By its thread.
    Thread(u16),
}

/// All regions of a client.
#[derive(Default)]
pub(crate) struct Regions {
    regions: HashMap<u64, Region>,
    bytes: u64,
    events: HashMap<(u16, Mark), usize>,
    /// The event that was recorded last for a mark, and its device.
    marked: HashMap<Mark, (u16, usize)>,
}

/// Makes shared memory whose size is sealed.
fn sealed_memory(bytes: u64) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let number = unsafe { libc::memfd_create(c"rgaps-gpu-shared".as_ptr(), flags) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nobody else knows it.
    let memory = unsafe { crate::socket::inherited(number) };
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: both calls take numbers.
    let failed = unsafe {
        libc::ftruncate(memory.as_raw_fd(), length) != 0
            || libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0
    };
    match failed {
        true => Err(io::Error::last_os_error()),
        false => Ok(memory),
    }
}

impl Region {
    fn map(memory: &OwnedFd, bytes: u64) -> io::Result<Region> {
        // SAFETY: a new mapping. The kernel chooses free addresses, so it replaces nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                memory.as_raw_fd(),
                0,
            )
        };
        match start == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Region {
                start: start as u64,
                bytes,
                pinned_by: None,
            }),
        }
    }

    /// Has the driver pin the region, so that copies run beside the calls that follow. A region that is not pinned is not used: a copy
    /// to it would keep all threads waiting.
    fn pin(&mut self, api: &Api, device: u16) -> Result<(), Code> {
        if self.pinned_by.is_some() {
            return Ok(());
        }
        let (start, bytes) = (self.start as *mut _, self.bytes as usize);
        // SAFETY: the mapping is this region's, and stays until `unmap`, which takes the registration away first.
        unsafe { cu!(api, host_register(start, bytes, REGISTER_PORTABLE))? };
        self.pinned_by = Some(device);
        Ok(())
    }

    /// Ends the mapping. If the driver does not unpin it, the mapping stays: the driver would still copy to its old pages after other
    /// memory has its addresses.
    fn unmap(&self, api: &Api) -> Result<(), Code> {
        if self.pinned_by.is_some() {
            // SAFETY: `pin` registered this address.
            unsafe { cu!(api, host_unregister(self.start as *mut _))? };
        }
        // SAFETY: `map` made this mapping for this region, which our caller drops next. The driver has it pinned no longer: it was just
        // unregistered, or never registered, or the device was reset that had pinned it.
        unsafe { libc::munmap(self.start as *mut _, self.bytes as usize) };
        Ok(())
    }
}

impl Regions {
    /// Makes a region of whole pages. The caller has entered the device's context.
    pub(crate) fn share(
        &mut self,
        api: &Api,
        device: u16,
        region: u64,
        bytes: u64,
    ) -> Result<OwnedFd, Code> {
        if bytes == 0 || bytes % 4096 != 0 || self.regions.contains_key(&region) {
            return Err(Code::INVALID_VALUE);
        }
        let fits = bytes <= SHARED_BYTES_MAX.saturating_sub(self.bytes);
        if !fits || self.regions.len() >= REGIONS_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        let memory = sealed_memory(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
        let mut new = Region::map(&memory, bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
        if let Err(code) = new.pin(api, device) {
            new.unmap(api)?;
            return Err(code);
        }
        self.bytes += bytes;
        self.regions.insert(region, new);
        Ok(memory)
    }

    /// Gives a region back. The client has waited for the copies that use it; if it has not, the driver does.
    pub(crate) fn release(&mut self, api: &Api, region: u64) -> Result<(), Code> {
        let found = self.regions.get(&region).ok_or(Code::INVALID_HANDLE)?;
        // A region that cannot be unmapped still counts, and can be released again.
        found.unmap(api)?;
        self.bytes -= found.bytes;
        self.regions.remove(&region);
        Ok(())
    }

    /// Where rows of a region are in this process, if all of them are inside it. The address of `at` is an offset in the region.
    pub(crate) fn locate(
        &mut self,
        api: &Api,
        device: u16,
        (region, at): (u64, &Pitched),
        extent: &Extent,
    ) -> Result<Pitched, Code> {
        let region = self.regions.get_mut(&region).ok_or(Code::INVALID_HANDLE)?;
        if at.array != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let span = span(at, extent).ok_or(Code::INVALID_VALUE)?;
        let end = at.address.checked_add(span).ok_or(Code::INVALID_VALUE)?;
        if end > region.bytes {
            return Err(Code::INVALID_VALUE);
        }
        region.pin(api, device)?;
        Ok(Pitched {
            address: region.start + at.address,
            ..*at
        })
    }

    /// Records an event behind what is queued on a stream.
    pub(crate) fn mark(
        &mut self,
        api: &Api,
        mark: Mark,
        device: u16,
        stream: usize,
    ) -> Result<usize, Code> {
        if matches!(mark, Mark::Number(number) if number >= MARKS_MAX) {
            return Err(Code::INVALID_VALUE);
        }
        let event = match self.events.get(&(device, mark)) {
            Some(event) => *event,
            None => {
                let mut event = 0;
                // SAFETY: the out pointer is to a variable of this function.
                unsafe { cu!(api, event_create(&mut event, EVENT_WITHOUT_TIMES))? };
                self.events.insert((device, mark), event);
                event
            }
        };
        // SAFETY: the event is the one just found; the stream is one of the session.
        unsafe { cu!(api, event_record(event, stream))? };
        self.marked.insert(mark, (device, event));
        Ok(event)
    }

    /// The events behind numbered copies.
    pub(crate) fn events(&self, numbers: &[u16]) -> Result<Vec<usize>, Code> {
        if numbers.len() > usize::from(MARKS_MAX) {
            return Err(Code::INVALID_VALUE);
        }
        let event = |number: &u16| self.marked.get(&Mark::Number(*number));
        Ok(numbers
            .iter()
            .filter_map(event)
            .map(|(_, event)| *event)
            .collect())
    }

    /// Forgets the events of a device that was reset. Regions that it had pinned are pinned again at their next use.
    pub(crate) fn reset(&mut self, device: u16) {
        self.events.retain(|(of, _), _| *of != device);
        self.marked.retain(|_, (of, _)| *of != device);
        let pinned = |region: &&mut Region| region.pinned_by == Some(device);
        self.regions
            .values_mut()
            .filter(pinned)
            .for_each(|region| region.pinned_by = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_int, c_uint, c_void};

    unsafe extern "C" fn register(_: *mut c_void, _: usize, _: c_uint) -> c_int {
        0
    }

    unsafe extern "C" fn unregister(_: *mut c_void) -> c_int {
        0
    }

    unsafe extern "C" fn refuse(_: *mut c_void, _: usize, _: c_uint) -> c_int {
        801
    }

    unsafe extern "C" fn refuse_to_unregister(_: *mut c_void) -> c_int {
        801
    }

    fn api() -> Api {
        Api {
            host_register: Some(register),
            host_unregister: Some(unregister),
            ..Api::default()
        }
    }

    fn extent(width_bytes: u64, height: u64) -> Extent {
        Extent {
            width_bytes,
            height,
            depth: 1,
        }
    }

    #[test]
    fn only_what_is_inside_a_region_may_be_named() {
        let (api, mut regions) = (api(), Regions::default());
        regions.share(&api, 0, 7, 8192).unwrap();
        let mut locate = |at, extent| regions.locate(&api, 0, (7, &at), &extent);
        let first = locate(Pitched::rows(0, 0), extent(8192, 1))
            .unwrap()
            .address;
        assert_eq!(
            locate(Pitched::rows(8191, 0), extent(1, 1)).map(|at| at.address),
            Ok(first + 8191)
        );
        assert!(locate(Pitched::rows(0, 4096), extent(4096, 2)).is_ok());
        for (at, extent) in [
            (Pitched::rows(1, 0), extent(8192, 1)),
            (Pitched::rows(8192, 0), extent(1, 1)),
            (Pitched::rows(u64::MAX, 0), extent(1, 1)),
            (Pitched::rows(0, 4097), extent(4096, 2)),
            (Pitched::rows(0, 8), extent(16, 2)),
            (Pitched::rows(0, u64::MAX), extent(1, 3)),
            (Pitched::rows(0, 0), extent(u64::MAX, 1)),
        ] {
            assert_eq!(locate(at, extent), Err(Code::INVALID_VALUE), "{at:?}");
        }
        let other = regions.locate(&api, 0, (8, &Pitched::rows(0, 0)), &extent(1, 1));
        assert_eq!(other, Err(Code::INVALID_HANDLE));
    }

    #[test]
    fn a_client_cannot_take_pages_away() {
        let (api, mut regions) = (api(), Regions::default());
        let memory = regions.share(&api, 0, 7, 8192).unwrap();
        for bytes in [0, 4096, 1 << 20] {
            // SAFETY: a number and a descriptor of this function.
            assert_ne!(unsafe { libc::ftruncate(memory.as_raw_fd(), bytes) }, 0);
        }
    }

    #[test]
    fn regions_have_limits_and_give_back_what_they_held() {
        let (api, mut regions) = (api(), Regions::default());
        for bytes in [0, 1, 4097, u64::MAX] {
            assert!(regions.share(&api, 0, 1, bytes).is_err(), "{bytes}");
        }
        regions.share(&api, 0, 1, 4096).unwrap();
        assert!(regions.share(&api, 0, 1, 4096).is_err(), "twice");
        assert!(regions.share(&api, 0, 2, SHARED_BYTES_MAX).is_err());
        assert_eq!(regions.release(&api, 1), Ok(()));
        assert_eq!(regions.release(&api, 1), Err(Code::INVALID_HANDLE));
        assert_eq!((regions.bytes, regions.regions.len()), (0, 0));
    }

    #[test]
    fn what_the_driver_does_not_unpin_still_counts() {
        let refusing = Api {
            host_unregister: Some(refuse_to_unregister),
            ..api()
        };
        let mut regions = Regions::default();
        regions.share(&refusing, 0, 1, 4096).unwrap();
        let refused = regions.release(&refusing, 1);
        assert_eq!(refused, Err(Code::NOT_SUPPORTED));
        assert_eq!((regions.bytes, regions.regions.len()), (4096, 1));
        assert_eq!(regions.release(&api(), 1), Ok(()));
        assert_eq!((regions.bytes, regions.regions.len()), (0, 0));
    }

    #[test]
    fn what_the_driver_does_not_pin_is_not_used() {
        let api = Api {
            host_register: Some(refuse),
            ..api()
        };
        let mut regions = Regions::default();
        let refused = regions.share(&api, 0, 1, 4096).map(drop);
        assert_eq!(refused, Err(Code::NOT_SUPPORTED));
        assert_eq!((regions.bytes, regions.regions.len()), (0, 0));
    }

    #[test]
    fn marks_have_a_limit() {
        let mut regions = Regions::default();
        let far = Mark::Number(MARKS_MAX);
        let refused = regions.mark(&api(), far, 0, 0);
        assert_eq!(refused, Err(Code::INVALID_VALUE));
        let many = vec![0; usize::from(MARKS_MAX) + 1];
        assert_eq!(regions.events(&many), Err(Code::INVALID_VALUE));
        assert_eq!(regions.events(&[1, MARKS_MAX]), Ok(Vec::new()));
    }
}
