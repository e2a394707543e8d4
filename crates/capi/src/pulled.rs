//! The pulled messages that C has not released yet, by address.

use rgaps_rs::Sample;

/// Samples by the address of their first byte. The addresses have a vector of their own, so that a linear search reads few
/// cache lines; a subscriber holds at most 4096 samples, and usually a few.
///
/// An address may occur twice, since a publisher that violates the protocol can announce a block twice.
#[derive(Default)]
pub(crate) struct Pulled {
    addresses: Vec<u64>,
    samples: Vec<Sample>,
}

impl Pulled {
    pub(crate) fn insert(&mut self, sample: Sample) {
        self.addresses.push(sample.address());
        self.samples.push(sample);
    }

    pub(crate) fn get(&self, address: u64) -> Option<&Sample> {
        self.samples.get(self.position(address)?)
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<Sample> {
        let position = self.position(address)?;
        self.addresses.swap_remove(position);
        Some(self.samples.swap_remove(position))
    }

    pub(crate) fn take_all(&mut self) -> Vec<Sample> {
        self.addresses.clear();
        std::mem::take(&mut self.samples)
    }

    fn position(&self, address: u64) -> Option<usize> {
        self.addresses.iter().position(|known| *known == address)
    }
}
