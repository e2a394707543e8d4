//! Ends tenures of timelines. A tenure is the time in which one client owns a timeline. At its end, whoever waits for a point of it
//! goes on, and messages that wait for such a point record whether it was reached.

use crate::control::Control;
use crate::refuse::{bad, refuse};
use crate::step::step;
use crate::timelines::MAX_CLIENT_TIMELINES;
use crate::topic::{Publisher, PublisherOwner, Topic};
use crate::topics::Topics;
use rgaps_layout::MAX_TIMELINES;
use rgaps_session::{Refusal, RefusalCode};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{progress, queued_points, ring_range, settle_points, timeline, Point, Progress};
use std::collections::BTreeSet;

impl Control {
    /// Ends a timeline's tenure: nobody advances it any more, and whoever waits for a point of that
    /// tenure goes on.
    fn end_tenure(&self, index: u32) {
        let Some(timeline) = timeline(self.words(), index) else {
            return;
        };
        let value = timeline.value().load(Ordering::Acquire);
        // A tenure in which no point was reached leaves the record of the tenure before it. So this function can be repeated after a
        // crash.
        if value as u32 != 0 {
            timeline.reached().store(value, Ordering::Release);
            step!("timeline.reached");
        }
        // Release: whoever sees the new tenure sees the last point of the old one (SYNC: tenure).
        let tenure = (value >> 32).wrapping_add(1);
        timeline.value().store(tenure << 32, Ordering::Release);
        step!("timeline.ended");
    }

    /// Records for each of an orphan's messages whether its point was reached, as far as that is known. True: more is known than
    /// before.
    pub(crate) fn settle(&self, publisher: &mut Publisher) -> bool {
        let region = self.ring(publisher);
        let PublisherOwner::Orphan(orphan) = &mut publisher.owner else {
            return false;
        };
        let before = orphan.pending;
        let range = orphan.tail..orphan.head;
        orphan.pending = settle_points(&region, publisher.incarnation, range, |timeline| {
            self.timelines.may_advance(timeline)
        });
        orphan.pending != before
    }

    /// The same as `settle`, for the messages of a publisher that has not left.
    pub(crate) fn settle_active(&self, topic: &Topic, publisher: &Publisher) {
        let region = self.ring(publisher);
        let range = ring_range(&self.publisher(topic, publisher.slot), &region);
        settle_points(&region, publisher.incarnation, range, |timeline| {
            self.timelines.may_advance(timeline)
        });
    }

    /// Gives the client a timeline for one of its streams.
    pub(crate) fn take_timeline(&mut self, client: u32) -> Result<u32, Refusal> {
        let timelines = &mut self.timelines;
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
                     that it publishes or releases on; use fewer streams"
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
        let value = timeline(self.words(), index).map(|t| t.value().load(Ordering::Acquire));
        if value.is_some_and(|value| value as u32 != 0) {
            tracing::warn!(
                index,
                "a process wrote to a timeline that belongs to nobody; repaired"
            );
            self.end_tenure(index);
        }
        Ok(index)
    }

    /// Takes back a timeline whose last point its owner has waited for.
    pub(crate) fn return_timeline(
        &mut self,
        client: u32,
        timeline: u32,
        topics: &mut Topics,
    ) -> Result<(), Refusal> {
        if self.timelines.owner(timeline) != Some(client) {
            return Err(bad(format!(
                "timeline {timeline} is not one of this session's"
            )));
        }
        self.end_timelines(client, &[timeline], topics);
        Ok(())
    }

    /// Ends all timelines of a client whose GPU work has ended, because its process or its GPU context has ended.
    pub(crate) fn end_timelines_of(&mut self, client: u32, topics: &mut Topics) {
        let ended = self.timelines.of(client);
        self.end_timelines(client, &ended, topics);
    }

    /// Ends timelines of a client, then records in its messages and in those of orphans whether their points were reached. That
    /// comes before anybody gets the timelines again, since a timeline remembers only its last tenure.
    fn end_timelines(&mut self, client: u32, ended: &[u32], topics: &mut Topics) {
        if ended.is_empty() {
            return;
        }
        for index in ended {
            self.end_tenure(*index);
            self.timelines.give(*index);
        }
        for (topic, publisher) in topics.publishers_of(client) {
            self.settle_active(topic, publisher);
        }
        self.settle_orphans(topics);
    }

    fn settle_orphans(&self, topics: &mut Topics) {
        let publishers = topics.iter_mut().flat_map(|topic| &mut topic.publishers);
        for publisher in publishers.filter(|p| p.has_pending_points()) {
            self.settle(publisher);
        }
    }

    /// Ends the timelines that a client's messages wait for and that no client has handed back. Call for a client that died before
    /// it could hand back its timelines: its messages name only its own.
    pub(crate) fn end_timelines_named_by(&self, client: u32, topics: &Topics) {
        if !self.timelines.unclaimed {
            return;
        }
        let mut named = BTreeSet::new();
        for (topic, publisher) in topics.publishers_of(client) {
            let region = self.ring(publisher);
            let range = ring_range(&self.publisher(topic, publisher.slot), &region);
            let waits = |point: &Point| {
                self.timelines.owner(point.timeline).is_none()
                    && progress(self.words(), *point) == Progress::Pending
            };
            let points = queued_points(&region, publisher.incarnation, range);
            let waiting = points.map(|(_, point)| point).filter(waits);
            named.extend(waiting.map(|point| point.timeline));
        }
        for index in named {
            self.end_tenure(index);
        }
    }

    /// Reserves the timelines that a client hands back for it.
    pub(crate) fn reserve_timelines(&mut self, client: u32, handed: &[u32]) {
        for index in handed {
            if !self.timelines.reserve(*index, client) {
                tracing::warn!(
                    client,
                    index,
                    "a client claims a timeline that is invalid or belongs to another client; refused"
                );
            }
        }
    }

    /// Once all clients of a predecessor are back or dead, ends the timelines that none of them has claimed.
    pub(crate) fn end_unclaimed_timelines(&mut self, topics: &mut Topics) {
        if !std::mem::take(&mut self.timelines.unclaimed) {
            return;
        }
        // Also timelines on which no point was reached: somebody may wait for the first one, which never comes.
        for index in self.timelines.free() {
            self.end_tenure(index);
        }
        self.settle_orphans(topics);
    }
}
