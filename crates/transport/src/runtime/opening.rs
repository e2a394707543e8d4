//! Opening lanes: decides when a lane is wanted, checks the results of its handshake, and makes the lane from its connection.

use super::endpoint::spawn;
use super::handshake::{
    hex, rdma_in_words, rdma_of_both, refuse, write_frame, HelloError, UNNUMBERED,
};
use super::lane::rdma::{agree, Agreed, RdmaLane};
use super::lane::{Lane, Stream};
use super::{clock_ms, LinkEvent, LinkRuntime, LockedLink};
use crate::machine::frame::{Hello, RdmaMode, LANES_MAX};
use rgaps_connection::Connection;
use std::net::SocketAddr;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

impl LinkRuntime {
    /// Waits until this end has to open a lane. Returns its HELLO and the peer's addresses; `None` if the link closes.
    pub(crate) fn next_dial(&self) -> Option<(Hello, Vec<SocketAddr>)> {
        let mut locked = self.lock();
        loop {
            if locked.is_closing {
                return None;
            }
            let now_ms = clock_ms();
            let wanted = self.wanted(&locked, now_ms);
            let wait_ms = wanted.map(|(due_ms, _)| due_ms.saturating_sub(now_ms));
            if let (Some((_, rdma)), Some(0)) = (wanted, wait_ms) {
                locked.dialled_ms = now_ms;
                if rdma == RdmaMode::Require && locked.lanes.len() == LANES_MAX {
                    // All numbers are used: a TCP lane ends first, and the next round opens the RDMA lane.
                    self.replace_one(&locked);
                } else {
                    let mut hello = self.hello(&locked, UNNUMBERED);
                    hello.rdma = rdma;
                    return Some((hello, locked.peer.dial.clone()));
                }
            }
            let limit = Duration::from_millis(wait_ms.unwrap_or(60_000).max(1));
            let waited = self.changed.wait_timeout(locked, limit);
            locked = waited.expect("no thread of a link panics").0;
        }
    }

    /// When this end has to open a lane, and of which kind; `None` if it needs none.
    fn wanted(&self, locked: &LockedLink, now_ms: u64) -> Option<(u64, RdmaMode)> {
        if locked.is_restarting || locked.peer.dial.is_empty() {
            return None;
        }
        let own = self.rdma_mode();
        let backed_off = locked.dialled_ms + self.backoff_ms(locked.failures);
        let due_ms = locked.penalty_until_ms.max(backed_off);
        if locked.lanes.len() < self.config.lanes {
            let later = now_ms < locked.rdma_after_ms && own == RdmaMode::Prefer;
            return Some((due_ms, if later { RdmaMode::No } else { own }));
        }
        // The link has enough lanes: it opens one more only to replace a TCP lane by an RDMA lane.
        let climbs = own != RdmaMode::No && locked.peer_has_rdma;
        let mut lanes = locked.lanes.values();
        let lower = lanes.any(|lane| lane.state().is_replaceable());
        (climbs && lower).then(|| (due_ms.max(locked.rdma_after_ms), RdmaMode::Require))
    }

    /// The kind of lanes that this end wants.
    fn rdma_mode(&self) -> RdmaMode {
        match self.shared.config.rdma {
            Some(_) => self.config.rdma,
            // If RDMA is required and missing, no lane can be opened.
            None if self.config.rdma == RdmaMode::Require => RdmaMode::Require,
            None => RdmaMode::No,
        }
    }

    /// Closes a TCP lane, which an RDMA lane replaces. What it may lose is sent again.
    fn replace_one(&self, locked: &LockedLink) {
        let mut lanes = locked.lanes.values();
        if let Some(lane) = lanes.find(|lane| lane.state().is_replaceable()) {
            lane.state().is_replaced.store(true, Relaxed);
            lane.close("an RDMA lane takes its place");
        }
    }

    /// RDMA broke or was not possible: new lanes are TCP lanes for a while.
    pub(super) fn rdma_failed(&self, locked: &mut LockedLink, why: String) {
        locked.counts.rdma_failed += 1;
        locked.rdma_after_ms = clock_ms() + self.config.rdma_again_ms;
        locked.rdma_why = Some(why);
    }

    /// The wait after so many failures in a row: doubles with each (exponential backoff).
    fn backoff_ms(&self, failures: u32) -> u64 {
        let (least, most) = self.config.backoff_ms;
        let doubled = 1 << failures.saturating_sub(1).min(16);
        if failures == 0 {
            0
        } else {
            least.max(1).saturating_mul(doubled).min(most)
        }
    }

