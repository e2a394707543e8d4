//! Work on streams: messages that are published before they are written, and let go of before they
//! are read.

use crate::pattern::{fill, holds, Identity};
use anyhow::Context as _;
use rgaps::{Domain, Loan, LoanError, RecvError, Sample, Stream};
use rgaps_cuda::{Context, CudaStream, Driver, PinnedBuffer};
use rgaps_testkit::Random;
use std::sync::Arc;

/// What no message is all of.
const GARBAGE: u8 = 0xa5;
/// More than any message has.
const LANE_BYTES: u64 = 4 << 20;
const LANES: usize = 3;

/// A stream with host memory that its copies come from or go to.
struct Lane {
    stream: CudaStream,
    memory: PinnedBuffer,
    /// The copy that may still be under way.
    copied: Option<(Identity, usize)>,
}

/// This process's streams on the GPU that it writes or reads messages on.
pub struct Lanes {
    lanes: Vec<Lane>,
    /// Messages that were not what they should be.
    wrong: Vec<Identity>,
}

impl Lanes {
    /// For messages in a domain. None: it is the host.
    pub fn new(domain: Domain) -> anyhow::Result<Option<Lanes>> {
        let Domain::Cuda(uuid) = domain else {
            return Ok(None);
        };
        let context = Context::retain(Driver::load()?, uuid).context("the GPU's context")?;
        let lanes = (0..LANES).map(|_| Lane::new(&context));
        Ok(Some(Lanes {
            lanes: lanes.collect::<anyhow::Result<_>>()?,
            wrong: Vec::new(),
        }))
    }

    /// Queues writing a message on one of the streams, which it gives: publish or drop the loan there.
    pub fn write(
        &mut self,
        identity: Identity,
        loan: &mut Loan,
        random: &mut Random,
    ) -> Result<Stream, LoanError> {
        let lane = &mut self.lanes[random.below(LANES as u64) as usize];
        // The lane's last message may still be copied from where this one is put.
        lane.finish();
        let bytes = loan.len() as usize;
        fill(identity, lane.bytes_mut(bytes));
        let stream = lane.stream.handle();
        if bytes > 0 {
            // Whoever reads too early, or after another has written too late, sees this.
            // SAFETY: the loan's bytes are ours until it is published on the stream, and the lane's until
            // the stream has been waited for.
            unsafe {
                if let Err(error) = lane.stream.fill(loan.address(), GARBAGE, loan.len()) {
                    return Err(LoanError::Argument(error.to_string()));
                }
                loan.copy_from_on(0, lane.memory.address(), loan.len(), stream)?;
            }
        }
        Ok(stream)
    }

    /// Queues reading a message on one of the streams, and lets go of it there at once.
    pub fn read(
        &mut self,
        identity: Identity,
        sample: Sample,
        random: &mut Random,
    ) -> Result<(), RecvError> {
        let lane = &mut self.lanes[random.below(LANES as u64) as usize];
        self.wrong.extend(lane.check());
        let stream = lane.stream.handle();
        sample.wait_on(stream)?;
        let bytes = sample.len();
        // SAFETY: the sample's bytes are kept until the stream has passed, and the lane's are ours and
        // looked at only after that.
        let copied = unsafe {
            let to = lane.memory.address();
            lane.stream.copy(to, sample.address(), bytes)
        };
        if copied.is_ok() {
            lane.copied = Some((identity, bytes as usize));
        }
        sample.release_on(stream);
        Ok(())
    }

    /// Waits for all that is being read.
    pub fn finish(&mut self) {
        self.wrong
            .extend(self.lanes.iter_mut().filter_map(Lane::check));
    }

    /// Messages that were not what they should be, as far as they have been looked at.
    pub fn take_wrong(&mut self) -> Vec<Identity> {
        std::mem::take(&mut self.wrong)
    }
}

impl Lane {
    fn new(context: &Arc<Context>) -> anyhow::Result<Lane> {
        Ok(Lane {
            stream: CudaStream::new(context.clone())?,
            memory: PinnedBuffer::new(context.clone(), LANE_BYTES)?,
            copied: None,
        })
    }

    fn finish(&self) {
        if let Err(error) = self.stream.synchronize() {
            eprintln!("a stream cannot be waited for: {error}");
        }
    }

    fn check(&mut self) -> Option<Identity> {
        let (identity, bytes) = self.copied.take()?;
        self.finish();
        (!holds(identity, self.bytes_mut(bytes))).then_some(identity)
    }

    /// The first bytes of its memory, of which no work is under way.
    fn bytes_mut(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes as u64 <= LANE_BYTES);
        // SAFETY: mapped as long as `self`, and borrowed exclusively; work on it has been waited for.
        unsafe { std::slice::from_raw_parts_mut(self.memory.address() as *mut u8, bytes) }
    }
}
