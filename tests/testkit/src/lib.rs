//! What tests share.
//!
//! [`until`] waits for a state. [`ports`] finds ports that no other test has. [`lingering`] makes a socket that blocks whoever
//! closes it. [`Random`] gives the same numbers for the same seed. [`content`] makes the bytes of a message.
//! [`CountingAllocator`] counts allocations, for tests of code that must not allocate. With the feature `daemon` there are programs that a test starts
//! and that end with it: `Daemon`, `Process`. With the feature `driver` tests use the CUDA driver of `tests/driver`.

pub mod allocations;
mod content;
#[cfg(feature = "daemon")]
mod daemon;
#[cfg(feature = "driver")]
pub mod driver;
mod ports;
mod process;
pub mod programs;
mod random;
mod sockets;
mod stopping;
mod waiting;

pub use allocations::CountingAllocator;
pub use content::content;
#[cfg(feature = "daemon")]
pub use daemon::{Daemon, DaemonBuilder};
pub use ports::ports;
pub use process::{command_within, Process};
pub use random::{mix, seed, Random};
pub use sockets::lingering;
pub use stopping::{resume, stop};
pub use waiting::{until, LIMIT, LOOK_AGAIN};
