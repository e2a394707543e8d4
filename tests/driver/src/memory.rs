//! The address space: handles, reservations, and what is mapped, allocated or registered.

use crate::abi::{Code, ACCESS_NONE, ACCESS_READ, ACCESS_READ_WRITE};
use crate::physical::{Physical, GRANULARITY};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// Tables of everything that has an address or a handle.
#[derive(Default)]
pub(crate) struct Memory {
    handles: HashMap<u64, Arc<Physical>>,
    last_handle: u64,
    reservations: BTreeMap<u64, u64>,
    ranges: BTreeMap<u64, Range>,
}

struct Range {
    bytes: u64,
    kind: Kind,
}

enum Kind {
    /// Of `cuMemMap`, with masks of the GPUs that may read and write.
    Mapped {
        memory: Arc<Physical>,
        readers: u32,
        writers: u32,
    },
    /// Of `cuMemAlloc`, on the GPU at this position.
    Allocated { position: usize },
    /// Host memory of the user, registered in this context.
    Registered {
        context: usize,
        /// Work may read it and not write.
        is_read_only: bool,
    },
}

impl Kind {
    fn is_read_only(&self) -> bool {
        matches!(
            self,
            Kind::Registered {
                is_read_only: true,
                ..
            }
        )
    }
}

/// What an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Memory that the driver has not heard of.
    Pageable,
    /// Registered host memory.
    Pinned,
    /// Memory of the GPU at this position.
    Device(usize),
    /// Reserved addresses with nothing behind them.
    Nothing,
}

impl Memory {
    pub(crate) fn add_handle(&mut self, memory: Physical) -> u64 {
        self.last_handle += 1;
        // Far from zero and from small numbers, which a mistaken caller would pass.
        let handle = 0x7e57_0000_0000 + self.last_handle;
        self.handles.insert(handle, Arc::new(memory));
        handle
    }

