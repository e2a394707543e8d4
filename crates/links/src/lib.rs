//! The links of a host: carries topics between the hosts of a realm.
//!
//! The process `rgaps-links` is a client of the daemon. It has *one* subscriber per topic, however many hosts want it, and
//! holds a sample where it is until each of those hosts has acknowledged it. For each publisher of another host it has a publisher here:
//! messages land in its loans, are published once, and fan out without copies. Hosts find each other over Zenoh ([`control_plane`]);
//! messages, routes and interest go through lanes (`rgaps-transport`, `rgaps-routing`). A message for hosts behind this one goes on while
//! it arrives, over a tree that its origin names. See `docs/decisions/0016-links-process.md`, `0018-relay.md` and `0038-house.md`.
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
