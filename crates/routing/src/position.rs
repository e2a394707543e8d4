//! The final host: it delivers each number of a publisher once and in order, and confirms that to the origin.
//!
//! The *position* of a publisher is its next number: all below is delivered, or counted as missed. Numbers may arrive over several
//! flows, for example while one path replaces another.
//!
//! | event | action |
//! |---|---|
//! | a flow opens with a base above the position | numbers up to the base are missed: the origin no longer has them for this host |
//! | a number below the position | a duplicate: acknowledge it, deliver nothing |
//! | the number at the position | deliver it; the position rises |
//! | a number above the position | wait: another flow brings those before it |
//! | any number in a flow that is not from the origin itself | the position is to be confirmed over the control channel |
//! | the channel to the origin restarts | all positions of its publishers are to be confirmed again |

use crate::ids::{HostId, Publisher};
use std::collections::BTreeMap;

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Deliver it, then call [`Positions::delivered`].
    Deliver,
    /// It was delivered before.
    Duplicate,
    /// Keep it, and offer it again when another message was delivered.
    Wait,
}

#[derive(Debug)]
struct Position {
    next: u64,
    missed: u64,
    is_indirect: bool,
    to_confirm: bool,
}

/// The positions of all publishers whose messages end at this host.
#[derive(Debug, Default)]
pub struct Positions {
    positions: BTreeMap<Publisher, Position>,
}

impl Positions {
    /// A flow that ends here opens. `resumed` is what a former life of this host delivered, if that is known. Returns how many
    /// messages it misses because of the flow's base.
    pub fn open(&mut self, publisher: Publisher, base: u64, resumed: Option<u64>) -> u64 {
        let position = self.positions.entry(publisher).or_insert(Position {
            next: resumed.unwrap_or(base),
            missed: 0,
            is_indirect: false,
            to_confirm: true,
        });
        let missed = base.saturating_sub(position.next);
        position.next += missed;
        position.missed += missed;
        missed
    }

    /// A message has arrived whole. `from_origin`: over a flow of which this host is the first.
    pub fn offer(&mut self, publisher: Publisher, number: u64, from_origin: bool) -> Offer {
        let Some(position) = self.positions.get_mut(&publisher) else {
            return Offer::Wait;
        };
        position.is_indirect |= !from_origin;
        position.to_confirm |= !from_origin && number < position.next;
        match number.cmp(&position.next) {
            std::cmp::Ordering::Less => Offer::Duplicate,
            std::cmp::Ordering::Equal => Offer::Deliver,
            std::cmp::Ordering::Greater => Offer::Wait,
        }
    }

    /// The message at the position was delivered.
    pub fn delivered(&mut self, publisher: Publisher) {
        if let Some(position) = self.positions.get_mut(&publisher) {
            position.next += 1;
            position.to_confirm = true;
        }
    }

    /// What is to be confirmed over control channels since the last call.
    pub fn confirmations(&mut self) -> Vec<(Publisher, u64)> {
        let mut due = Vec::new();
        for (publisher, position) in &mut self.positions {
            if std::mem::take(&mut position.to_confirm) && position.is_indirect {
                due.push((*publisher, position.next));
            }
        }
        due
    }

    /// The channel to a host restarted.
    pub fn restarted(&mut self, origin: HostId) {
        let positions = self.positions.iter_mut();
        for (_, position) in positions.filter(|(publisher, _)| publisher.origin.host == origin) {
            position.to_confirm = true;
        }
    }

    /// A publisher has ended.
    pub fn forget(&mut self, publisher: Publisher) {
        self.positions.remove(&publisher);
    }

    /// Publishers, with the next number and how many messages were missed.
    pub fn all(&self) -> impl Iterator<Item = (Publisher, u64, u64)> + '_ {
        let positions = self.positions.iter();
        positions.map(|(publisher, at)| (*publisher, at.next, at.missed))
    }
}