    pub(crate) fn handle(&self, handle: u64) -> Result<&Arc<Physical>, Code> {
        self.handles.get(&handle).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Code> {
        self.handles
            .remove(&handle)
            .map(drop)
            .ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64, Code> {
        let alignment = alignment.max(GRANULARITY);
        if bytes == 0 || bytes % GRANULARITY != 0 || !alignment.is_power_of_two() {
            return Err(Code::INVALID_VALUE);
        }
        let padded = bytes.checked_add(alignment).ok_or(Code::INVALID_VALUE)?;
        let start = map_nothing(padded, libc::PROT_NONE)?;
        let base = start.next_multiple_of(alignment);
        unmap(start, base - start);
        unmap(base + bytes, start + padded - (base + bytes));
        self.reservations.insert(base, bytes);
        Ok(base)
    }

    pub(crate) fn unreserve(&mut self, base: u64, bytes: u64) -> Result<(), Code> {
        let in_use = self
            .ranges
            .range(base..base.saturating_add(bytes))
            .next()
            .is_some();
        if self.reservations.get(&base) != Some(&bytes) || in_use {
            return Err(Code::INVALID_VALUE);
        }
        self.reservations.remove(&base);
        unmap(base, bytes);
        Ok(())
    }

    pub(crate) fn map(
        &mut self,
        at: u64,
        bytes: u64,
        offset: u64,
        handle: u64,
    ) -> Result<(), Code> {
        let memory = self.handle(handle)?.clone();
        let even = at % GRANULARITY == 0 && bytes % GRANULARITY == 0 && bytes > 0;
        let reserved = self
            .reservations
            .range(..=at)
            .next_back()
            .is_some_and(|(base, size)| {
                at.checked_add(bytes).is_some_and(|end| end <= base + size)
            });
        if !even || offset != 0 || bytes > memory.bytes || !reserved || self.overlaps(at, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: just checked: inside one of our reservations, with nothing mapped there.
        unsafe { memory.place(at, bytes)? };
        let kind = Kind::Mapped {
            memory,
            readers: 0,
            writers: 0,
        };
        self.ranges.insert(at, Range { bytes, kind });
        Ok(())
    }

    /// Takes away one mapping, or several that the range covers exactly.
    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), Code> {
        for (start, size) in self.whole_mappings(at, bytes)? {
            // SAFETY: one of our own mappings goes back to being reserved.
            let back = unsafe {
                libc::mmap(
                    start as usize as *mut c_void,
                    size as usize,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            if back == libc::MAP_FAILED {
                return Err(Code::UNMAP_FAILED);
            }
            self.ranges.remove(&start);
        }
        Ok(())
    }

    /// Gives the GPU at `position` this access, and the CPU what any GPU has.
    pub(crate) fn set_access(
        &mut self,
        at: u64,
        bytes: u64,
        position: usize,
        flags: c_uint,
        are_peers: bool,
    ) -> Result<(), Code> {
        if ![ACCESS_NONE, ACCESS_READ, ACCESS_READ_WRITE].contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        for (start, size) in self.whole_mappings(at, bytes)? {
            let range = self.ranges.get_mut(&start).ok_or(Code::INVALID_VALUE)?;
            let Kind::Mapped {
                memory,
                readers,
                writers,
            } = &mut range.kind
            else {
                return Err(Code::INVALID_VALUE);
            };
            if memory.position != position && !are_peers {
                return Err(Code::INVALID_DEVICE);
            }
            let bit = 1 << position;
            (*readers, *writers) = (*readers & !bit, *writers & !bit);
            *readers |= if flags != ACCESS_NONE { bit } else { 0 };
            *writers |= if flags == ACCESS_READ_WRITE { bit } else { 0 };
            let protection = match (*readers, *writers) {
                (0, _) => libc::PROT_NONE,
                (_, 0) => libc::PROT_READ,
                _ => libc::PROT_READ | libc::PROT_WRITE,
            };
            protect(start, size, protection)?;
        }
        Ok(())
    }

    /// The memory at an address, if a range of whole pages is mapped without a gap, all of one GPU.
    pub(crate) fn physical(&self, at: u64, bytes: u64) -> Result<Arc<Physical>, Code> {
        let end = at.checked_add(bytes).filter(|end| *end > at);
        let end = end.filter(|end| at % 4096 == 0 && end % 4096 == 0);
        let end = end.ok_or(Code::INVALID_VALUE)?;
        let mut first: Option<Arc<Physical>> = None;
        let mut next = at;
        while next < end {
            let Some((
                start,
                Range {
                    bytes,
                    kind: Kind::Mapped { memory, .. },
                },
            )) = self.range_at(next)
            else {
                return Err(Code::INVALID_VALUE);
            };
            let first = first.get_or_insert_with(|| memory.clone());
            if first.position != memory.position {
                return Err(Code::INVALID_VALUE);
            }
            next = start + bytes;
        }
        first.ok_or(Code::INVALID_VALUE)
    }

    fn whole_mappings(&self, at: u64, bytes: u64) -> Result<Vec<(u64, u64)>, Code> {
        let end = at
            .checked_add(bytes)
            .filter(|end| *end > at)
            .ok_or(Code::INVALID_VALUE)?;
        let mut found = Vec::new();
        let mut next = at;
        for (start, range) in self.ranges.range(at..end) {
            let mapped = matches!(range.kind, Kind::Mapped { .. });
            if *start != next || !mapped {
                return Err(Code::INVALID_VALUE);
            }
            found.push((*start, range.bytes));
            next += range.bytes;
        }
        if next == end {
            Ok(found)
        } else {
            Err(Code::INVALID_VALUE)
        }
    }

    pub(crate) fn allocate(&mut self, bytes: u64, position: usize) -> Result<u64, Code> {
        let bytes = bytes.checked_next_multiple_of(4096).filter(|b| *b > 0);
        let bytes = bytes.ok_or(Code::INVALID_VALUE)?;
        let at = map_nothing(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        self.ranges.insert(
            at,
            Range {
                bytes,
                kind: Kind::Allocated { position },
            },
        );
        Ok(at)
    }

    pub(crate) fn free(&mut self, at: u64) -> Result<(), Code> {
        match self.ranges.get(&at) {
            Some(Range {
                bytes,
                kind: Kind::Allocated { .. },
            }) => {
                unmap(at, *bytes);
                self.ranges.remove(&at);
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Frees everything on the GPU at this position.
    pub(crate) fn free_of(&mut self, gone: usize) {
        self.ranges.retain(|at, range| {
            let is_gone = matches!(range.kind, Kind::Allocated { position } if position == gone);
            if is_gone {
                unmap(*at, range.bytes);
            }
            !is_gone
        });
    }

    /// Pages that the process may only read take `is_read_only`, and then work may only read them.
    pub(crate) fn register(
        &mut self,
        at: u64,
        bytes: u64,
        context: usize,
        is_read_only: bool,
    ) -> Result<(), Code> {
        if at == 0 || bytes == 0 || at.checked_add(bytes).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if self.overlaps(at, bytes) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !is_mapped(at, bytes) || !is_read_only && !is_writable(at, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        let kind = Kind::Registered {
            context,
            is_read_only,
        };
        self.ranges.insert(at, Range { bytes, kind });
        Ok(())
    }

    pub(crate) fn unregister(&mut self, at: u64) -> Result<(), Code> {
        match self.ranges.get(&at) {
            Some(Range {
                kind: Kind::Registered { .. },
                ..
            }) => {
                self.ranges.remove(&at);
                Ok(())
            }
            _ => Err(Code::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Forgets what was registered in a context that is gone.
    pub(crate) fn unregister_of(&mut self, gone: usize) {
        self.ranges.retain(
            |_, range| !matches!(range.kind, Kind::Registered { context, .. } if context == gone),
        );
    }

    /// Whether an operation of a stream of the GPU at `position` may read or write the 64-bit
    /// number at an address: memory of the GPU, or registered.
    pub(crate) fn permits_number(&self, address: u64, position: usize, write: bool) -> bool {
        let known = self.is_for_kernels(address);
        address % 8 == 0 && known && self.permits(address, 8, position, write)
    }

    /// Whether a kernel may touch an address at all: memory of a GPU, or registered.
    pub(crate) fn is_for_kernels(&self, address: u64) -> bool {
        matches!(self.place(address), Place::Device(_) | Place::Pinned)
    }

    /// What stands at an address.
    pub(crate) fn place(&self, address: u64) -> Place {
        match self.range_at(address) {
            Some((
                _,
                Range {
                    kind: Kind::Mapped { memory, .. },
                    ..
                },
            )) => Place::Device(memory.position),
            Some((
                _,
                Range {
                    kind: Kind::Allocated { position },
                    ..
                },
            )) => Place::Device(*position),
            Some((
                _,
                Range {
                    kind: Kind::Registered { .. },
                    ..
                },
            )) => Place::Pinned,
            None => match self.reservations.range(..=address).next_back() {
                Some((base, bytes)) if address - base < *bytes => Place::Nothing,
                _ => Place::Pageable,
            },
        }
    }

    /// What all of a range is for a copy. Host memory is pinned only if one registration has it.
    pub(crate) fn place_of(&self, address: u64, bytes: u64) -> Place {
        let place = self.place(address);
        let within = |(start, range): (u64, &Range)| bytes <= start + range.bytes - address;
        match place {
            Place::Pinned if !self.range_at(address).is_some_and(within) => Place::Pageable,
            place => place,
        }
    }

    /// Start and size of the range that an address belongs to.
    pub(crate) fn extent(&self, address: u64) -> Option<(u64, u64)> {
        self.range_at(address)
            .map(|(start, range)| (start, range.bytes))
    }

    /// Whether work on the GPU at `position` may touch all of a range, which may lie over several
    /// mappings. Host memory that the driver does not know is the caller's own affair.
    pub(crate) fn permits(&self, address: u64, bytes: u64, position: usize, write: bool) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let mut at = address;
        while at < end {
            match self.range_at(at) {
                None => return at == address && self.place(at) == Place::Pageable,
                Some((start, range)) => {
                    if let Kind::Mapped {
                        readers, writers, ..
                    } = range.kind
                    {
                        let mask = if write { writers } else { readers };
                        if mask & (1 << position) == 0 {
                            return false;
                        }
                    }
                    if write && range.kind.is_read_only() {
                        return false;
                    }
                    at = start + range.bytes;
                }
            }
        }
        true
    }

    fn range_at(&self, address: u64) -> Option<(u64, &Range)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.bytes).then_some((*start, range))
    }

    fn overlaps(&self, at: u64, bytes: u64) -> bool {
        self.range_at(at).is_some() || self.ranges.range(at..at + bytes).next().is_some()
    }

    /// How many of a sort there are.
    pub(crate) fn live(&self, what: &str) -> Option<u64> {
        let of = |wanted: fn(&Kind) -> bool| {
            self.ranges
                .values()
                .filter(|range| wanted(&range.kind))
                .count() as u64
        };
        Some(match what {
            "handles" => self.handles.len() as u64,
            "reservations" => self.reservations.len() as u64,
            "mappings" => of(|kind| matches!(kind, Kind::Mapped { .. })),
            "allocations" => of(|kind| matches!(kind, Kind::Allocated { .. })),
            "registrations" => of(|kind| matches!(kind, Kind::Registered { .. })),
            _ => return None,
        })
    }
}

/// Whether the process may write all of a range, which is mapped: as the driver does, which cannot pin
/// pages for writing that are not.
fn is_writable(at: u64, bytes: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    !maps.lines().any(|line| {
        let mut fields = line.split(&['-', ' ']);
        let mut address = || u64::from_str_radix(fields.next()?, 16).ok();
        let (Some(start), Some(end)) = (address(), address()) else {
            return false;
        };
        let rights = fields.next().unwrap_or_default();
        start < at + bytes && at < end && !rights.contains('w')
    })
}

/// Whether all pages of a range are mapped.
fn is_mapped(at: u64, bytes: u64) -> bool {
    // SAFETY: sysconf only reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let start = at / page * page;
    let length = (at - start + bytes).next_multiple_of(page);
    let mut resident = vec![0u8; (length / page) as usize];
    // SAFETY: mincore looks the pages up without touching them and writes a byte for each.
    let code = unsafe {
        libc::mincore(
            start as usize as *mut c_void,
            length as usize,
            resident.as_mut_ptr(),
        )
    };
    code == 0
}

fn map_nothing(bytes: u64, protection: c_int) -> Result<u64, Code> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel likes, which touches nothing that exists.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            protection,
            flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(at as usize as u64)
}

fn unmap(at: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: callers pass ranges that this module mapped and has no more use for.
        unsafe { libc::munmap(at as usize as *mut c_void, bytes as usize) };
    }
}

fn protect(at: u64, bytes: u64, protection: c_int) -> Result<(), Code> {
    // SAFETY: callers pass one of our mappings.
    let code = unsafe { libc::mprotect(at as usize as *mut c_void, bytes as usize, protection) };
    if code == 0 {
        Ok(())
    } else {
        Err(Code::OPERATING_SYSTEM)
    }
}
