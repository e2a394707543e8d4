//! Two connected ends in one process, and frames with known bytes.
#![allow(dead_code)]

use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::*;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

pub struct Pair {
    pub network: SoftwareNetwork,
    pub devices: [Arc<Device>; 2],
    pub ends: [Channel; 2],
}

pub fn small(ring_bytes: u64, receives: u32, sends: u32) -> ChannelConfig {
    ChannelConfig {
        ring_bytes,
        receives,
        sends,
        inline_bytes: 64,
        spin: Duration::ZERO,
        ..ChannelConfig::default()
    }
}

impl Pair {
    pub fn new(faults: Faults, config: ChannelConfig) -> Self {
        let network = SoftwareNetwork::new(faults);
        let devices = ["one", "other"].map(|name| network.device(name).unwrap());
        let ends = [0, 1].map(|end| Channel::new(&devices[end], config).unwrap());
        ends[0].connect(&ends[1].address()).unwrap();
        ends[1].connect(&ends[0].address()).unwrap();
        Self {
            network,
            devices,
            ends,
        }
    }

    /// Allocates memory, registered with an end's device.
    pub fn region(
        &self,
        end: usize,
        bytes: usize,
        access: Access,
    ) -> (Arc<Allocation>, Arc<Region>) {
        let memory = Allocation::new(bytes);
        let region = Region::new(&self.devices[end], memory.clone(), access).unwrap();
        (memory, region)
    }

    /// Receives frames until none is left.
    pub fn receive(&self, end: usize) -> Result<Vec<Vec<u8>>, ChannelError> {
        let mut all = vec![];
        let mut each = frames(|frame| {
            all.push(frame.to_vec());
            Ok(())
        });
        for _ in 0..100 {
            self.ends[end].progress(&mut each)?;
        }
        drop(each);
        Ok(all)
    }

    pub fn send(&self, end: usize, frame: &[u8]) -> Result<Option<u64>, ChannelError> {
        self.ends[end].send(&[IoSlice::new(frame)], None)
    }

    /// Makes progress until an end fails, and returns its error.
    pub fn end_of(&self, end: usize) -> ChannelError {
        (0..1000)
            .find_map(|_| self.ends[end].progress(&mut |_| Ok(())).err())
            .expect("it should have ended")
    }
}

/// The bytes of the frame with this number.
pub fn bytes_of(number: u64, bytes: u64) -> Vec<u8> {
    rgaps_testkit::content(number, bytes as usize)
}
