//! RDMA: ordered, reliable channels of frames over queue pairs, and *direct writes* into a peer's memory, which arrive
//! before the frame that follows them. Knows neither links nor topics nor GPUs.
//!
//! Each end of a [`Channel`] has a ring that the peer writes with RDMA WRITE_WITH_IMM. The immediate data name
//! the frame's slot, so nobody zeroes or polls the ring. The receiver returns its head by a one-sided write; it adds
//! a notice only if the peer announced that it stalls. Three credits bound what is in flight, and none
//! can be exceeded: bytes of the ring, receives that the peer has posted, slots of the send queue.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rgaps_verbs::{in_process::{Faults, SoftwareNetwork}, *};
//! use std::io::IoSlice;
//! // Or: Verbs::load()?.devices()..
//! let network = SoftwareNetwork::new(Faults::default());
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
//! let target = Allocation::new(4096);
//! let region = Region::new(&other, target.clone(), Access::RemoteWrite)?;
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
//! target.read(0, &mut landed);
//! assert_eq!(&landed, b"payload");
//!
//! // The memory of frame 1 may be used again when its works have completed.
//! a.progress(&mut |_| Ok(()))?;
//! assert!(a.completed() >= 1);
//! # Ok(()) }
//! ```
//! A receiver calls [`Channel::serve`] in a loop, which polls and then sleeps. Or it waits for [`Channel::fds`] itself:
//! it calls [`Channel::arm`], then [`Channel::progress`], and if that brought nothing, it waits and calls
//! [`Channel::woken`]. Another thread may send at the same time.
//!
//! A channel that ended stays ended. The queue pair fails at the first error, so the peer writes nothing any more. When
//! [`Channel::close`] has returned, nothing is in flight, and regions may be used for something else. The
//! types keep the order of destruction: a channel holds its regions and those of its direct writes, a region
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
