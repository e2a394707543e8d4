//! A device that is open, and what it says.

use crate::fabric::{Concerns, Fabric};
use crate::status::DeviceEvent;
use rustix::event::{eventfd, EventfdFlags};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// An RDMA device with one protection domain. Regions and channels keep it open.
pub struct Device {
    fabric: Box<dyn Fabric>,
    channels: Mutex<Vec<Weak<Signals>>>,
}

impl Device {
    pub(crate) fn new(fabric: Box<dyn Fabric>) -> Arc<Self> {
        let channels = Mutex::default();
        Arc::new(Self { fabric, channels })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.fabric.name()
    }

    /// The most bytes of a packet on its link; 0 if it says none that there is.
    pub fn mtu_bytes(&self) -> u32 {
        match self.fabric.mtu() {
            mtu @ 1..=5 => 128 << mtu,
            _ => 0,
        }
    }

    pub(crate) fn fabric(&self) -> &dyn Fabric {
        &*self.fabric
    }

    /// A channel that wants to hear of events.
    pub(crate) fn join(&self, queue_pair: u32) -> Result<Arc<Signals>, rustix::io::Errno> {
        let signals = Arc::new(Signals {
            queue_pair,
            event: OnceLock::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let mut channels = self.channels.lock().expect("nobody panics with it");
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(Arc::downgrade(&signals));
        Ok(signals)
    }

    /// Reads what the device says and tells the channels that it concerns.
    pub(crate) fn look(&self) {
        while let Some((concerns, event)) = self.fabric.event() {
            let channels = self.channels.lock().expect("nobody panics with it");
            for channel in channels.iter().filter_map(Weak::upgrade) {
                if concerns == Concerns::All || concerns == Concerns::QueuePair(channel.queue_pair)
                {
                    // The first is enough to end it.
                    let _ = channel.event.set(event);
                    channel.ring();
                }
            }
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// How a channel's waiting thread is told something.
pub(crate) struct Signals {
    queue_pair: u32,
    event: OnceLock<DeviceEvent>,
    bell: OwnedFd,
}

impl Signals {
    pub(crate) fn event(&self) -> Option<DeviceEvent> {
        self.event.get().copied()
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn ring(&self) {
        // It can fail only when it is about to overflow: then it was rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear_bell(&self) {
        // Nothing to read is fine.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}