    /// An attempt to open a lane failed: the next one waits longer. Reports a refusal once.
    pub(crate) fn dial_failed(&self, hello: &Hello, error: &HelloError) {
        let why = error.to_string();
        let mut locked = self.lock();
        if hello.rdma == RdmaMode::Require && self.config.rdma != RdmaMode::Require {
            // The attempt was to replace a TCP lane, which stays.
            self.rdma_failed(&mut locked, why);
            return;
        }
        locked.failures = locked.failures.saturating_add(1);
        let is_refusal = match error {
            HelloError::Io(io) => io.kind() == std::io::ErrorKind::InvalidData,
            HelloError::NoHello => false,
            _ => true,
        };
        match is_refusal && locked.error.as_ref() != Some(&why) {
            true => self.report_refused(locked, why),
            false => locked.error = Some(why),
        }
    }

    fn report_refused(&self, mut locked: MutexGuard<'_, LockedLink>, why: String) {
        locked.event(LinkEvent::LaneRefused { why: why.clone() });
        locked.error = Some(why);
        drop(locked);
        self.settle();
    }

    fn hello(&self, locked: &LockedLink, lane: u32) -> Hello {
        Hello {
            node: self.shared.config.incarnation,
            machine: locked.machine_id,
            realm: self.shared.config.realm,
            lane,
            first_window: self.config.limits.first_window,
            rdma: self.rdma_mode(),
            to: locked.peer.incarnation,
            key: locked.peer.key,
        }
    }

    /// Handles a connection that a peer opened, whose HELLO has this link's key: answers HELLO with the lane's number.
    pub(crate) fn accepted(
        self: &Arc<Self>,
        connection: Connection,
        other: &Hello,
    ) -> Result<(), HelloError> {
        let mut locked = self.lock();
        if !connection.may_be(&self.name) {
            let (from, name) = (connection.peer().ip(), &self.name);
            let why =
                format!("a lane from {from} was refused: its certificate is not for '{name}'");
            self.report_refused(locked, why);
            return Err(refuse(&connection, "key", "this host's", "another's"));
        }
        let expected = locked.peer.incarnation;
        if locked.is_closing || locked.peer.key != other.key {
            return Err(refuse(&connection, "key", "the link's", "another"));
        }
        if expected != 0 && other.node != expected {
            let (expected, other) = (hex(expected), hex(other.node));
            return Err(refuse(&connection, "incarnation", expected, other));
        }
        if locked.is_other(other) {
            locked.begin_restart();
        }
        let lanes = locked.lanes.len() as u64;
        let penalty = clock_ms() < locked.penalty_until_ms;
        let number = locked.last_lane.checked_add(1);
        let number =
            number.filter(|_| !locked.is_restarting && !penalty && lanes < LANES_MAX as u64);
        let Some(number) = number else {
            return Err(refuse(&connection, "lanes", lanes, "one more"));
        };
        let own = Hello {
            to: other.node,
            ..self.hello(&locked, number)
        };
        rdma_of_both(own.rdma, other.rdma)
            .map_err(|wish| refuse(&connection, "RDMA", rdma_in_words(own.rdma), wish))?;
        write_frame(&connection, &own.clone().into())?;
        locked.last_lane = number;
        drop(locked);
        self.answered(connection, &own, other)
    }

    /// Handles the peer's answer to this end's HELLO, which gives the lane its number.
    pub(crate) fn dialled(
        self: &Arc<Self>,
        connection: Connection,
        own: &Hello,
        other: &Hello,
    ) -> Result<(), HelloError> {
        let mut locked = self.lock();
        let is_seen = locked.seen == Some((other.node, other.machine));
        if is_seen && other.lane <= locked.last_lane {
            let last = u64::from(locked.last_lane);
            return Err(refuse(
                &connection,
                "number of the lane",
                format!("more than {last}"),
                other.lane,
            ));
        }
        locked.last_lane = other.lane;
        drop(locked);
        let own = Hello {
            lane: other.lane,
            ..own.clone()
        };
        self.answered(connection, &own, other)
    }

