//! Host memory that a loan on a GPU is filled in: the driver knows its pages, so parts of a message are copied up while
//! others still land, and nobody waits for a copy.
//!
//! It is this process's own, in regions that the driver is told of once. All copies are queued on one stream, and a block
//! is used again when that has passed the last one of it.

use super::PublisherCore;
use crate::client::{PoolMapping, WorkEnd};
use crate::LoanError;
use rgaps_cuda::{Context, CudaError, CudaStream, PinnedBuffer};
use rgaps_layout::BLOCK_ALIGN;
use rgaps_pool::{Stream, Tlsf};
use rgaps_topic::{progress, Point, Progress};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region is at least this large, so that small messages seldom need one.
const REGION_BYTES_MIN: u64 = 8 << 20;

/// The staging memory of a publisher on a GPU.
pub(super) struct Staging {
    stream: CudaStream,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    regions: Vec<Region>,
    /// Blocks that were given back while copies of them may still run: region, handle there, and the point that ends the copies.
    returned: Vec<(usize, u32, Point)>,
}

struct Region {
    /// Network cards know the pages until it is dropped, which is before they are.
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
    /// The stream that copies of it are queued on.
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

    /// A block, if one is free.
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

    /// One more region, large enough for a block of `bytes` bytes. It takes as long as the kernel needs for its pages.
    fn grow(&self, mapping: &PoolMapping, bytes: u64) -> Result<(), CudaError> {
        let needed = Tlsf::lease_bytes(bytes, BLOCK_ALIGN).unwrap_or(u64::MAX);
        let all: u64 = self.blocks().regions.iter().map(|of| of.bytes).sum();
        // Half as much again as there is, so that the number of regions grows with the logarithm.
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

    /// A block to fill a loan in, if one is free.
    pub(super) fn staged_at_hand(&self, bytes: u64) -> Option<StagedBlock> {
        let staging = self.staging().clone()?;
        staging.at_hand(self, bytes)
    }

    /// A block to fill a loan in. There may have to be pages for it, which takes its time.
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

    /// Takes a block back, for when the copies that are queued have read it.
    pub(super) fn unstage(&self, block: &StagedBlock) {
        let stream = block.stream();
        let asked = self.own.mapping.ask(&self.client, stream);
        let mut blocks = block.staging.blocks();
        match asked {
            WorkEnd::Done => blocks.free(block.region, block.handle),
            WorkEnd::At(point) => blocks.returned.push((block.region, block.handle, point)),
            // Nobody knows: it stays until the publisher ends.
            WorkEnd::Later => {}
        }
    }
}
