//! Hosts with RDMA over an in-process network, and messages in memory that is registered with their cards.
use super::hosts::{endpoint_with, Arena, Host, Piece};
use rgaps_transport::Endpoint;
use rgaps_transport::{Rdma, Registered};
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::{Access, Allocation, ChannelConfig, Device, Memory};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A host's memory for messages.
const POOL_BYTES: usize = 48 << 20;

/// Makes hosts whose cards reach each other.
pub struct Fabric {
    pub network: SoftwareNetwork,
    /// A real device that both hosts use instead of the network.
    pub real: Option<Arc<Device>>,
    pub rails: usize,
    pub channel: ChannelConfig,
}

impl Fabric {
    pub fn new(faults: Faults) -> Self {
        Self {
            network: SoftwareNetwork::new(faults),
            real: None,
            rails: 2,
            channel: ChannelConfig {
                ring_bytes: 128 << 10,
                receives: 32,
                sends: 64,
                ..ChannelConfig::default()
            },
        }
    }

    pub fn device(&self, name: &str) -> Arc<Device> {
        match &self.real {
            Some(real) => Arc::clone(real),
            None => self.network.device(name).unwrap(),
        }
    }

    pub fn rdma(&self, host: u64) -> Rdma {
        let device = |rail| self.device(&format!("nic{host}.{rail}"));
        Rdma {
            rails: (0..self.rails).map(device).collect(),
            trusted_fabric: true,
            channel: self.channel,
        }
    }

    pub fn endpoint(&self, incarnation: u64) -> Endpoint {
        endpoint_with(incarnation, 7, Some(self.rdma(incarnation)))
    }

    pub fn host(&self, endpoint: &Endpoint) -> Arc<Host> {
        Host::with(Arc::new(Pool::new(endpoint)))
    }
}

/// Registered memory, in pieces.
pub struct Pool {
    pub memory: Arc<Allocation>,
    /// The pieces in use: the end of each, by its start.
    out: Arc<Mutex<BTreeMap<usize, usize>>>,
    _registered: Registered,
}

impl Pool {
    pub fn new(endpoint: &Endpoint) -> Self {
        let register = |memory: &Arc<Allocation>| {
            let known: Arc<dyn Memory> = memory.clone();
            endpoint.registrar().register(&known, Access::RemoteWrite)
        };
        Self::with(register).unwrap()
    }

    pub fn with<E>(
        register: impl FnOnce(&Arc<Allocation>) -> Result<Registered, E>,
    ) -> Result<Self, E> {
        let memory = Allocation::new(POOL_BYTES);
        Ok(Self {
            _registered: register(&memory)?,
            memory,
            out: Arc::default(),
        })
    }
}

impl Arena for Pool {
    fn piece(&self, bytes: usize) -> Box<dyn Piece> {
        let mut out = self.out.lock().unwrap();
        let mut from = 0;
        for (start, end) in &*out {
            if start - from >= bytes {
                break;
            }
            from = *end;
        }
        if from + bytes > POOL_BYTES {
            // The pool is full: memory that is not registered also works.
            return Box::new(vec![0xdd; bytes]);
        }
        out.insert(from, from + bytes);
        Box::new(Part {
            memory: Arc::clone(&self.memory),
            out: Arc::clone(&self.out),
            from,
            bytes,
        })
    }
}

struct Part {
    memory: Arc<Allocation>,
    out: Arc<Mutex<BTreeMap<usize, usize>>>,
    from: usize,
    bytes: usize,
}

impl Piece for Part {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `Pool::piece` took `from..from + bytes` inside the allocation, which `memory` keeps. It gives no other piece these
        // bytes: `out` lists them until this one is dropped. Peers' cards write them only before their message is delivered.
        unsafe { std::slice::from_raw_parts(self.memory.start().add(self.from), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `Pool::piece` took these bytes inside the allocation for this piece alone, and `out` lists them until it is dropped.
        // `&mut self` excludes the slices of `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(self.from), self.bytes) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.bytes_mut().fill(0xee);
        self.out.lock().unwrap().remove(&self.from);
    }
}
