//! What a zone of a dead daemon still waits for: the claims of clients that hand it back, and ranges of the control segment that
//! nobody may get yet.

use crate::control::Control;
use crate::granule_set::LiveGranules;
use crate::membership::has_reached;
use crate::refuse::bad;
use crate::topics::Topics;
use rgaps_layout::{CONTROL_BYTES, CONTROL_PAGE};
use rgaps_session::{Member, Range, Refusal, Side};
use rgaps_sync::atomic::Ordering;
use std::collections::{BTreeMap, HashMap};

/// By topic, side and slot of a claimed member: the granules that it claims.
pub(crate) type Claims = HashMap<(u32, Side, u32), LiveGranules>;

/// Free ranges of the control segment that are withheld, since subscribers that joined under a predecessor may still read there.
#[derive(Debug)]
struct SetAside {
    /// Offsets and lengths.
    ranges: Vec<(u64, u64)>,
    /// Subscribers that may still read there: topic, slot, incarnation, and the membership epoch from which on they do not.
    waits: Vec<(u32, u32, u64, u32)>,
}

/// The claims of clients that are handing back, and the withheld ranges.
#[derive(Debug, Default)]
pub(crate) struct Adoption {
    /// By client that is handing back: its claims so far.
    claims: BTreeMap<u32, Claims>,
    set_aside: Option<SetAside>,
}

impl Adoption {
    /// Notes that a client begins to hand back.
    pub(crate) fn begin(&mut self, client: u32) {
        self.claims.insert(client, Claims::default());
    }

    /// Refuses unless the client is handing back.
    pub(crate) fn require_claiming(&self, client: u32) -> Result<(), Refusal> {
        let claims = self.claims.get(&client).map(|_| ());
        claims.ok_or_else(|| bad("this session has not started to hand back a zone"))
    }

    /// Whether a client has begun to hand back and has not finished.
    pub(crate) fn is_claimed_from(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Notes that a client claims a member, and ranges of a pool as the member's leases.
    pub(crate) fn claim(&mut self, client: u32, member: &Member, pool: u32, ranges: &[Range]) {
        if let Some(claims) = self.claims.get_mut(&client) {
            let key = (member.topic, member.side, member.slot);
            let leased = claims.entry(key).or_default();
            ranges
                .iter()
                .for_each(|range| leased.add(pool, range.offset, range.bytes));
        }
    }

    /// Ends a client's claims and returns them. None: the client was not handing back.
    pub(crate) fn finish(&mut self, client: u32) -> Option<Claims> {
        self.claims.remove(&client)
    }

    /// Withholds the free ranges of the control segment below `control_used`: a predecessor may have withheld some of
    /// them. `release` frees them when all present subscribers have seen the present members of their topics.
    pub(crate) fn set_aside(&mut self, control_used: u64, topics: &Topics, control: &mut Control) {
        let end = control_used
            .next_multiple_of(CONTROL_PAGE)
            .clamp(control.used_end(), CONTROL_BYTES);
        let waits = topics.iter().flat_map(|topic| {
            let subscribers = topic.subscribers.iter();
            subscribers.map(|s| (topic.index, s.slot, s.incarnation, topic.epoch))
        });
        self.set_aside = Some(SetAside {
            ranges: control.set_aside_below(end),
            waits: waits.collect(),
        });
    }

    /// Whether ranges are withheld.
    pub(crate) fn has_set_aside(&self) -> bool {
        self.set_aside.is_some()
    }

    /// Frees the withheld ranges once no subscriber reads there. True: it freed them.
    pub(crate) fn release(&mut self, topics: &Topics, control: &mut Control) -> bool {
        let Some(aside) = &mut self.set_aside else {
            return false;
        };
        aside.waits.retain(|(topic, slot, incarnation, epoch)| {
            let Some(topic) = topics.get(*topic) else {
                return false;
            };
            let known = topic.subscriber(*slot);
            let view = control.topic(topic.region);
            let words = view.subscriber(*slot as usize);
            let seen = words.seen_epoch().load(Ordering::Acquire);
            known.is_some_and(|subscriber| subscriber.incarnation == *incarnation)
                && !has_reached(seen, *epoch)
        });
        let Some(aside) = self.set_aside.take_if(|aside| aside.waits.is_empty()) else {
            return false;
        };
        for (offset, bytes) in aside.ranges {
            control.give(offset, bytes);
        }
        true
    }
}
