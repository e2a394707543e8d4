//! Staging memory: pinned host memory in which the links fill a loan on a GPU. A stream copies parts of the message to the
//! GPU while others still arrive, and no thread waits for a copy.
//!
//! The memory is private to this process, in regions that are pinned once. All copies are queued on one stream; a block is
//! reused when the stream has passed the block's last copy.

use super::PublisherCore;
use crate::client::{PoolMapping, WorkEnd};
use crate::LoanError;
use rgaps_cuda::{Context, CudaError, CudaStream, PinnedBuffer};
use rgaps_layout::BLOCK_ALIGN;
use rgaps_pool::{Stream, Tlsf};
use rgaps_topic::{progress, Point, Progress};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region is at least this large, so that small messages seldom need another one.
const REGION_BYTES_MIN: u64 = 8 << 20;

/// The staging memory of a publisher on a GPU.
pub(super) struct Staging {
    stream: CudaStream,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    regions: Vec<Region>,
    /// Blocks that were given back while copies from them may still run: region, handle there, and the point behind the last copy.
    returned: Vec<(usize, u32, Point)>,
}

struct Region {
    /// The registration of the pages with network cards. Declared before `pages`, so it is dropped first.
    _registered: Option<Box<dyn Send + Sync>>,
    pages: Arc<PinnedBuffer>,
    tlsf: Tlsf,
    bytes: u64,
}

/// A block of staging memory.
pub(super) struct StagedBlock {
    staging: Arc<Staging>,
    region: usize,
    handle: u32,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl StagedBlock {
    /// The stream on which copies from this block are queued.
    pub(super) fn stream(&self) -> Stream {
        self.staging.stream.handle()
    }
}

impl Blocks {
    fn allocate(&mut self, staging: &Arc<Staging>, bytes: u64) -> Option<StagedBlock> {
        let mut regions = self.regions.iter_mut().enumerate();
        regions.find_map(|(region, of)| {
            let block = of.tlsf.allocate(bytes, BLOCK_ALIGN)?;
            Some(StagedBlock {
                staging: staging.clone(),
                region,
                handle: block.handle,
                address: of.pages.address() + block.offset,
                bytes,
            })
        })
    }

    fn free(&mut self, region: usize, handle: u32) {
        let freed = self.regions[region].tlsf.free(handle);
        debug_assert!(freed.is_ok());
    }
}

impl Staging {
    fn new(context: &Arc<Context>) -> Result<Staging, CudaError> {
        Ok(Staging {
            stream: CudaStream::new(context.clone())?,
            blocks: Mutex::default(),
        })
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of the regions that exist. None: no such block is free.
    fn at_hand(self: &Arc<Self>, core: &PublisherCore, bytes: u64) -> Option<StagedBlock> {
        let mut blocks = self.blocks();
        let is_over = |point| {
            progress(&core.storage, point) != Progress::Pending || core.client.zone.is_gpu_lost()
        };
        let returned = std::mem::take(&mut blocks.returned);
        for (region, handle, point) in returned {
            match is_over(point) {
                true => blocks.free(region, handle),
                false => blocks.returned.push((region, handle, point)),
            }
        }
        blocks.allocate(self, bytes)
    }

    /// Adds a region that is large enough for a block of `bytes` bytes. Takes as long as the kernel needs to pin the pages.
    fn grow(&self, mapping: &PoolMapping, bytes: u64) -> Result<(), CudaError> {
        let needed = Tlsf::lease_bytes(bytes, BLOCK_ALIGN).unwrap_or(u64::MAX);
        let all: u64 = self.blocks().regions.iter().map(|of| of.bytes).sum();
        // At least half of all bytes so far, so that the number of regions grows with their logarithm.
        let wanted = needed.max(all / 2).max(REGION_BYTES_MIN);
        let wanted = wanted.next_multiple_of(rgaps_layout::GRANULE_BYTES);
        let make = |bytes| {
            let pages = PinnedBuffer::where_possible(self.stream.context().clone(), bytes)?;
            Ok((pages, bytes))
        };
        let (pages, bytes) = match make(wanted) {
            Err(_) if wanted > needed => make(needed)?,
            made => made?,
        };
        let mut tlsf = Tlsf::new();
        if let Err(error) = tlsf.add_region(0, bytes) {
            tracing::error!(%error, bytes, "staging memory of this size cannot be used");
            return Err(CudaError::MemoryOperations("staging of such a size"));
        }
        let pages = Arc::new(pages);
        let registered = mapping.report_staging(&pages);
        self.blocks().regions.push(Region {
            _registered: registered,
            pages,
            tlsf,
            bytes,
        });
        Ok(())
    }
}

impl PublisherCore {
    fn staging(&self) -> MutexGuard<'_, Option<Arc<Staging>>> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block in which to fill a loan, without waiting for the kernel. None: no such block is free.
    pub(super) fn staged_at_hand(&self, bytes: u64) -> Option<StagedBlock> {
        let staging = self.staging().clone()?;
        staging.at_hand(self, bytes)
    }

    /// A block in which to fill a loan. Pins more pages if no block is free, which may take long.
    pub(super) fn staged(&self, bytes: u64) -> Result<StagedBlock, LoanError> {
        let mapping = &self.own.mapping;
        let Some(context) = mapping.context() else {
            return Err(LoanError::Argument(
                "a loan in host memory is filled where it is".to_owned(),
            ));
        };
        let known = self.staging().clone();
        let staging = match known {
            Some(staging) => staging,
            None => {
                let new = Staging::new(context).map_err(|error| mapping.fail(error))?;
                self.staging().get_or_insert(Arc::new(new)).clone()
            }
        };
        loop {
            if let Some(block) = staging.at_hand(self, bytes) {
                return Ok(block);
            }
            staging
                .grow(mapping, bytes)
                .map_err(|error| mapping.fail(error))?;
        }
    }

    /// Takes back a block, for reuse once the queued copies have read it.
    pub(super) fn unstage(&self, block: &StagedBlock) {
        let stream = block.stream();
        let asked = self.own.mapping.ask(&self.client, stream);
        let mut blocks = block.staging.blocks();
        match asked {
            WorkEnd::Done => blocks.free(block.region, block.handle),
            WorkEnd::At(point) => blocks.returned.push((block.region, block.handle, point)),
            // No point could be queued, so the copies' end is unknown: the block stays until the publisher ends.
            WorkEnd::Later => {}
        }
    }
}
