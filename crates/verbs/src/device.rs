//! An open device, which passes its events on to the channels that they concern.

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

    /// The MTU of its link in bytes; 0 if the device reports an invalid one.
    pub fn mtu_bytes(&self) -> u32 {
        match self.fabric.mtu() {
            mtu @ 1..=5 => 128 << mtu,
            _ => 0,
        }
    }

    pub(crate) fn fabric(&self) -> &dyn Fabric {
        &*self.fabric
    }

    /// Registers a channel for events of the device and of its queue pair.
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

    /// Reads all events of the device, and passes each on to the channels that it concerns.
    pub(crate) fn look(&self) {
        while let Some((concerns, event)) = self.fabric.event() {
            let channels = self.channels.lock().expect("nobody panics with it");
            for channel in channels.iter().filter_map(Weak::upgrade) {
                if concerns == Concerns::All || concerns == Concerns::QueuePair(channel.queue_pair)
                {
                    // The first event ends the channel; later ones do not matter.
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

/// What wakes a channel's waiting thread, and the first event that concerns the channel.
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
        // The write fails only if the counter is about to overflow: then the bell has been rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear_bell(&self) {
        // The read fails if the bell was not rung, which is fine.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}
