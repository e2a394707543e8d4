//! Hosts whose messages are in memory that network cards reach and the CPU does not, like a GPU's: the CPU needs copies.
use super::hosts::{Arena, Piece};
use super::rdma::Pool;
use rgaps_transport::machine::CardBuffer;
use rgaps_transport::{RdmaError, Registrar};
use rgaps_verbs::{Access, Allocation, Memory};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

/// Counts by which path messages and bytes were carried.
#[derive(Default)]
pub struct Ways {
    /// Messages that were copied for the CPU.
    pub fetched: AtomicU64,
    /// Bytes that landed in the host's memory; `directly`: that cards wrote.
    pub by_host: AtomicU64,
    pub directly: AtomicU64,
}

/// The stand-in for a GPU's memory: the in-process network reads and writes it by its addresses.
pub struct Cards {
    pool: Pool,
    ways: Arc<Ways>,
}

impl Cards {
    pub fn new(registrar: &Registrar, ways: &Arc<Ways>) -> Result<Self, RdmaError> {
        let dmabuf = std::fs::File::open("/dev/null").unwrap();
        let pool = Pool::with(|memory: &Arc<Allocation>| {
            let memory: Arc<dyn Memory> = memory.clone();
            registrar.register_dmabuf(dmabuf.as_fd(), 0, &memory, Access::RemoteWrite)
        })?;
        let ways = ways.clone();
        Ok(Self { pool, ways })
    }
}

impl Arena for Cards {
    fn piece(&self, bytes: usize) -> Box<dyn Piece> {
        let part = self.pool.piece(bytes);
        let heard = Heard {
            address: part.bytes().as_ptr() as u64,
            parts: Mutex::default(),
            ways: self.ways.clone(),
        };
        Box::new(Card {
            part,
            host: vec![0xdd; bytes],
            copy: OnceLock::new(),
            heard: Arc::new(heard),
        })
    }
}

struct Card {
    part: Box<dyn Piece>,
    /// The host's memory for bytes that the cards do not write.
    host: Vec<u8>,
    copy: OnceLock<Vec<u8>>,
    heard: Arc<Heard>,
}

struct Heard {
    address: u64,
    /// The chunks that have landed, in their order: offset, length, and whether a card wrote them.
    parts: Mutex<Vec<(usize, usize, bool)>>,
    ways: Arc<Ways>,
}

impl CardBuffer for Heard {
    fn address(&self) -> Option<u64> {
        Some(self.address)
    }

    fn landed(&self, from: u64, bytes: u64, directly: bool) {
        match directly {
            true => self.ways.directly.fetch_add(bytes, SeqCst),
            false => self.ways.by_host.fetch_add(bytes, SeqCst),
        };
        let mut parts = self.parts.lock().unwrap();
        parts.push((from as usize, bytes as usize, directly));
    }
}

impl Piece for Card {
    fn bytes(&self) -> &[u8] {
        self.copy.get_or_init(|| {
            self.heard.ways.fetched.fetch_add(1, SeqCst);
            self.part.bytes().to_vec()
        })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.host
    }

    fn direct(&self) -> Option<u64> {
        Some(self.heard.address)
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.part.fill(bytes);
    }

    fn on_card(&self) -> Option<Arc<dyn CardBuffer>> {
        Some(self.heard.clone())
    }

    fn landed(&self) -> Vec<u8> {
        let mut all = self.host.clone();
        for (from, bytes, directly) in &*self.heard.parts.lock().unwrap() {
            let of = match directly {
                true => self.part.bytes(),
                false => &self.host,
            };
            all[*from..from + bytes].copy_from_slice(&of[*from..from + bytes]);
        }
        all
    }
}
