//! RDMA that GPU kernels post: queue pairs in memory that kernels write, and the back ends that serve them.
//!
//! A kernel writes entries as an mlx5 network card reads them (`rgaps/device_rdma.cuh`): send queue, doorbell record, doorbell; it reads
//! completions as such a card writes them. A *back end* reads these entries and writes the completions. The same kernel runs on all:
//!
//! | back end | who reads the entries | for |
//! |---|---|---|
//! | mlx5 direct | the card, without a CPU in between | no host: [`mlx5::refusal`] refuses it, since it never ran on a card |
//! | proxy | a thread of the host ([`Card`]), which posts on a carrier: TCP ([`QueuePair::connect_tcp`]) or RDMA verbs ([`VerbsCarrier`]) | hosts without such a card |
//! | model | the same thread, with memory of this process as the peer ([`QueuePair::connect`]) | tests, and measuring what posting costs |
//!
//! ```
//! # fn main() -> Result<(), rgaps_gpu_verbs::GpuVerbsError> {
//! use rgaps_gpu_verbs::*;
//! println!("{}", choose());
//! let card = Card::new(rgaps_layout::Domain::Host)?;
//! let memory = ZeroedMemory::new(card.kernels(), 4096)?;
//! let registration = card.register(&memory, true);
//! let (mut one, mut other) = (card.queue_pair(Depths::default())?, card.queue_pair(Depths::default())?);
//! one.connect(&mut other, Behaviour::default())?;
//! // Kernels get `one.view()`, `memory.address()` and `registration.key()`.
//! assert_eq!(one.view().abilities, CAN_WRITE | CAN_READ | CAN_CHANGE);
//! # drop(registration);
//! # Ok(()) }
//! ```
//! [`LinkEnd`] is one end of a link between device topics of two hosts, whose messages kernels carry (`rgaps/device_link.cuh`).
//!
//! The decoder of the software card (`entry.rs`) shares nothing with the encoder of the kernels, so each checks the other.
//! `docs/decisions/0048-gpu-verbs.md` has the reasons, and names what is not proven.

#![warn(clippy::too_many_lines)]

mod back_end;
mod card;
mod carrier;
mod engine;
mod entry;
mod link;
mod loopback;
mod memory;
pub mod mlx5;
mod queue;
mod regions;
mod tcp;
mod verbs_carrier;
mod view;

pub use back_end::{choose, BackEnd, Choice};
pub use card::{Card, QueuePair};
pub use engine::{Behaviour, Counts};
pub use link::{Buffer, LinkEnd, LinkEndView, LinkSizes};
pub use memory::ZeroedMemory;
pub use queue::{Depths, QueueMemory, Rings};
pub use regions::Registration;
pub use verbs_carrier::VerbsCarrier;
pub use view::{
    header, QueuePairView, Syndrome, CAN_CHANGE, CAN_READ, CAN_WRITE, ENTRY_BYTES, QUEUE_LOG2_MAX,
    QUEUE_LOG2_MIN, WORK_BYTES_MAX,
};

/// Why a queue pair, or memory for it, could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuVerbsError {
    /// GPU memory could not be allocated or registered.
    #[error(transparent)]
    Pool(#[from] rgaps_pool::PoolError),
    /// An RDMA device refused a call of verbs.
    #[error(transparent)]
    Verbs(#[from] rgaps_verbs::VerbsError),
    /// The system refused a thread or a socket.
    #[error("the system refused a thread or a socket: {0}")]
    System(std::io::Error),
    /// An argument is out of range, or does not go with the others.
    #[error("{0}")]
    Argument(String),
    /// The card's thread has ended.
    #[error("the card of this queue pair has ended")]
    CardEnded,
}
