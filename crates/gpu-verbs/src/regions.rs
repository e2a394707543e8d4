//! Memory that a card knows by keys.

use crate::memory::Memory;
use crate::view::Syndrome;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Keys are handed out from here on: none is 0, and none is the mark of a receive without memory.
const FIRST_KEY: u32 = 0x1000;

/// Registered memory.
pub(crate) struct Regions {
    table: Mutex<BTreeMap<u32, Region>>,
    /// Keys are never used twice, so that an old one opens nothing.
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
    memory: Arc<Memory>,
    is_remote: bool,
}

/// An atomic change of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds.
    Add(u64),
    /// Replaces the first by the second.
    Swap(u64, u64),
}

impl Regions {
    /// Gives memory a key. Peers may use it if `is_remote`.
    fn add(&self, memory: Arc<Memory>, is_remote: bool) -> u32 {
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

    /// The memory of a key, and where the bytes are in it.
    fn find(
        &self,
        key: u32,
        address: u64,
        bytes: u64,
        by_peer: bool,
    ) -> Result<(Arc<Memory>, u64), Syndrome> {
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

    /// Whether the bytes may be used.
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

    /// Changes a word of the peer's, and gives what it was.
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

/// Memory that a card knows.
pub struct Registration {
    key: u32,
    regions: Arc<Regions>,
    memory: Arc<Memory>,
}

impl Registration {
    pub(crate) fn new(
        regions: &Arc<Regions>,
        memory: &Arc<Memory>,
        is_remote: bool,
    ) -> Registration {
        Registration {
            key: regions.add(Arc::clone(memory), is_remote),
            regions: Arc::clone(regions),
            memory: Arc::clone(memory),
        }
    }

    /// Its key, for works of this side, and for those of peers unless the carrier has its own.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.regions.remove(self.key);
    }
}
