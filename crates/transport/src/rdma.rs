//! What the RDMA lanes of an endpoint share: the host's rails, and the memory that they know.

use crate::machine::frame::{Remote, RAILS_MAX};
use rgaps_verbs::{Access, ChannelConfig, Device, Memory, Region, VerbsError};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, RwLock};
use thiserror::Error;

/// What an endpoint needs for RDMA lanes.
#[derive(Clone, Debug)]
pub struct Rdma {
    /// NICs, of which lanes take one after the other: the nearest first, at most [`RAILS_MAX`].
    pub rails: Vec<Arc<Device>>,
    /// Everybody who can reach the rails' network is trusted: what goes over RDMA is not encrypted, and a peer that has a
    /// lane can write all memory that is registered for landing, until the lane ends. It has to be said.
    pub trusted_fabric: bool,
    /// The channel of a lane.
    pub channel: ChannelConfig,
}

/// Why there is no RDMA, or memory is not known to it.
#[derive(Debug, Error)]
pub enum RdmaError {
    /// Nobody said so.
    #[error(
        "RDMA is not encrypted; set trusted_fabric = true if you trust everything on its network"
    )]
    Fabric,
    /// None, or too many.
    #[error("RDMA needs 1 to {RAILS_MAX} rails, and {0} were given")]
    Rails(usize),
    /// The endpoint has none.
    #[error("this endpoint has no RDMA")]
    None,
    /// Some of it is registered.
    #[error("the memory at {0:#x} is already registered")]
    Twice(u64),
    /// The device refused.
    #[error("registering memory with {device} failed: {error}")]
    Register {
        /// Which.
        device: String,
        /// Why.
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

    /// The rail of a lane.
    pub(crate) fn rail(&self, lane: u32) -> (u8, &Arc<Device>) {
        let at = lane as usize % self.rails.len();
        (u8::try_from(at).expect("rails are few"), &self.rails[at])
    }
}

/// Memory that is registered with each rail.
struct RegisteredMemory {
    bytes: u64,
    /// By rail.
    regions: Vec<Arc<Region>>,
}

/// Registered memory, by address. It is filled when memory is mapped, and only read on a message's way.
#[derive(Default)]
pub(crate) struct RegistrationTable(RwLock<BTreeMap<u64, RegisteredMemory>>);

impl RegistrationTable {
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

    /// What a peer needs to write there itself; none if it cannot.
    pub(crate) fn remote(&self, start: u64, bytes: u64) -> Option<Remote> {
        self.find(start, bytes, |known, _| {
            let mut keys = [0; RAILS_MAX];
            for (key, region) in keys.iter_mut().zip(&known.regions) {
                *key = region.remote_key()?;
            }
            Remote::new(start, &keys[..known.regions.len()])
        })
    }

    /// The region of a rail that has the first of these bytes, their offset there, and how many of them it has.
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
    /// Registers memory with the rails, so that messages of all links are read from it, and with [`Access::RemoteWrite`] written into
    /// it, without a copy. It takes long: once, when the memory is mapped.
    pub fn register(
        &self,
        memory: &Arc<dyn Memory>,
        access: Access,
    ) -> Result<Registered, RdmaError> {
        self.add(memory, |device| {
            Region::new(device, Arc::clone(memory), access)
        })
    }

    /// The same of memory that is not the host's: of a dma-buf, from an offset of it on. `memory` keeps it, and has the address by
    /// which [`crate::Payload::direct`] and [`crate::machine::CardBuffer`] name it.
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

/// Memory that an endpoint's RDMA lanes know, until this is dropped. What is in flight keeps it beyond that.
pub struct Registered {
    table: Arc<RegistrationTable>,
    start: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut known = self.table.0.write().expect("nobody panics with it");
        let gone = known.remove(&self.start);
        drop(known);
        // It takes long, and nobody waits for the table meanwhile.
        drop(gone);
    }
}
