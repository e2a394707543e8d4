//! The devices and queue pairs of a network within a process.

use super::*;
use std::os::fd::{AsFd, BorrowedFd};

/// The code of 4096 bytes in `enum ibv_mtu`.
const MTU: u8 = 5;

pub(super) struct InProcess {
    pub(super) name: String,
    pub(super) state: Arc<Mutex<NetworkState>>,
    pub(super) events: Arc<Events>,
}

struct Registered {
    state: Arc<Mutex<NetworkState>>,
    key: u32,
}

impl Registration for Registered {
    fn keys(&self) -> Keys {
        Keys {
            local: self.key,
            remote: self.key,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        locked(&self.state).regions.remove(&self.key);
    }
}

impl InProcess {
    fn add(
        &self,
        call: &'static str,
        (start, bytes): (u64, usize),
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError> {
        let mut state = locked(&self.state);
        if let Some((_, errno)) = state.refuse.filter(|(refused, _)| *refused == call) {
            return Err(VerbsError::Call { call, errno });
        }
        let key = state.number();
        let memory = Memory {
            start,
            bytes: bytes as u64,
            domain: self.events.domain,
            access,
        };
        state.regions.insert(key, memory);
        let state = Arc::clone(&self.state);
        Ok(Box::new(Registered { state, key }))
    }
}

impl Fabric for InProcess {
    fn name(&self) -> &str {
        &self.name
    }

    fn mtu(&self) -> u8 {
        MTU
    }

    unsafe fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError> {
        self.add("ibv_reg_mr", (start as u64, bytes), access)
    }

    /// Stands in for GPU memory: `address` must be an address of host memory, and the descriptor is ignored.
    fn register_dmabuf(
        &self,
        _dmabuf: BorrowedFd<'_>,
        _offset: u64,
        bytes: usize,
        address: u64,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError> {
        self.add("ibv_reg_dmabuf_mr", (address, bytes), access)
    }

    fn queue_pair(&self, wanted: Depths) -> Result<Box<dyn QueuePair>, VerbsError> {
        let fd = Arc::new(bell()?);
        let mut state = locked(&self.state);
        let most = match state.faults.depth_max {
            0 => u32::MAX,
            most => most,
        };
        let depths = Depths {
            sends: wanted.sends.min(most),
            receives: wanted.receives.min(most),
            completions: wanted.completions,
            inline_bytes: wanted
                .inline_bytes
                .min(state.faults.inline_max.unwrap_or(u32::MAX))
                .min(INLINE_BYTES as u32),
        };
        let number = state.number();
        let pair = Pair {
            domain: self.events.domain,
            depths,
            peer: None,
            failed: false,
            works: VecDeque::with_capacity(depths.sends as usize),
            receives: 0,
            completions: VecDeque::with_capacity(depths.completions as usize),
            posted: 0,
            seen: 0,
            armed: false,
            fd: Arc::clone(&fd),
        };
        state.pairs.insert(number, pair);
        let state = Arc::clone(&self.state);
        Ok(Box::new(InProcessPair {
            state,
            number,
            depths,
            fd,
        }))
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.fd.as_fd()
    }

    fn event(&self) -> Option<(Concerns, DeviceEvent)> {
        silence(&self.events.fd);
        let mut queue = self.events.queue.lock().expect("nobody panics with it");
        queue.pop_front()
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        let domain = self.events.domain;
        let devices = &mut locked(&self.state).devices;
        devices.retain(|device| device.domain != domain);
    }
}

struct InProcessPair {
    state: Arc<Mutex<NetworkState>>,
    number: u32,
    depths: Depths,
    fd: Arc<OwnedFd>,
}

impl InProcessPair {
    fn with<T>(&self, f: impl FnOnce(&mut Pair) -> T) -> T {
        let mut state = locked(&self.state);
        f(state
            .pairs
            .get_mut(&self.number)
            .expect("it is there until dropped"))
    }
}

impl QueuePair for InProcessPair {
    fn depths(&self) -> Depths {
        self.depths
    }

    fn address(&self) -> QueueAddress {
        QueueAddress {
            gid: [0; 16],
            number: self.number,
            first_packet: 0,
            mtu: MTU,
        }
    }

    fn connect(&self, peer: &QueueAddress, _retries: u8) -> Result<(), VerbsError> {
        self.with(|pair| pair.peer = Some(peer.number));
        Ok(())
    }

    unsafe fn post(&self, works: &[Work]) -> Result<(), VerbsError> {
        let mut state = locked(&self.state);
        let pair = state
            .pairs
            .get_mut(&self.number)
            .expect("it is there until dropped");
        for work in works {
            pair.posted = work.number;
            let taken = pair.posted - pair.seen;
            assert!(
                taken <= pair.depths.sends.into(),
                "the send queue overflows"
            );
            let mut inline = [0; INLINE_BYTES];
            if work.inline {
                assert!(work.bytes <= pair.depths.inline_bytes);
                // SAFETY: the work is inline, so our caller promises that these bytes can be read, and do not change,
                // until we return.
                let bytes = unsafe { std::slice::from_raw_parts(work.local, work.bytes as usize) };
                inline[..bytes.len()].copy_from_slice(bytes);
            }
            match pair.failed {
                true => pair.complete(failed(work.number, Status::Flushed)),
                false => pair.works.push_back((*work, inline)),
            }
        }
        state.step();
        Ok(())
    }

    fn post_receives(&self, count: u32, number: u64) -> Result<(), VerbsError> {
        self.with(|pair| match pair.failed {
            true => (0..count).for_each(|_| pair.complete(failed(number, Status::Flushed))),
            false => {
                pair.receives += count;
                assert!(
                    pair.receives <= pair.depths.receives,
                    "the receive queue overflows"
                );
            }
        });
        Ok(())
    }

    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut state = locked(&self.state);
        state.step();
        let pair = state
            .pairs
            .get_mut(&self.number)
            .expect("it is there until dropped");
        let count = into.len().min(pair.completions.len());
        for (slot, completion) in into.iter_mut().zip(pair.completions.drain(..count)) {
            *slot = completion;
            match completion {
                Completion::Sent { number } | Completion::Failed { number, .. } => {
                    pair.seen = pair.seen.max(number);
                }
                Completion::Received { .. } => {}
            }
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.with(|pair| pair.armed = true);
        locked(&self.state).step();
        Ok(())
    }

    fn completions_fd(&self) -> BorrowedFd<'_> {
        (*self.fd).as_fd()
    }

    fn woken(&self) -> Result<(), VerbsError> {
        silence(&self.fd);
        Ok(())
    }

    fn fail(&self) -> Result<(), VerbsError> {
        self.with(Pair::fail_works);
        Ok(())
    }
}

impl Drop for InProcessPair {
    fn drop(&mut self) {
        locked(&self.state).pairs.remove(&self.number);
    }
}
