//! Tells for what a publisher's blocks are used, for listings that explain its memory.

use crate::holder::{Holders, PRODUCER, RING};
use crate::orphan::{block_range, used};
use crate::{PublisherView, RegionView, Storage};

/// Why a block is not free. Of several reasons the first in this list counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockUse {
    /// A replica of a message, in another pool than the publisher's own.
    Replica,
    /// The ring holds it: the message is part of the history.
    History,
    /// The publisher holds it: as a loan, or until its GPU work that may write the block has finished.
    Loan,
    /// Only subscribers hold it: samples of messages that have left the history.
    Held,
}

/// The blocks of a publisher that are in use, with their bytes as their publisher wrote them.
pub fn block_uses<'a, S: Storage>(
    slot: &PublisherView<S>,
    region: &'a RegionView<S>,
) -> impl Iterator<Item = (BlockUse, u64)> + 'a {
    used(slot, region).filter_map(|block| {
        let mask = Holders::load(region.holders(block)?).mask;
        let (pool, _, bytes) = block_range(region, block)?;
        let why = match (pool, mask) {
            (_, 0) => return None,
            (Some(_), _) => BlockUse::Replica,
            (None, mask) if mask & RING != 0 => BlockUse::History,
            (None, mask) if mask & PRODUCER != 0 => BlockUse::Loan,
            (None, _) => BlockUse::Held,
        };
        Some((why, bytes))
    })
}
