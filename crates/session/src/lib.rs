//! The session between a client process and the daemon of its host: messages, the socket that
//! carries them with file descriptors, configuration, and finding or starting the daemon.
//!
//! A session carries joins, leaves, leases and mappings; never a message of a topic.

mod message;

pub use message::*;
