//! The links of a host, which carry topics between the hosts of a realm.
//!
//! The process `rgaps-links` is a client of the daemon. It has *one* subscriber per topic, however many hosts want the topic, and
//! holds each sample in its block until all of those hosts have acknowledged it. For each publisher of another host it has a publisher
//! here: messages land in its loans, are published once, and fan out without copies. Hosts find each other over Zenoh
//! ([`control_plane`]); messages, routes and interest go through lanes (`rgaps-transport`, `rgaps-routing`). A host forwards a message
//! while it arrives, along a tree that the origin names. See `docs/decisions/0016-links-process.md`, `0018-relay.md` and `0038-house.md`.
#![warn(clippy::too_many_lines)]
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
mod pool_memory;
mod probe;
mod quotas;
mod rails;
mod rate;
mod reach;
mod remote_host;
mod traces;
mod tree;
pub mod wire;

pub use conductor::{LinksConductor, Seats};

use rgaps_sync::lock;
