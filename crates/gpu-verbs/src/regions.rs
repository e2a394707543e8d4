//! The registered memory of a card: a table from keys to memory, as with RDMA memory regions.

use crate::memory::ZeroedMemory;
use crate::view::Syndrome;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The first key. It is larger than 0 and than the key of receives without memory, so no memory gets either.
const FIRST_KEY: u32 = 0x1000;

/// The table of registered memory.
pub(crate) struct Regions {
    table: Mutex<BTreeMap<u32, Region>>,
    /// The next key. No key is used twice, so a stale key gives access to nothing.
    next_key: AtomicU32,
}

impl Default for Regions {
    fn default() -> Regions {
        Regions {
            table: Mutex::default(),
            next_key: AtomicU32::new(FIRST_KEY),
        }
    }
}

#[derive(Clone)]
struct Region {
    memory: Arc<ZeroedMemory>,
    is_remote: bool,
}

/// An atomic change of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds to the word.
    Add(u64),
    /// Compare-and-swap: if the word has the first value, replaces it by the second.
    Swap(u64, u64),
}

impl Regions {
    /// Gives memory a key. Peers may use it if `is_remote`.
    fn add(&self, memory: Arc<ZeroedMemory>, is_remote: bool) -> u32 {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        self.locked().insert(key, Region { memory, is_remote });
        key
    }

    fn remove(&self, key: u32) {
        self.locked().remove(&key);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u32, Region>> {
        self.table.lock().expect("nobody panics with it")
    }

    /// Returns the memory of a key, and the offset of `address` in it. Fails if the key or the range is wrong, or if a peer
    /// may not use the memory.
    fn find(
        &self,
        key: u32,
        address: u64,
        bytes: u64,
        by_peer: bool,
    ) -> Result<(Arc<ZeroedMemory>, u64), Syndrome> {
        let denied = match by_peer {
            true => Syndrome::RemoteAccess,
            false => Syndrome::LocalProtection,
        };
        let region = self.locked().get(&key).cloned().ok_or(denied)?;
        let at = address.checked_sub(region.memory.address()).ok_or(denied)?;
        let is_inside = at
            .checked_add(bytes)
            .is_some_and(|end| end <= region.memory.bytes());
        if !is_inside || (by_peer && !region.is_remote) {
            return Err(denied);
        }
        Ok((region.memory, at))
    }

    /// Checks that a work of this side may use the bytes.
    pub(crate) fn check(&self, key: u32, address: u64, bytes: u64) -> Result<(), Syndrome> {
        self.find(key, address, bytes, false).map(|_| ())
    }

    pub(crate) fn read(
        &self,
        key: u32,
        address: u64,
        bytes: u32,
        by_peer: bool,
    ) -> Result<Vec<u8>, Syndrome> {
        let (memory, at) = self.find(key, address, bytes.into(), by_peer)?;
        let mut found = vec![0; bytes as usize];
        memory.read(at, &mut found);
        Ok(found)
    }

    pub(crate) fn write(
        &self,
        key: u32,
        address: u64,
        bytes: &[u8],
        by_peer: bool,
    ) -> Result<(), Syndrome> {
        let (memory, at) = self.find(key, address, bytes.len() as u64, by_peer)?;
        memory.write(at, bytes);
        Ok(())
    }

    /// Changes a word atomically for a peer. Returns the old value.
    pub(crate) fn change(&self, key: u32, address: u64, change: Change) -> Result<u64, Syndrome> {
        let (memory, at) = self.find(key, address, size_of::<u64>() as u64, true)?;
        let word = memory.word(at).ok_or(Syndrome::RemoteInvalid)?;
        Ok(match change {
            Change::Add(more) => word.fetch_add(more, Ordering::AcqRel),
            Change::Swap(expected, desired) => {
                match word.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(before) | Err(before) => before,
                }
            }
        })
    }
}

/// The registration of memory with a card. Dropping it makes the key invalid.
pub struct Registration {
    key: u32,
    regions: Arc<Regions>,
    memory: Arc<ZeroedMemory>,
}

impl Registration {
    pub(crate) fn new(
        regions: &Arc<Regions>,
        memory: &Arc<ZeroedMemory>,
        is_remote: bool,
    ) -> Registration {
        Registration {
            key: regions.add(Arc::clone(memory), is_remote),
            regions: Arc::clone(regions),
            memory: Arc::clone(memory),
        }
    }

    /// The key. Works of this side use it. A peer's works use it too, unless the carrier gives the memory another key.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<ZeroedMemory> {
        &self.memory
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.regions.remove(self.key);
    }
}
