//! Which timelines of a zone are taken, and by whom; and their ends.

use crate::control::Control;
use crate::refuse::{bad, refuse};
use crate::step::step;
use crate::topic::{Owner, Publisher, Topic};
use crate::zone::Zone;
use rgaps_layout::MAX_TIMELINES;
use rgaps_session::{Refusal, RefusalCode};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{progress, queued_points, ring_range, settle_points, timeline, Point, Progress};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Timelines that one client may have.
pub(crate) const MAX_CLIENT_TIMELINES: usize = 256;

/// The timelines of a zone. Number 0 is never handed out, so that a zeroed descriptor names none.
#[derive(Debug)]
pub(crate) struct Timelines {
    /// By timeline: the client that has it.
    owners: BTreeMap<u32, u32>,
    /// Those that nobody has. The one that has been free for longest is handed out first: a sample
    /// may be held for long whose point only `reached` can tell of, and that is written anew when
    /// the next owner is gone.
    free: VecDeque<u32>,
    /// Clients of a predecessor's may have some that they have not named yet.
    pub(crate) unclaimed: bool,
}

impl Timelines {
    pub(crate) fn new() -> Timelines {
        Timelines {
            owners: BTreeMap::new(),
            free: (1..MAX_TIMELINES).collect(),
            unclaimed: false,
        }
    }

    fn take(&mut self, client: u32) -> Option<u32> {
        let timeline = self.free.pop_front()?;
        self.owners.insert(timeline, client);
        Some(timeline)
    }

    /// Takes a certain timeline. False where there is none such or somebody has it.
    fn reserve(&mut self, timeline: u32, client: u32) -> bool {
        let Some(at) = self.free.iter().position(|free| *free == timeline) else {
            return false;
        };
        self.free.remove(at);
        self.owners.insert(timeline, client);
        true
    }

    /// Who has it.
    pub(crate) fn owner(&self, timeline: u32) -> Option<u32> {
        self.owners.get(&timeline).copied()
    }

    /// Whether somebody may advance it yet.
    fn may_advance(&self, timeline: u32) -> bool {
        self.unclaimed || self.owners.contains_key(&timeline)
    }

    /// Those that `client` has.
    pub(crate) fn of(&self, client: u32) -> Vec<u32> {
        let of_client = self.owners.iter().filter(|(_, owner)| **owner == client);
        of_client.map(|(timeline, _)| *timeline).collect()
    }

    fn give(&mut self, timeline: u32) {
        if self.owners.remove(&timeline).is_some() {
            self.free.push_back(timeline);
        }
    }
}

impl Control {
    /// Ends a timeline's tenure: nobody advances it any more, and whoever waits for a point of that
    /// tenure goes on.
    fn end_tenure(&self, index: u32) {
        let Some(timeline) = timeline(self.words(), index) else {
            return;
        };
        let value = timeline.value().load(Ordering::Acquire);
        // A tenure in which no point was reached needs no record, and the one before keeps its own:
        // so this may be done again.
        if value as u32 != 0 {
            timeline.reached().store(value, Ordering::Release);
            step!("timeline.reached");
        }
        // Release: who sees the new tenure sees how far the last one came (SYNC: tenure).
        let tenure = (value >> 32).wrapping_add(1);
        timeline.value().store(tenure << 32, Ordering::Release);
        step!("timeline.ended");
    }
}

impl Control {
    /// Writes down what has become of the points of an orphan's messages, as far as that is known.
    /// True: of some it has become known.
    pub(crate) fn settle(&self, publisher: &mut Publisher) -> bool {
        let region = self.region(publisher.ring.region_offset, publisher.geometry());
        let Owner::Orphan(orphan) = &mut publisher.owner else {
            return false;
        };
        let before = orphan.pending;
        let range = orphan.tail..orphan.head;
        orphan.pending = settle_points(&region, publisher.incarnation, range, |timeline| {
            self.timelines.may_advance(timeline)
        });
        orphan.pending != before
    }

    /// The same for the messages of a publisher that is still there.
    pub(crate) fn settle_active(&self, topic: &Topic, publisher: &Publisher) {
        let slot = self.topic(topic.region).publisher(publisher.slot as usize);
        let region = self.region(publisher.ring.region_offset, publisher.geometry());
        let range = ring_range(&slot, &region);
        settle_points(&region, publisher.incarnation, range, |timeline| {
            self.timelines.may_advance(timeline)
        });
    }
}