    /// Both ends have sent HELLO. If both want RDMA, they set up a channel. That takes a while, so the link is not locked.
    pub(crate) fn answered(
        self: &Arc<Self>,
        connection: Connection,
        own: &Hello,
        other: &Hello,
    ) -> Result<(), HelloError> {
        let both = rdma_of_both(own.rdma, other.rdma);
        let both = both.map_err(rdma_is_required)?;
        let agreed = match (&self.shared.config.rdma, both) {
            (_, false) => Err(self.why_no_rdma(own, other)),
            (None, true) => Err(Some("this host has no RDMA".into())),
            (Some(rdma), true) => agree(&connection, rdma, own.lane)?.map_err(Some),
        };
        if let (true, Err(Some(why))) = (both, &agreed) {
            if [own.rdma, other.rdma].contains(&RdmaMode::Require) {
                return Err(rdma_is_required(why));
            }
            self.rdma_failed(&mut self.lock(), why.clone());
        }
        self.begin_lane(connection, own, other, agreed)
    }

    /// Why a lane is not an RDMA lane although this end has RDMA; `None` if it does not want RDMA.
    fn why_no_rdma(&self, own: &Hello, other: &Hello) -> Option<String> {
        if self.rdma_mode() == RdmaMode::No {
            return None;
        }
        if own.rdma == RdmaMode::No {
            return self.lock().rdma_why.clone();
        }
        debug_assert_eq!(other.rdma, RdmaMode::No);
        Some("the peer has no RDMA, or does not try it for now".into())
    }

    /// Makes the lane and adds it to the link. `agreed`: the RDMA channel; or why it is a lane over the connection itself.
    fn begin_lane(
        self: &Arc<Self>,
        mut connection: Connection,
        own: &Hello,
        other: &Hello,
        agreed: Result<Agreed, Option<String>>,
    ) -> Result<(), HelloError> {
        let number = own.lane;
        let is_rdma = agreed.is_ok();
        connection.set_limit(None)?;
        let lane: Arc<dyn Lane> = match agreed {
            Ok(agreed) => {
                let registered = Arc::clone(&self.shared.registered);
                let lane = RdmaLane::new(number, connection, agreed, registered)?;
                Arc::new(lane)
            }
            Err(why_not) => {
                connection.set_spin(self.config.spin);
                Arc::new(Stream::new(number, connection, why_not))
            }
        };
        let mut locked = self.lock();
        if locked.is_other(other) {
            locked.begin_restart();
        }
        // Stale, too: the machine has restarted since this end named it in HELLO.
        let stale = locked.is_closing
            || locked.is_restarting
            || locked.peer.key != other.key
            || locked.machine_id != own.machine;
        if stale || !locked.machine.lane_up(number, other.first_window) {
            lane.close("the link closed or restarted while the lane was being opened");
            return Ok(());
        }
        locked.seen = Some((other.node, other.machine));
        locked.peer_has_rdma = other.rdma != RdmaMode::No;
        locked.counts.lanes_opened += 1;
        locked.counts.rdma_opened += u64::from(is_rdma);
        if locked.lanes.insert(number, Arc::clone(&lane)).is_none() && locked.lanes.len() == 1 {
            locked.event(LinkEvent::Up);
        }
        if is_rdma && !locked.peer.dial.is_empty() && locked.lanes.len() > self.config.lanes {
            self.replace_one(&locked);
        }
        let missing = self.start_threads(&lane, number, &mut locked);
        drop(locked);
        (0..missing).for_each(|_| lane.leave(self));
        self.settle();
        Ok(())
    }

    /// Starts a lane's threads; if one does not start, closes the lane. Returns how many did not start: the caller calls [`Lane::leave`]
    /// for each, without the lock.
    fn start_threads(
        self: &Arc<Self>,
        lane: &Arc<dyn Lane>,
        number: u32,
        locked: &mut LockedLink,
    ) -> usize {
        locked.threads.retain(|thread| !thread.is_finished());
        lane.state().threads.store(lane.threads().len(), SeqCst);
        let mut missing = 0;
        for name in lane.threads() {
            let (link, runs) = (Arc::clone(self), Arc::clone(lane));
            let spawned = spawn(&format!("{name}-{number}"), move || {
                if let Err(why) = runs.run(name, &link) {
                    runs.close(&why);
                }
                runs.leave(&link);
            });
            match spawned {
                Ok(thread) => locked.threads.push(thread),
                Err(error) => {
                    lane.close(&error.to_string());
                    missing += 1;
                }
            }
        }
        missing
    }
}

fn rdma_is_required(why: &str) -> HelloError {
    HelloError::Refused(format!("RDMA is required, and not possible: {why}"))
}
