//! The links of a host: carries topics between the hosts of a realm.
//!
//! A process of its own beside the daemon, and to it a client like others. Of each topic that other hosts
//! want it is *one* subscriber, whatever their number: a sample is held, where it is, until each of
//! those hosts has acknowledged it. Of each publisher elsewhere it is a publisher here: what comes lands in
//! its loans, is published once, and fans out without copies. Hosts find each other over Zenoh ([`control_plane`]);
//! messages, what is said about them, routes and interest go through lanes
//! (`rgaps-transport`, `rgaps-routing`). What is for hosts behind this one goes on while it
//! arrives, over a tree that its origin names. See `docs/decisions/0016-links-process.md`, `0018-relay.md` and `0038-house.md`.
#![deny(unsafe_code)]

mod conductor;
pub mod control_plane;
mod counts;
mod delivered;
mod egress;
mod event;
mod host_link;
mod ingress;
mod issues;
pub mod keys;
mod network;
mod own_publishers;
mod pool_memory;
mod probe;
mod quotas;
mod rails;
mod rate;
mod remote_host;
mod traces;
mod tree;
pub mod wire;

pub use conductor::{LinksConductor, Seats};

use rgaps_sync::lock;
