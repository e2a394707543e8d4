//! One side of a test: a card, memory with slots and words, a queue pair, a board.

use crate::jobs::{Board, Job, Jobs, Task};
use anyhow::{bail, Result};
use rgaps_gpu_verbs::{Buffer, Card, Depths, QueuePair, Registration, ZeroedMemory};
use rgaps_layout::Domain;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the host waits for a job.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of the words behind the slots. Behind the words lies one more slot, into which jobs read back.
const WORDS_BYTES: u64 = 64 * 16;

/// Limit of a job's waits, in billions of ticks: seconds on the host, less on a GPU. Far longer than a busy machine needs.
pub const LIMIT_S: u64 = 300;

/// Sizes and limits of jobs.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub slots: u32,
    pub slot_bytes: u32,
    /// Limit of a job's waits in ticks: nanoseconds on the host, cycles on a GPU.
    pub ticks_max: u64,
}

impl Sizes {
    fn stride(self) -> u64 {
        u64::from(self.slot_bytes).next_multiple_of(256)
    }
}

pub struct Side {
    // Fields drop in this order: the queue pair before the memory that its card uses. All kernels have ended by then.
    pub pair: QueuePair,
    pub registration: Registration,
    board: Arc<ZeroedMemory>,
    memory: Arc<ZeroedMemory>,
    sizes: Sizes,
}

impl Side {
    /// Makes a side. Its slots and words lie in the domain `payload`.
    pub fn new(kernels: Domain, payload: Domain, depths: Depths, sizes: Sizes) -> Result<Side> {
        let card = Card::new(kernels)?;
        let bytes = 2 * u64::from(sizes.slots) * sizes.stride() + WORDS_BYTES + sizes.stride();
        let memory = match payload {
            Domain::Host => ZeroedMemory::host(kernels, bytes)?,
            gpu => ZeroedMemory::new(gpu, bytes)?,
        };
        let registration = card.register(&memory, true);
        Ok(Side {
            pair: card.queue_pair(depths)?,
            board: ZeroedMemory::host(kernels, size_of::<Board>() as u64)?,
            registration,
            memory,
            sizes,
        })
    }

    pub fn buffer(&self) -> Buffer {
        Buffer {
            address: self.memory.address(),
            key: self.registration.key(),
            padding: 0,
        }
    }

    /// A job of this side that uses the peer's memory `remote`.
    pub fn job(&self, task: Task, messages: u64, remote: Buffer) -> Job {
        Job {
            pair: self.pair.view(),
            local: self.buffer(),
            remote,
            board: self.board.address(),
            messages,
            ticks_max: self.sizes.ticks_max,
            slots: self.sizes.slots,
            slot_bytes: self.sizes.slot_bytes,
            task,
            ..Job::default()
        }
    }

    pub fn board(&self) -> Board {
        Board::read(&self.board)
    }

    /// Waits until the job's board shows that it runs or has ended.
    pub fn wait_until_running(&self) -> Result<()> {
        let until = Instant::now() + LIMIT;
        loop {
            let board = self.board();
            if board.is_running != 0 || board.is_done != 0 {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("a job does not begin");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes the start of the first slot that this side sends.
    pub fn write_source(&self, bytes: &[u8; 8]) {
        self.memory.write(0, bytes);
    }

    /// Reads the start of the first slot that the peer writes.
    pub fn landed(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        let at = u64::from(self.sizes.slots) * self.sizes.stride();
        self.memory.read(at, &mut bytes);
        bytes
    }

    pub fn let_go_on(&self) {
        let at = offset_of!(Board, may_go_on) as u64;
        self.board.write(at, &1u64.to_ne_bytes());
    }

    /// Checks the results of a job that has ended.
    pub fn check(&self, who: &str, messages: u64) -> Result<()> {
        let board = self.board();
        let counts = self.pair.counts();
        if board.failed_step != 0 || board.corrupt != 0 || board.messages != messages {
            bail!(
                "{who}: step {} returned {}; {} of {messages} messages, {} words wrong; {counts:?}",
                board.failed_step,
                board.failed_status,
                board.messages,
                board.corrupt
            );
        }
        if !counts.violations.is_empty() {
            bail!(
                "{who}: the card saw kernels break the rules: {:?}",
                counts.violations
            );
        }
        Ok(())
    }
}

/// Runs two sides' jobs at once.
pub fn run_both(jobs: &Jobs, one: &Job, other: &Job) -> Result<()> {
    jobs.run(&[*one, *other], 1)
}
