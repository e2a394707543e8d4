//! RDMA: ordered, reliable channels of frames over queue pairs, and writes straight into a peer's memory
//! before them. Knows neither links nor topics nor GPUs.
//!
//! Each end of a [`Channel`] has a ring that the peer writes with RDMA WRITE_WITH_IMM; the immediate data name
//! the frame's slot, so nothing is zeroed and nothing polls memory. The head returns by a one-sided write,
//! with a notice only to a peer that says that it stalls. So three credits bound what is in flight, and none
//! can be exceeded: bytes of the ring, receives that the peer has posted, slots of the send queue.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rgaps_verbs::{in_process::{Faults, Network}, *};
//! use std::io::IoSlice;
//! // Or: Verbs::load()?.devices()..
//! let network = Network::new(Faults::default());
//! let (one, other) = (network.device("one")?, network.device("other")?);
//! let a = Channel::new(&one, ChannelConfig::default())?;
//! let b = Channel::new(&other, ChannelConfig::default())?;
//! // Each end's address reaches the other over an authenticated connection.
//! let address = ChannelAddress::decode(&b.address().encode()).ok_or("no address")?;
//! a.connect(&address)?;
//! b.connect(&a.address())?;
//!
//! // The bytes are in b's memory before the frame arrives.
//! let from = Allocation::new(4096);
//! from.write(0, b"payload");
//! let place = Allocation::new(4096);
//! let region = Region::new(&other, place.clone(), Access::RemoteWrite)?;
//! let direct = Direct {
//!     region: Region::new(&one, from, Access::LocalRead)?,
//!     offset: 0,
//!     bytes: 7,
//!     address: region.address(),
//!     key: region.remote_key().ok_or("no key")?,
//! };
//! let number = a.send(&[IoSlice::new(b"it is "), IoSlice::new(b"there")], Some(&direct))?;
//! assert_eq!(number, Some(1), "`None`: no credit now; ask again when `Progress::room` says so");
//! let mut frames = vec![];
//! let mut each = |arrived: Arrived<'_>| match arrived {
//!     Arrived::Frame(frame) => { frames.push(frame.to_vec()); Ok(()) }
//!     Arrived::Written { .. } => Err("nobody marks writes here".into()),
//! };
//! let progress = b.progress(&mut each)?;
//! assert_eq!((progress.frames, &frames[0][..]), (1, &b"it is there"[..]));
//! let mut landed = [0; 7];
//! place.read(0, &mut landed);
//! assert_eq!(&landed, b"payload");
//!
//! // What frame 1 needed is free when its works have completed.
//! a.progress(&mut |_| Ok(()))?;
//! assert!(a.completed() >= 1);
//! # Ok(()) }
//! ```
//! Who receives calls [`Channel::serve`] over and over, which polls and then sleeps; or waits for
//! [`Channel::fds`] itself, between [`Channel::arm`], a [`Channel::progress`] that brings nothing, and
//! [`Channel::woken`]. Another thread may send at the same time.
//!
//! An end is final. The queue pair fails at the first error, so the peer writes nothing any more; when
//! [`Channel::close`] has come back, nothing is in flight, and regions may be used for something else. The
//! order of the end is kept by the types: a channel holds its regions and those of its direct writes, a region
//! its memory and its device.
#![warn(clippy::too_many_lines)]
#![allow(clippy::result_large_err)]

mod abi;
mod address;
mod channel;
mod counts;
pub mod cursors;
mod device;
mod error;
mod fabric;
pub mod in_process;
mod library;
mod location;
mod notice;
mod ports;
mod queue_pair;
#[cfg(feature = "raw")]
pub mod raw;
mod receiving;
mod region;
mod sending;
mod status;
mod trial;
mod verbs;
mod waiting;

pub use address::{ChannelAddress, ADDRESS_BYTES, PEER_RING_BYTES_MAX};
pub use channel::{Channel, ChannelConfig, DIRECT_BYTES_MAX, HEADER_BYTES};
pub use counts::ChannelCounts;
pub use device::Device;
pub use error::{ChannelError, ChannelViolation, VerbsError};
pub use fabric::Access;
pub use location::{Distance, Location};
pub use notice::MARK_MAX;
pub use ports::{Port, PortAddress};
pub use receiving::{frames, Arrived, Each, Progress};
pub use region::{Allocation, Memory, Region};
pub use sending::{Batch, Direct};
pub use status::{DeviceEvent, Status};
pub use trial::{HostTrial, SegmentTrial};
pub use verbs::{Verbs, LIBRARY_ENV};
