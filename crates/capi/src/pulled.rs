//! Messages that were pulled and not released, by address.

use rgaps_rs::Sample;

/// Samples by the address of their first byte. Addresses lie apart from the samples so that a
/// release looks through a few cache lines; they are many times fewer than 4096.
///
/// An address may be there twice: a publisher that breaks the protocol can announce a block twice.
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
