//! What clients of a predecessor's hand back, until all of it is known.

use crate::control::Control;
use crate::granule_set::LiveGranules;
use crate::membership::has_reached;
use crate::refuse::bad;
use crate::topics::Topics;
use rgaps_layout::{CONTROL_BYTES, CONTROL_PAGE};
use rgaps_session::{Member, Range, Refusal, Side};
use rgaps_sync::atomic::Ordering;
use std::collections::{BTreeMap, HashMap};

/// By topic, side and slot of a member: what it leases.
pub(crate) type Claims = HashMap<(u32, Side, u32), LiveGranules>;

/// Free ranges of the control segment that are withheld, since subscribers of a predecessor's time may still look there.
#[derive(Debug)]
struct SetAside {
    ranges: Vec<(u64, u64)>,
    /// Subscribers that may still look there: topic, slot, incarnation, and the epoch after which
    /// they do not.
    waits: Vec<(u32, u32, u64, u32)>,
}

/// What is still to be handed back, and what must not be handed out before that.
#[derive(Debug, Default)]
pub(crate) struct Adoption {
    /// What clients that hand back have claimed so far, by client.
    claims: BTreeMap<u32, Claims>,
    set_aside: Option<SetAside>,
}

impl Adoption {
    /// A client begins to hand back.
    pub(crate) fn begin(&mut self, client: u32) {
        self.claims.insert(client, Claims::default());
    }

    /// Refuses what only a client may ask that hands back.
    pub(crate) fn require_claiming(&self, client: u32) -> Result<(), Refusal> {
        let claims = self.claims.get(&client).map(|_| ());
        claims.ok_or_else(|| bad("this session has not started to hand back a zone"))
    }

    /// Whether some clients have begun to hand back and not finished.
    pub(crate) fn is_claimed_from(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Notes that a client has a member, and that this leases ranges of a pool.
    pub(crate) fn claim(&mut self, client: u32, member: &Member, pool: u32, ranges: &[Range]) {
        if let Some(claims) = self.claims.get_mut(&client) {
            let key = (member.topic, member.side, member.slot);
            let leased = claims.entry(key).or_default();
            ranges
                .iter()
                .for_each(|range| leased.add(pool, range.offset, range.bytes));
        }
    }

    /// A client claims nothing more. Returns what it claimed.
    pub(crate) fn finish(&mut self, client: u32) -> Option<Claims> {
        self.claims.remove(&client)
    }

    /// Withholds the free ranges of the control segment below `control_used`: a predecessor may have withheld some, since subscribers
    /// still looked there. They are handed out when all subscribers of its time have looked at the present members of their topics.
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

    /// Whether something is set aside.
    pub(crate) fn has_set_aside(&self) -> bool {
        self.set_aside.is_some()
    }

    /// Hands on what was set aside, once that is safe.
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
