//! A network within a process: channels without a device, with delays and faults from a seed.
//!
//! The network performs works when any queue pair posts, polls or arms: at once, or with [`Faults::delay_one_in`] in
//! any order that reliable connections allow (each queue pair's own works stay in order). It refuses what real devices
//! refuse, with the same status.

mod devices;

use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::*;
use crate::status::{DeviceEvent, Status};
use rustix::event::{eventfd, EventfdFlags};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard};

/// The delays and limits of a network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The seed of all random choices.
    pub seed: u64,
    /// A step performs a work with a probability of one in so many; 0 and 1: works are performed when they are posted.
    pub delay_one_in: u32,
    /// The most slots of each queue that the devices give; 0: as many as wanted.
    pub depth_max: u32,
    /// The most inline bytes of a work that the devices give; `None`: as many as wanted, up to 256.
    pub inline_max: Option<u32>,
}

/// The most inline bytes of a work.
const INLINE_BYTES: usize = 256;
/// Up to so many bytes a copy goes word by word, for credit words.
const WORDS_BYTES_MAX: usize = 64;

/// A network of software devices that all reach each other.
pub struct SoftwareNetwork {
    state: Arc<Mutex<NetworkState>>,
}

struct NetworkState {
    faults: Faults,
    /// The state of the random generator.
    random: u64,
    /// The last number given to a device, queue pair or registration.
    next: u32,
    /// The network has no link.
    down: bool,
    /// How the next work ends, in place of being performed.
    inject: Option<Status>,
    /// The call that fails, with the error's number.
    refuse: Option<(&'static str, i32)>,
    regions: BTreeMap<u32, Memory>,
    pairs: BTreeMap<u32, Pair>,
    devices: Vec<Arc<Events>>,
}

#[derive(Clone, Copy)]
struct Memory {
    start: u64,
    bytes: u64,
    domain: u32,
    access: Access,
}

struct Events {
    domain: u32,
    queue: Mutex<VecDeque<(Concerns, DeviceEvent)>>,
    fd: OwnedFd,
}

/// The inline bytes of a work.
type Inline = [u8; INLINE_BYTES];

struct Pair {
    domain: u32,
    depths: Depths,
    peer: Option<u32>,
    failed: bool,
    works: VecDeque<(Work, Inline)>,
    receives: u32,
    completions: VecDeque<Completion>,
    /// The last work posted, and the last whose completion was polled: its slot, and those before, are free.
    posted: u64,
    seen: u64,
    armed: bool,
    fd: Arc<OwnedFd>,
}

fn ring(fd: &OwnedFd) {
    // The write fails only if the counter is about to overflow: then the bell has been rung.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

fn silence(fd: &OwnedFd) {
    // The read fails if the bell was not rung, which is fine.
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

fn bell() -> Result<OwnedFd, VerbsError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| VerbsError::Call {
        call: "eventfd",
        errno: errno.raw_os_error(),
    })
}

impl SoftwareNetwork {
    /// A network without devices.
    pub fn new(faults: Faults) -> Self {
        let state = NetworkState {
            faults,
            random: faults.seed,
            next: 1,
            down: false,
            inject: None,
            refuse: None,
            regions: BTreeMap::new(),
            pairs: BTreeMap::new(),
            devices: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        Self { state }
    }

    /// Adds a device, with a protection domain of its own.
    pub fn device(&self, name: &str) -> Result<Arc<Device>, VerbsError> {
        let fd = bell()?;
        let mut state = locked(&self.state);
        let events = Arc::new(Events {
            domain: state.number(),
            queue: Mutex::default(),
            fd,
        });
        state.devices.push(Arc::clone(&events));
        Ok(Device::new(Box::new(devices::InProcess {
            name: name.into(),
            state: Arc::clone(&self.state),
            events,
        })))
    }

    /// Takes the link away from all devices, or brings it back. Works without a link fail.
    pub fn set_link(&self, up: bool) {
        let mut state = locked(&self.state);
        state.down = !up;
        if !up {
            for device in &state.devices {
                device.say(Concerns::All, DeviceEvent::PortDown);
            }
        }
    }

    /// Makes the next work end with this status, in place of being performed.
    pub fn fail_next(&self, status: Status) {
        locked(&self.state).inject = Some(status);
    }

    /// Makes a call that registers memory (`ibv_reg_mr` or `ibv_reg_dmabuf_mr`) fail from now on, with this error number.
    pub fn refuse(&self, call: &'static str, errno: i32) {
        locked(&self.state).refuse = Some((call, errno));
    }

    /// Writes into registered memory, as a misbehaving peer could at any time. Returns false if the memory is not registered
    /// for peers to write.
    pub fn scribble(&self, address: u64, bytes: &[u8]) -> bool {
        let state = locked(&self.state);
        let found = state.regions.values().find(|memory| {
            memory.access == Access::RemoteWrite && memory.has(address, bytes.len() as u64)
        });
        if found.is_some() {
            // SAFETY: `state.regions` has the range, and this thread holds its lock. A `Region` keeps its memory until its registration was
            // dropped, which takes the range out under this lock.
            unsafe {
                (address as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
        }
        found.is_some()
    }
}

fn locked(state: &Mutex<NetworkState>) -> MutexGuard<'_, NetworkState> {
    state.lock().expect("nobody panics with it")
}

impl Memory {
    fn has(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        address >= self.start && end.is_some_and(|end| end <= self.start + self.bytes)
    }
}

impl Events {
    fn say(&self, concerns: Concerns, event: DeviceEvent) {
        let mut queue = self.queue.lock().expect("nobody panics with it");
        queue.push_back((concerns, event));
        ring(&self.fd);
    }
}

impl Pair {
    fn complete(&mut self, completion: Completion) {
        debug_assert!(self.completions.len() < self.depths.completions as usize);
        self.completions.push_back(completion);
        if self.armed {
            self.armed = false;
            ring(&self.fd);
        }
    }

    fn fail_works(&mut self) {
        self.failed = true;
        while let Some((work, _)) = self.works.pop_front() {
            self.complete(failed(work.number, Status::Flushed));
        }
        for _ in 0..std::mem::take(&mut self.receives) {
            self.complete(failed(crate::receiving::RECEIVE, Status::Flushed));
        }
    }
}

fn failed(number: u64, status: Status) -> Completion {
    Completion::Failed {
        number,
        status,
        vendor: 0,
    }
}

impl NetworkState {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// SplitMix64, by Steele, Lea and Flood.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Performs some of the posted works.
    fn step(&mut self) {
        let delay = u64::from(self.faults.delay_one_in);
        let waiting = |(_, pair): &(&u32, &Pair)| !pair.works.is_empty();
        loop {
            let count = self.pairs.iter().filter(waiting).count();
            if count == 0 || (delay > 1 && self.random() % delay != 0) {
                break;
            }
            let chosen = self.random() as usize % count;
            let chosen = self.pairs.iter().filter(waiting).nth(chosen);
            let (&number, _) = chosen.expect("they were counted");
            self.perform(number);
        }
        // Works wait, and only calls perform them: wake the threads that sleep, so that they poll again.
        if self.pairs.values().any(|pair| !pair.works.is_empty()) {
            for pair in self.pairs.values_mut().filter(|pair| pair.armed) {
                ring(&pair.fd);
            }
        }
    }

    fn perform(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        let Some((work, inline)) = pair.works.pop_front() else {
            return;
        };
        let (domain, peer) = (pair.domain, pair.peer);
        let status = self.write(domain, peer, &work, &inline);
        if status == Status::RemoteAccess {
            self.refuse(peer);
        }
        let pair = self.pairs.get_mut(&number).expect("nobody removed it");
        if status != Status::Success {
            pair.complete(failed(work.number, status));
            pair.fail_works();
        } else if work.signalled {
            let number = work.number;
            pair.complete(Completion::Sent { number });
        }
    }

    /// Fails the peer's queue pair, too, after a write to memory that may not be written.
    fn refuse(&mut self, peer: Option<u32>) {
        let Some(pair) = peer.and_then(|peer| self.pairs.get_mut(&peer)) else {
            return;
        };
        pair.fail_works();
        let domain = pair.domain;
        for device in self.devices.iter().filter(|device| device.domain == domain) {
            let concerns = Concerns::QueuePair(peer.expect("it was found"));
            device.say(concerns, DeviceEvent::QueuePairAccess);
        }
    }

    fn write(&mut self, domain: u32, peer: Option<u32>, work: &Work, inline: &[u8]) -> Status {
        if let Some(status) = self.inject.take() {
            return status;
        }
        let bytes = u64::from(work.bytes);
        let local = self.regions.get(&work.local_key);
        let is_local =
            |memory: &Memory| memory.domain == domain && memory.has(work.local as u64, bytes);
        if !work.inline && !local.is_some_and(is_local) {
            return Status::LocalProtection;
        }
        let reached = peer
            .filter(|_| !self.down)
            .and_then(|peer| self.pairs.get_mut(&peer));
        let Some(pair) = reached.filter(|pair| !pair.failed) else {
            return Status::RetryExceeded;
        };
        let remote = self.regions.get(&work.remote_key);
        let may = |memory: &Memory| {
            memory.domain == pair.domain
                && memory.access == Access::RemoteWrite
                && memory.has(work.remote, bytes)
        };
        if !remote.is_some_and(may) {
            return Status::RemoteAccess;
        }
        if work.immediate.is_some() && pair.receives == 0 {
            return Status::ReceiverNotReady;
        }
        let from = match work.inline {
            true => inline.as_ptr(),
            false => work.local,
        };
        // SAFETY: `regions` has the target, as was checked, and the source, unless that is `inline`, which is ours and has `INLINE_BYTES`
        // bytes: `post` takes no more. This thread holds the lock of the state. A `Region` keeps its memory until its registration was
        // dropped, which takes the range out under this lock.
        unsafe { copy(from, work.remote as *mut u8, work.bytes as usize) };
        if let Some(immediate) = work.immediate {
            pair.receives -= 1;
            let bytes = work.bytes;
            pair.complete(Completion::Received { immediate, bytes });
        }
        Status::Success
    }
}

/// Copies as devices do: short aligned pieces word by word, which programs may read meanwhile.
///
/// # Safety
/// `bytes` bytes are valid at `from` to read and at `to` to write. The ranges may overlap.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    let is_words = |address: usize| address % 8 == 0;
    if bytes > WORDS_BYTES_MAX
        || ![from as usize, to as usize, bytes]
            .into_iter()
            .all(is_words)
    {
        // SAFETY: our caller promises that both ranges are valid; `ptr::copy` allows them to overlap.
        return unsafe { std::ptr::copy(from, to, bytes) };
    }
    for at in (0..bytes).step_by(8) {
        // SAFETY: `at + 8` is at most `bytes`, and our caller promises that so many bytes are valid at both. The addresses and `bytes` are
        // multiples of 8, which was checked. Programs that read these words meanwhile do so atomically, as this does.
        unsafe {
            let word = AtomicU64::from_ptr(from.add(at).cast_mut().cast()).load(Acquire);
            AtomicU64::from_ptr(to.add(at).cast()).store(word, Release);
        }
    }
}
