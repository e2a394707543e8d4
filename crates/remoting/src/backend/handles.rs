//! The driver's handles for a client's numbers: libraries with their kernels, pools, graphs.

use crate::codes::Code;
use crate::limits::HANDLES_MAX;
use std::collections::{HashMap, HashSet};

/// A kernel of a library.
pub(super) struct Kernel {
    pub(super) raw: usize,
    /// Offset and bytes of each parameter.
    pub(super) parameters: Vec<(u32, u32)>,
}

/// A library that is loaded.
pub(super) struct Loaded {
    pub(super) raw: usize,
    pub(super) kernels: Vec<Option<Kernel>>,
}

/// A client's pools, by its numbers.
#[derive(Default)]
pub(crate) struct Pools {
    pub(super) pools: HashMap<u64, Pool>,
}

pub(super) struct Pool {
    pub(super) raw: usize,
    /// The device has it from the start, so it cannot be destroyed.
    pub(super) is_default: bool,
}

impl Pools {
    pub(super) fn get(&self, pool: u64) -> Result<usize, Code> {
        let found = self.pools.get(&pool).ok_or(Code::INVALID_VALUE)?;
        Ok(found.raw)
    }

    /// Takes a pool out of the table, for its destruction.
    pub(super) fn remove(&mut self, pool: u64) -> Result<usize, Code> {
        match self.pools.get(&pool) {
            Some(found) if !found.is_default => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        let removed = self.pools.remove(&pool).ok_or(Code::INVALID_VALUE)?;
        Ok(removed.raw)
    }

    pub(super) fn is_free(&self, pool: u64) -> Result<(), Code> {
        match pool != 0 && !self.pools.contains_key(&pool) && self.pools.len() < HANDLES_MAX {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }
}

/// A client's graphs.
#[derive(Default)]
pub(crate) struct Graphs {
    pub(super) graphs: HashMap<u64, usize>,
    pub(super) executables: HashMap<u64, usize>,
    /// Streams that began to record, by the driver's handle. Streams that joined a recording are not here.
    pub(super) recording: HashSet<usize>,
}

impl Graphs {
    pub(super) fn graph(&self, graph: u64) -> Result<usize, Code> {
        self.graphs.get(&graph).copied().ok_or(Code::INVALID_VALUE)
    }

    pub(super) fn executable(&self, executable: u64) -> Result<usize, Code> {
        self.executables
            .get(&executable)
            .copied()
            .ok_or(Code::INVALID_VALUE)
    }

    pub(super) fn is_free(&self, handle: u64) -> Result<(), Code> {
        let is_known = self.graphs.contains_key(&handle) || self.executables.contains_key(&handle);
        let count = self.graphs.len() + self.executables.len();
        match handle != 0 && !is_known && count < HANDLES_MAX {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }
}
