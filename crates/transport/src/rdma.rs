//! What the RDMA lanes of an endpoint share: the host's rails (network cards), and the memory that is registered with them.

use crate::machine::frame::{Remote, RAILS_MAX};
use rgaps_verbs::{Access, ChannelConfig, Device, Memory, Region, VerbsError};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, RwLock};
use thiserror::Error;

/// What an endpoint needs for RDMA lanes.
#[derive(Clone, Debug)]
pub struct Rdma {
    /// The network cards, the nearest first; 1 to [`RAILS_MAX`]. Lanes take them in turn.
    pub rails: Vec<Arc<Device>>,
    /// Whether everybody who can reach the rails' network is trusted. RDMA is not encrypted, and a peer that has a lane can write all
    /// memory that is registered for remote writes, until the lane ends. There is no RDMA unless this is true.
    pub trusted_fabric: bool,
    /// The configuration of each lane's channel.
    pub channel: ChannelConfig,
}

/// Why an endpoint has no RDMA, or could not register memory.
#[derive(Debug, Error)]
pub enum RdmaError {
    /// [`Rdma::trusted_fabric`] is false.
    #[error(
        "RDMA is not encrypted; set trusted_fabric = true if you trust everything on its network"
    )]
    Fabric,
    /// [`Rdma::rails`] is empty or too long.
    #[error("RDMA needs 1 to {RAILS_MAX} rails, and {0} were given")]
    Rails(usize),
    /// The endpoint was made without RDMA.
    #[error("this endpoint has no RDMA")]
    None,
    /// The memory overlaps memory that is registered.
    #[error("the memory at {0:#x} is already registered")]
    Twice(u64),
    /// A network card did not register the memory.
    #[error("registering memory with {device} failed: {error}")]
    Register {
        /// The card's name.
        device: String,
        /// Why the card did not.
        error: VerbsError,
    },
}

impl Rdma {
    pub(crate) fn check(&self) -> Result<(), RdmaError> {
        if !self.trusted_fabric {
            return Err(RdmaError::Fabric);
        }
        match self.rails.len() {
            1..=RAILS_MAX => Ok(()),
            other => Err(RdmaError::Rails(other)),
        }
    }

    /// The rail that a lane uses, and its index.
    pub(crate) fn rail(&self, lane: u32) -> (u8, &Arc<Device>) {
        let at = lane as usize % self.rails.len();
        (u8::try_from(at).expect("rails are few"), &self.rails[at])
    }
}

/// Memory that is registered with each rail.
struct RegisteredMemory {
    bytes: u64,
    /// One per rail, in the rails' order.
    regions: Vec<Arc<Region>>,
}

/// Registered memory, by its start address. Registering and deregistering change it; messages only read it.
#[derive(Default)]
pub(crate) struct RegistrationTable(RwLock<BTreeMap<u64, RegisteredMemory>>);

impl RegistrationTable {
    /// Calls `then` with the entry that contains all of these bytes and their offset in it, if there is one.
    fn find<T>(
        &self,
        start: u64,
        bytes: u64,
        then: impl FnOnce(&RegisteredMemory, u64) -> Option<T>,
    ) -> Option<T> {
        let known = self.0.read().expect("nobody panics with it");
        let (at, known) = known.range(..=start).next_back()?;
        let offset = start - at;
        let inside = offset <= known.bytes && bytes <= known.bytes - offset;
        inside.then(|| then(known, offset)).flatten()
    }

    /// The address and keys with which a peer's card can write these bytes; `None` if they are not registered for that.
    pub(crate) fn remote(&self, start: u64, bytes: u64) -> Option<Remote> {
        self.find(start, bytes, |known, _| {
            let mut keys = [0; RAILS_MAX];
            for (key, region) in keys.iter_mut().zip(&known.regions) {
                *key = region.remote_key()?;
            }
            Remote::new(start, &keys[..known.regions.len()])
        })
    }

    /// The rail's region that contains the first of these bytes, that byte's offset in it, and how many of the bytes it contains.
    pub(crate) fn local(
        &self,
        start: u64,
        bytes: u64,
        rail: u8,
    ) -> Option<(Arc<Region>, u64, u64)> {
        self.find(start, 1, |known, offset| {
            let region = known.regions.get(usize::from(rail))?;
            Some((Arc::clone(region), offset, bytes.min(known.bytes - offset)))
        })
    }
}

/// Registers memory with the rails of an endpoint.
pub struct Registrar {
    pub(crate) rdma: Option<Rdma>,
    pub(crate) table: Arc<RegistrationTable>,
}

impl Registrar {
    /// Registers memory with the rails. The cards then send messages of all links from it without a copy, and with
    /// [`Access::RemoteWrite`] peers' cards write into it. Registering is slow: do it once, when the memory is mapped.
    pub fn register(
        &self,
        memory: &Arc<dyn Memory>,
        access: Access,
    ) -> Result<Registered, RdmaError> {
        self.add(memory, |device| {
            Region::new(device, Arc::clone(memory), access)
        })
    }

    /// Registers the memory of a dma-buf, such as a GPU's, from `offset` on. `memory` keeps that memory alive, and its start is the
    /// address by which [`crate::Payload::direct`] and [`crate::machine::CardBuffer`] name it.
    pub fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        memory: &Arc<dyn Memory>,
        access: Access,
    ) -> Result<Registered, RdmaError> {
        self.add(memory, |device| {
            let memory = Arc::clone(memory);
            Region::of_dmabuf(device, dmabuf, offset, memory, access)
        })
    }

    /// Registers memory with all rails, or with none.
    fn add(
        &self,
        memory: &Arc<dyn Memory>,
        register: impl Fn(&Arc<Device>) -> Result<Arc<Region>, VerbsError>,
    ) -> Result<Registered, RdmaError> {
        let rdma = self.rdma.as_ref().ok_or(RdmaError::None)?;
        let (start, bytes) = (memory.start() as u64, memory.bytes() as u64);
        let regions = rdma.rails.iter().map(|device| {
            register(device).map_err(|error| RdmaError::Register {
                device: device.name().into(),
                error,
            })
        });
        let regions = regions.collect::<Result<_, _>>()?;
        let mut known = self.table.0.write().expect("nobody panics with it");
        let before = known.range(..start + bytes.max(1)).next_back();
        if before.is_some_and(|(at, before)| at + before.bytes.max(1) > start) {
            return Err(RdmaError::Twice(start));
        }
        known.insert(start, RegisteredMemory { bytes, regions });
        let table = Arc::clone(&self.table);
        Ok(Registered { table, start })
    }
}

/// A registration of memory with an endpoint's rails. Dropping it ends the registration, once no work in flight uses it.
pub struct Registered {
    table: Arc<RegistrationTable>,
    start: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut known = self.table.0.write().expect("nobody panics with it");
        let removed = known.remove(&self.start);
        drop(known);
        // Deregistering is slow, so the table is not locked meanwhile.
        drop(removed);
    }
}
