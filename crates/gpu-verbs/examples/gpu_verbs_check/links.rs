//! Links between device topics. Each host runs two kernels: one publishes or receives, the other carries the messages to or from the other
//! host.

use crate::jobs::{Board, Job, Jobs, Task};
use crate::side::Sizes;
use anyhow::{ensure, Result};
use rgaps_device::{DeviceTopic, Geometry};
use rgaps_gpu_verbs::{Card, LinkEnd, LinkSizes, ZeroedMemory};
use rgaps_layout::Domain;
use rgaps_verbs::Device;
use std::net::TcpStream;
use std::sync::Arc;

/// `rdma::Status::failed`.
const FAILED: i64 = -32;

/// One host of a link.
pub struct LinkSide {
    end: LinkEnd,
    topic: DeviceTopic,
    seat: u32,
    tasks: [Task; 2],
    boards: [Arc<ZeroedMemory>; 2],
    sizes: Sizes,
}

impl LinkSide {
    /// Makes the side that sends, or with [`Task::Receive`] the one that receives. The link runs over RDMA verbs on `device`, or without a
    /// device over the TCP connection `stream`.
    pub fn new(
        kernels: Domain,
        task: Task,
        sizes: Sizes,
        device: Option<&Arc<Device>>,
        mut stream: TcpStream,
    ) -> Result<LinkSide> {
        let geometry = Geometry {
            depth: 16,
            blocks: 24,
            block_bytes: sizes.slot_bytes.into(),
        };
        let topic = DeviceTopic::create(kernels, geometry)?;
        let link = LinkSizes {
            slots: sizes.slots,
            message_bytes: topic.geometry().block_bytes,
        };
        let card = Card::new(kernels)?;
        let end = match device {
            None => LinkEnd::over_tcp(&card, link, stream)?,
            Some(device) => LinkEnd::over_verbs(&card, link, device, &mut stream)?,
        };
        let board_bytes = size_of::<Board>() as u64;
        Ok(LinkSide {
            end,
            seat: topic.take_seat()?,
            topic,
            tasks: match task {
                Task::Send => [Task::TopicPublish, Task::Egress],
                _ => [Task::TopicReceive, Task::Ingress],
            },
            boards: [
                ZeroedMemory::host(kernels, board_bytes)?,
                ZeroedMemory::host(kernels, board_bytes)?,
            ],
            sizes,
        })
    }

    /// Makes both sides in this process.
    pub fn pair(
        kernels: Domain,
        sizes: Sizes,
        devices: Option<&[Arc<Device>; 2]>,
        (near, far): (TcpStream, TcpStream),
    ) -> Result<[LinkSide; 2]> {
        let device = |at: usize| devices.map(|devices| &devices[at]);
        std::thread::scope(|scope| {
            let far = scope.spawn(|| LinkSide::new(kernels, Task::Receive, sizes, device(1), far));
            let near = LinkSide::new(kernels, Task::Send, sizes, device(0), near);
            let far = far.join().expect("it does not panic");
            Ok([near?, far?])
        })
    }

    /// The jobs of its two kernels.
    pub fn jobs(&self, messages: u64) -> [Job; 2] {
        let view = self.end.view();
        [0, 1].map(|at| Job {
            pair: view.pair,
            local: view.local,
            remote: view.remote,
            board: self.boards[at].address(),
            messages,
            ticks_max: self.sizes.ticks_max,
            slots: view.slots as u32,
            slot_bytes: view.message_bytes as u32,
            task: self.tasks[at],
            topic: self.topic.view(),
            seat: self.seat,
            ..Job::default()
        })
    }

    /// Checks the results of both kernels. Returns the board of the one that publishes or receives.
    pub fn check(&self, messages: u64) -> Result<Board> {
        let counts = self.end.pair().counts();
        let boards = [0, 1].map(|at| Board::read(&self.boards[at]));
        for (task, board) in self.tasks.iter().zip(&boards) {
            ensure!(
                board.failed_step == 0 && board.corrupt == 0 && board.messages == messages,
                "{task:?}: step {} returned {}; {} of {messages} messages, {} bytes wrong; {counts:?}",
                board.failed_step,
                board.failed_status,
                board.messages,
                board.corrupt
            );
        }
        ensure!(
            counts.violations.is_empty(),
            "the card saw kernels break the rules: {:?}",
            counts.violations
        );
        Ok(boards[0])
    }

    /// Checks that the kernel that carries messages notices that the other host has gone, also while it waits for messages.
    pub fn is_told(&self, jobs: &Jobs) -> Result<()> {
        let job = Job {
            fault: 1,
            ticks_max: 1_000_000,
            ..self.jobs(1)[1]
        };
        jobs.run(&[job], 1)?;
        let board = Board::read(&self.boards[1]);
        ensure!(
            board.failed_step == 3 && board.failed_status == FAILED,
            "{:?}: step {} returned {}",
            self.tasks[1],
            board.failed_step,
            board.failed_status
        );
        Ok(())
    }
}
