//! Landing places of a link: memory of the owner, known to the peer by numbers that mean nothing else.

use crate::frame::{Flow, Meta, Remote, MESSAGE_BYTES_MAX};
use crate::link::Span;
use crate::memory::{Landing, Part};
use crate::owner::{OnCard, Owner, Place, Room};
use crate::rdma::Table;
use crate::receiver::Places;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

struct Given {
    flow: Flow,
    sequence: u64,
    bytes: u64,
    /// None if the owner refused: the bytes are thrown away.
    landing: Option<Arc<Landing>>,
    /// Where it is for a peer that writes there itself.
    remote: Option<Remote>,
    /// And that is the place's memory on a card.
    is_on_card: bool,
}

/// The places that are given to grants.
pub(crate) struct Landings {
    owner: Arc<dyn Owner>,
    registered: Arc<Table>,
    given: BTreeMap<u64, Given>,
    next: u64,
    /// Flows whose owner had none; it is not asked again for each frame.
    full: BTreeSet<Flow>,
}

/// Where a chunk goes.
pub(crate) struct Chunk {
    pub(crate) flow: Flow,
    pub(crate) sequence: u64,
    /// Its place in the message.
    pub(crate) from: u64,
    pub(crate) part: Option<Part>,
    /// The peer may have written it itself.
    pub(crate) is_remote: bool,
    /// And then it is not in `part`.
    pub(crate) is_on_card: bool,
    /// Who hears of all that lands, if it is not the owner.
    pub(crate) hears: Option<Arc<dyn OnCard>>,
}

impl Landings {
    /// Places of this owner; peers are told where those are that lie in memory of the table.
    pub(crate) fn new(owner: Arc<dyn Owner>, registered: Arc<Table>) -> Self {
        Self {
            owner,
            registered,
            given: BTreeMap::new(),
            next: 0,
            full: BTreeSet::new(),
        }
    }

    /// The owner is asked again. Whether anybody waits for that.
    pub(crate) fn ask_again(&mut self) -> bool {
        !std::mem::take(&mut self.full).is_empty()
    }

    /// Where the bytes of a chunk go that the receiver admitted.
    pub(crate) fn chunk(&self, at: u64, bytes: u64) -> Option<Chunk> {
        let (base, given) = self.given.range(..=at).next_back()?;
        let from = at - base;
        let part = match &given.landing {
            Some(landing) => Some(landing.part(from, bytes)?),
            None => None,
        };
        let (flow, sequence) = (given.flow, given.sequence);
        Some(Chunk {
            flow,
            sequence,
            from,
            part,
            is_remote: given.remote.is_some(),
            is_on_card: given.is_on_card,
            hears: given.landing.as_ref().and_then(|of| of.on_card().cloned()),
        })
    }

    /// Where a place is for a peer that writes there itself; none if it cannot.
    pub(crate) fn remote(&self, at: u64) -> Option<Remote> {
        self.given.get(&at)?.remote
    }

    /// A message is whole: its memory, or none if it was refused.
    pub(crate) fn committed(&mut self, place: Span) -> Option<Box<dyn Place>> {
        let given = self.given.remove(&place.offset).expect("it was given");
        let whole = |landing: Arc<Landing>| landing.into_place().expect("no part of it is out");
        given.landing.map(whole)
    }

    /// A number range that no other place has.
    fn range(&mut self, bytes: u64) -> u64 {
        // A place's number is below `MESSAGE_BYTES_MAX`, and so is its end within the u64.
        if self.next > MESSAGE_BYTES_MAX / 2 {
            self.next = 0;
        }
        let mut at = self.next;
        for (start, given) in self.given.range(..) {
            let end = start + given.bytes;
            if end > at && *start < at + bytes {
                at = end;
            }
        }
        self.next = at + bytes;
        at
    }
}

impl Places for Landings {
    fn take(&mut self, flow: Flow, sequence: u64, meta: &Meta, bytes: u64) -> Option<u64> {
        if self.full.contains(&flow) {
            return None;
        }
        let landing = match self.owner.place(flow, sequence, meta.as_slice(), bytes) {
            Room::Place(place) => Landing::new(place, bytes).map(Arc::new),
            Room::Refused => None,
            Room::Full => {
                self.full.insert(flow);
                return None;
            }
        };
        let at = self.range(bytes);
        let of = |start, bytes| self.registered.remote(start, bytes);
        let on_card = landing.as_ref().and_then(|landing| landing.on_card());
        let on_card = on_card.and_then(|on_card| of(on_card.address(), bytes));
        let is_on_card = on_card.is_some();
        // Where the rails do not know that, the host's memory does as well.
        let remote = on_card.or_else(|| of(landing.as_ref()?.memory().0, bytes));
        let given = Given {
            flow,
            sequence,
            bytes,
            landing,
            remote,
            is_on_card,
        };
        self.given.insert(at, given);
        Some(at)
    }

    fn give(&mut self, flow: Flow, place: Span) {
        let given = self.given.remove(&place.offset);
        assert!(
            given.is_some_and(|given| given.flow == flow && given.bytes == place.bytes),
            "a place is given back once"
        );
        self.full.clear();
    }
}
