//! The client's side of the session with the daemon.
//!
//! Each node has a *conductor*: one thread that owns the session's socket and the records of zones, pools, members and
//! leases. Application threads send it commands and wait; it joins, leases and maps for them. When the daemon dies, it finds
//! or starts the next one and hands everything back. Publishing and receiving normally do not use it.

mod client_context;
mod conductor;
mod daemon_session;
mod error;
mod fork;
mod gpu_watch;
mod host_memory;
mod inherited;
mod mapping;
mod membership;
mod memory;
mod recovery;
mod session;
mod timelines;
mod worker;
mod zone;
mod zone_records;

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod fake_daemon;
#[cfg(test)]
mod tests;

pub(crate) use client_context::ClientContext;
pub(crate) use conductor::{block_signals, Conductor, Joined};
pub(crate) use error::broken;
pub use error::ClientError;
pub(crate) use fork::ForkGuard;
pub(crate) use gpu_watch::{add_chore, once_over};
pub use host_memory::{GpuRange, HostMemory, MappedRange};
pub(crate) use mapping::{PoolMapping, WorkEnd};
pub(crate) use zone::ZoneView;
pub(crate) use zone_records::{subtract, Arena};
