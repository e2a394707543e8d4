//! Managed memory, which the program and its kernels use by one address.
//!
//! The server has no pages of this host, and this host none of the GPU. So managed memory is memory of the device, and the same addresses
//! are memory here (a *shadow*, as in GVirtuS). A launch sends what the host may have changed; a wait that the program makes brings what
//! kernels may have changed. In between the side that has the memory is the only one that may use it, as on GPUs without
//! `concurrentManagedAccess`.
//!
//! Nothing tells which bytes a kernel uses or a program changes, so whole allocations are copied, all of them.

use crate::handles::streams;
use crate::servers::{at, is_here, number_of};
use crate::{host_copy, memory, session, thread};
use rgaps_remoting::{row, Call, Code};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `cudaMemAttachGlobal` and `cudaMemAttachHost`.
const FLAGS: [c_uint; 2] = [1, 2];
const NON_BLOCKING: c_uint = 1;

#[derive(Clone, Copy)]
struct Managed {
    bytes: u64,
    device: u16,
    /// Kernels may have changed it since it was last copied to the host.
    is_on_device: bool,
}

#[derive(Default)]
struct ManagedState {
    all: BTreeMap<u64, Managed>,
    /// Servers and their streams whose queued work may use managed memory.
    busy: HashSet<(usize, u64)>,
    /// A stream of each device for copies, which no other stream waits for.
    copies: HashMap<u16, u64>,
}

/// Whether the program has had managed memory; most programs never do.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn lock() -> MutexGuard<'static, Option<ManagedState>> {
    static STATE: Mutex<Option<ManagedState>> = Mutex::new(None);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates managed memory; gives 0 for 0 bytes.
pub(crate) fn allocate(bytes: u64, flags: c_uint) -> Result<u64, Code> {
    if !FLAGS.contains(&flags) {
        return Err(Code::INVALID_VALUE);
    }
    if bytes == 0 {
        return session::check_alive().map(|()| 0);
    }
    let start = memory::allocate(&Call::Allocate { bytes }, bytes)?;
    if memory::open(start, bytes).is_err() {
        memory::forget(start)?;
        session::send(&Call::Free { address: start }, &[])?;
        return Err(Code::OUT_OF_MEMORY);
    }
    let managed = Managed {
        bytes,
        device: thread::device(),
        is_on_device: false,
    };
    lock().get_or_insert_default().all.insert(start, managed);
    IS_USED.store(true, Ordering::Release);
    Ok(start)
}

/// Takes over device memory that is a managed variable of the program: the host has what the device has.
pub(crate) fn adopt(start: u64, bytes: u64) -> Result<(), Code> {
    memory::open(start, bytes)?;
    let managed = Managed {
        bytes,
        device: thread::device(),
        is_on_device: true,
    };
    lock().get_or_insert_default().all.insert(start, managed);
    IS_USED.store(true, Ordering::Release);
    after()
}

/// Gives back an allocation, managed or not.
pub(crate) fn free(address: u64) -> Result<(), Code> {
    let range = memory::forget(address)?;
    forget(address);
    at(range.device, || session::send(&Call::Free { address }, &[]))
}

fn forget(start: u64) {
    if !IS_USED.load(Ordering::Acquire) {
        return;
    }
    let removed = lock().get_or_insert_default().all.remove(&start);
    if let Some(removed) = removed {
        memory::shut(start, removed.bytes);
    }
}

/// Forgets all allocations of the current device, which is reset.
pub(crate) fn reset() {
    let device = thread::device();
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    state.copies.remove(&device);
    let server = number_of(device);
    state.busy.retain(|(of, _)| *of != server);
    let removed: Vec<(u64, Managed)> = state
        .all
        .iter()
        .filter(|(_, managed)| managed.device == device)
        .map(|(start, managed)| (*start, *managed))
        .collect();
    for (start, managed) in removed {
        state.all.remove(&start);
        memory::shut(start, managed.bytes);
    }
}