impl Zone {
    /// A timeline for a stream of the client's.
    pub(crate) fn take_timeline(&mut self, client: u32) -> Result<u32, Refusal> {
        let timelines = &mut self.control.timelines;
        if timelines.unclaimed {
            return Err(refuse(
                RefusalCode::Recovering,
                "the daemon was restarted and waits for its clients to hand back their timelines; \
                 ask again shortly",
            ));
        }
        if timelines.of(client).len() >= MAX_CLIENT_TIMELINES {
            return Err(refuse(
                RefusalCode::LimitReached,
                format!(
                    "this process has {MAX_CLIENT_TIMELINES} timelines, which is the limit: one for each stream \
                     that it publishes or lets go on; use fewer streams"
                ),
            ));
        }
        let index = timelines.take(client).ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                format!(
                    "all {} timelines of the daemon are in use, one for each stream of a process; \
                     use fewer streams, or close processes",
                    MAX_TIMELINES - 1
                ),
            )
        })?;
        let value =
            timeline(self.control.words(), index).map(|t| t.value().load(Ordering::Acquire));
        if value.is_some_and(|value| value as u32 != 0) {
            tracing::warn!(
                index,
                "a process wrote to a timeline that belongs to nobody; repaired"
            );
            self.control.end_tenure(index);
        }
        Ok(index)
    }

    /// Takes back a timeline whose last point its owner has waited for.
    pub(crate) fn return_timeline(&mut self, client: u32, timeline: u32) -> Result<(), Refusal> {
        if self.control.timelines.owner(timeline) != Some(client) {
            return Err(bad(format!(
                "timeline {timeline} is not one of this session's"
            )));
        }
        self.end_timelines(client, &[timeline]);
        Ok(())
    }

    /// Ends all timelines of a client whose GPU work has ended, because it is gone or its context is.
    pub(crate) fn end_timelines_of(&mut self, client: u32) {
        let ended = self.control.timelines.of(client);
        self.end_timelines(client, &ended);
    }

    /// Before anyone else gets them, the messages that wait for their points say what has become of
    /// them: the last tenure but one is forgotten.
    fn end_timelines(&mut self, client: u32, ended: &[u32]) {
        if ended.is_empty() {
            return;
        }
        for index in ended {
            self.control.end_tenure(*index);
            self.control.timelines.give(*index);
        }
        for topic in self.topics.iter() {
            for publisher in topic.publishers.iter().filter(|p| p.is_of(client)) {
                self.control.settle_active(topic, publisher);
            }
        }
        self.settle_orphans();
    }

    fn settle_orphans(&mut self) {
        for index in &self.orphaned {
            let publishers = self
                .topics
                .get_mut(*index)
                .map(|topic| &mut topic.publishers);
            for publisher in publishers.into_iter().flatten() {
                if publisher.has_pending_points() {
                    self.control.settle(publisher);
                }
            }
        }
    }

    /// Ends the timelines that a client's messages wait for. For one that died before it could tell
    /// the daemon which it has: nobody else's are on its messages, and nobody who has come back has
    /// them.
    pub(crate) fn end_timelines_named_by(&mut self, client: u32) {
        if !self.control.timelines.unclaimed {
            return;
        }
        let mut named = BTreeSet::new();
        for topic in self.topics.iter() {
            for publisher in topic.publishers.iter().filter(|p| p.is_of(client)) {
                let region = self
                    .control
                    .region(publisher.ring.region_offset, publisher.geometry());
                let slot = self
                    .control
                    .topic(topic.region)
                    .publisher(publisher.slot as usize);
                let range = ring_range(&slot, &region);
                let waits = |point: &Point| {
                    self.control.timelines.owner(point.timeline).is_none()
                        && progress(self.control.words(), *point) == Progress::Pending
                };
                let points = queued_points(&region, publisher.incarnation, range);
                named.extend(
                    points
                        .map(|(_, point)| point)
                        .filter(waits)
                        .map(|p| p.timeline),
                );
            }
        }
        for index in named {
            self.control.end_tenure(index);
        }
    }

    /// Timelines that a client hands back.
    pub(crate) fn reserve_timelines(&mut self, client: u32, handed: &[u32]) {
        for index in handed {
            if !self.control.timelines.reserve(*index, client) {
                tracing::warn!(
                    client,
                    index,
                    "a client claims a timeline that is invalid or belongs to another client; refused"
                );
            }
        }
    }

    /// Once all clients of a predecessor's are back or dead, timelines that none of them has named
    /// are nobody's, whatever was queued on them.
    pub(crate) fn end_unclaimed_timelines(&mut self) {
        if !std::mem::take(&mut self.control.timelines.unclaimed) {
            return;
        }
        // Also those that say that no point was reached: of one that was waited for, none may be.
        for index in self.control.timelines.free.iter() {
            self.control.end_tenure(*index);
        }
        self.settle_orphans();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timeline_but_zero_is_handed_out_once_and_the_longest_free_first() {
        let mut timelines = Timelines::new();
        let taken: Vec<u32> = std::iter::from_fn(|| timelines.take(5)).collect();
        assert_eq!(taken, (1..MAX_TIMELINES).collect::<Vec<_>>());
        for index in [9, 3, 7] {
            timelines.give(index);
        }
        timelines.give(9);
        assert!(!timelines.reserve(0, 1) && !timelines.reserve(MAX_TIMELINES, 1));
        assert!(!timelines.reserve(4, 1), "somebody has it");
        assert!(timelines.reserve(3, 1) && !timelines.reserve(3, 2));
        assert_eq!([timelines.take(2), timelines.take(2)], [Some(9), Some(7)]);
        assert_eq!(timelines.take(2), None);
        assert_eq!((timelines.of(1), timelines.of(2)), (vec![3], vec![7, 9]));
        assert_eq!((timelines.owner(3), timelines.owner(0)), (Some(1), None));
    }
}