/// Whether an address is managed.
pub(crate) fn is_managed(address: u64) -> bool {
    if !IS_USED.load(Ordering::Acquire) {
        return false;
    }
    let guard = lock();
    let before = guard
        .as_ref()
        .and_then(|state| state.all.range(..=address).next_back());
    before.is_some_and(|(start, managed)| address - start < managed.bytes)
}

/// Whether all of a range is managed.
pub(crate) fn check(address: u64, bytes: u64) -> Result<(), Code> {
    match is_managed(address) {
        true => memory::check(address, bytes),
        false => Err(Code::INVALID_VALUE),
    }
}

impl ManagedState {
    /// The allocations on the current server.
    fn here(&mut self) -> impl Iterator<Item = (u64, &mut Managed)> {
        let all = self
            .all
            .iter_mut()
            .map(|(start, managed)| (*start, managed));
        all.filter(|(_, managed)| is_here(managed.device))
    }

    /// The stream for copies on the current device.
    fn stream(&mut self) -> Result<u64, Code> {
        let device = thread::device();
        if let Some(stream) = self.copies.get(&device) {
            return Ok(*stream);
        }
        let stream = streams::create(NON_BLOCKING, 0)?;
        self.copies.insert(device, stream);
        Ok(stream)
    }

    /// Sends what the host may have changed, and waits until it is there.
    fn send(&mut self) -> Result<(), Code> {
        if self.here().all(|(_, managed)| managed.is_on_device) {
            return Ok(());
        }
        let stream = self.stream()?;
        for (start, managed) in self.here() {
            if !managed.is_on_device {
                let (at, extent) = row(start, managed.bytes);
                // SAFETY: `allocate` or `adopt` has opened the `bytes` bytes at `start` as memory of this process (`memory::open`).
                // `forget` and `reset` shut them only after they have taken the entry out of the table, whose lock our caller holds. By
                // CUDA's rule for managed memory the program does not write it while it makes a call that may launch.
                unsafe { host_copy::copy_in(at, at, extent, stream)? };
                managed.is_on_device = true;
            }
        }
        session::call(&Call::StreamSynchronize { stream }, &[]).map(drop)
    }

    /// Brings what kernels may have changed. If no stream is busy any more, the host has the memory.
    fn bring(&mut self) -> Result<(), Code> {
        if !self.here().any(|(_, managed)| managed.is_on_device) {
            return Ok(());
        }
        let server = number_of(thread::device());
        // Streams are asked before the copies: what a stream changes after that, the next wait brings. A question would invalidate a
        // recording.
        let can_ask = !streams::is_any_recording();
        self.busy.retain(|(of, stream)| {
            let call = Call::StreamQuery { stream: *stream };
            *of != server || !can_ask || session::call(&call, &[]).err() == Some(Code::NOT_READY)
        });
        let is_busy = self.busy.iter().any(|(of, _)| *of == server);
        let stream = self.stream()?;
        for (start, managed) in self.here() {
            if managed.is_on_device {
                let (at, extent) = row(start, managed.bytes);
                // SAFETY: `allocate` or `adopt` has opened the `bytes` bytes at `start` as memory of this process (`memory::open`).
                // `forget` and `reset` shut them only after they have taken the entry out of the table, whose lock our caller holds. By
                // CUDA's rule for managed memory the program does not use them while kernels may.
                unsafe { host_copy::copy_out(at, at, extent, stream)? };
                managed.is_on_device = is_busy;
            }
        }
        Ok(())
    }
}

/// Call before work that may use managed memory is queued on a stream of the current server: sends what the host may have changed.
pub(crate) fn before(stream: u64) -> Result<(), Code> {
    // Work that a stream records does not run yet.
    if !IS_USED.load(Ordering::Acquire) || streams::is_any_recording() {
        return Ok(());
    }
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    state.busy.insert((number_of(thread::device()), stream));
    state.send()
}

/// Call when the program has waited for something on the current server: brings what kernels may have changed.
pub(crate) fn after() -> Result<(), Code> {
    if !IS_USED.load(Ordering::Acquire) {
        return Ok(());
    }
    lock().get_or_insert_default().bring()
}
