//! Opening lanes: when one is wanted, what both ends say first, and what becomes of the connection.

use super::{Core, Open, Running};
use crate::connection::Connection;
use crate::frame::{ResetReason, Wish, LANES_MAX};
use crate::hello::{answer, rdma_of_both, refuse, Hello, HelloError, ASKED};
use crate::lane::rdma::{agree, Agreed, RdmaLane};
use crate::lane::{Lane, Stream};
use crate::owner::Event;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A lane's thread: its name, and what it does.
type Thread = (String, Box<dyn FnOnce(&Arc<Running>) + Send>);

impl Running {
    /// Waits for a lane to be wanted; `None` if the link closes.
    pub(crate) fn next_dial(&self) -> Option<(Hello, Vec<SocketAddr>)> {
        let mut core = self.lock();
        loop {
            if core.closing {
                return None;
            }
            let now_ms = self.now_ms();
            let wanted = self.wanted(&core, now_ms);
            let wait_ms = wanted.map(|(due_ms, _)| due_ms.saturating_sub(now_ms));
            if let (Some((_, rdma)), Some(0)) = (wanted, wait_ms) {
                core.dialled_ms = now_ms;
                if rdma == Wish::Require && core.lanes.len() == LANES_MAX {
                    // Its place is taken by the next one.
                    self.replace_one(&mut core);
                } else {
                    let mut hello = self.hello(&core, ASKED);
                    hello.rdma = rdma;
                    return Some((hello, core.peer.dial.clone()));
                }
            }
            let limit = Duration::from_millis(wait_ms.unwrap_or(60_000).max(1));
            let waited = self.changed.wait_timeout(core, limit);
            core = waited.expect("no thread of a link panics").0;
        }
    }

    /// When a lane is to be opened, and what it is to be.
    fn wanted(&self, core: &Core, now_ms: u64) -> Option<(u64, Wish)> {
        if core.restarting || core.peer.dial.is_empty() {
            return None;
        }
        let ours = self.wish();
        let backed_off = core.dialled_ms + self.backoff_ms(core.failures);
        let due_ms = core.penalty_until_ms.max(backed_off);
        if core.lanes.len() < self.config.lanes {
            let later = now_ms < core.rdma_after_ms && ours == Wish::Prefer;
            return Some((due_ms, if later { Wish::No } else { ours }));
        }
        // A lane that could be better makes place for one that is, and for nothing else.
        let climbs = ours != Wish::No && core.peer_has_rdma;
        let lower = core
            .lanes
            .values()
            .any(|open| !open.is_rdma && !open.replaced);
        (climbs && lower).then(|| (due_ms.max(core.rdma_after_ms), Wish::Require))
    }

    /// What lanes are to be, as far as this end has a say.
    fn wish(&self) -> Wish {
        match self.shared.rdma {
            Some(_) => self.config.rdma,
            // Who requires what there is not gets no lane.
            None if self.config.rdma == Wish::Require => Wish::Require,
            None => Wish::No,
        }
    }

    /// Closes a TCP lane: what was on its way there goes again.
    fn replace_one(&self, core: &mut Core) {
        let lower = |open: &&mut Open| !open.is_rdma && !open.replaced;
        if let Some(open) = core.lanes.values_mut().find(lower) {
            open.replaced = true;
            open.lane.close("an RDMA lane takes its place");
        }
    }

    /// RDMA broke, or could not be had: lanes are TCP for a while.
    pub(super) fn rdma_failed(&self, core: &mut Core, why: String) {
        core.counts.rdma_failed += 1;
        core.rdma_after_ms = self.now_ms() + self.config.rdma_again_ms;
        core.rdma_why = Some(why);
    }

    fn backoff_ms(&self, failures: u32) -> u64 {
        let (least, most) = self.config.backoff_ms;
        let doubled = 1 << failures.saturating_sub(1).min(16);
        if failures == 0 {
            0
        } else {
            least.max(1).saturating_mul(doubled).min(most)
        }
    }

    /// Somebody had this link's key, and a certificate of somebody else.
    pub(crate) fn impostor(&self, from: SocketAddr) {
        let why = format!(
            "a lane from {} was refused: its certificate is not for '{}'",
            from.ip(),
            self.name
        );
        let mut core = self.lock();
        core.driver.event(Event::Refused { why: why.clone() });
        core.error = Some(why);
        drop(core);
        self.settle();
    }

    /// The next attempt is later.
    pub(crate) fn dial_failed(&self, hello: &Hello, error: &HelloError) {
        let why = error.to_string();
        let mut core = self.lock();
        if hello.rdma == Wish::Require && self.config.rdma != Wish::Require {
            // The link does without.
            self.rdma_failed(&mut core, why);
            return;
        }
        core.failures = core.failures.saturating_add(1);
        let said = match error {
            HelloError::Refused { .. }
            | HelloError::Refuse { .. }
            | HelloError::Decode(_)
            | HelloError::Rdma(_)
            | HelloError::Plain(_) => true,
            HelloError::Io(io) => io.kind() == std::io::ErrorKind::InvalidData,
            HelloError::Word => false,
        };
        if said && core.error.as_ref() != Some(&why) {
            core.driver.event(Event::Refused { why: why.clone() });
        }
        core.error = Some(why);
        drop(core);
        self.settle();
    }

    fn hello(&self, core: &Core, lane: u32) -> Hello {
        Hello {
            node: self.shared.incarnation,
            realm: self.shared.realm,
            lane,
            ring: self.ring,
            rdma: self.wish(),
            to: core.peer.incarnation,
            key: core.peer.key,
        }
    }

    /// A peer that opened a connection and showed this link's key.
    pub(crate) fn accepted(
        self: &Arc<Self>,
        connection: Connection,
        theirs: &Hello,
    ) -> Result<(), HelloError> {
        let mut core = self.lock();
        let expected = core.peer.incarnation;
        if core.closing || core.peer.key != theirs.key {
            return Err(refuse(&connection, ResetReason::Key, 0, "another key"));
        }
        if expected != 0 && theirs.node != expected {
            let theirs = format!("{:#x}", theirs.node);
            return Err(refuse(
                &connection,
                ResetReason::Incarnation,
                expected,
                theirs,
            ));
        }
        if core.seen != 0 && theirs.node != core.seen {
            self.begin_restart(&mut core);
        }
        let lanes = core.lanes.len() as u64;
        let penalty = self.now_ms() < core.penalty_until_ms;
        let number = core.last_lane.checked_add(1);
        let number = number.filter(|_| !core.restarting && !penalty && lanes < LANES_MAX as u64);
        let Some(number) = number else {
            return Err(refuse(&connection, ResetReason::Lanes, lanes, "one more"));
        };
        let ours = Hello {
            to: theirs.node,
            ..self.hello(&core, number)
        };
        rdma_of_both(ours.rdma, theirs.rdma)
            .map_err(|wish| refuse(&connection, ResetReason::Rdma, ours.rdma as u64, wish))?;
        answer(&connection, &ours)?;
        core.last_lane = number;
        drop(core);
        self.answered(connection, &ours, theirs)
    }

    /// The peer has answered this end's hello and given the lane a number.
    pub(crate) fn dialled(
        self: &Arc<Self>,
        connection: Connection,
        ours: &Hello,
        theirs: &Hello,
    ) -> Result<(), HelloError> {
        let mut core = self.lock();
        if core.seen == theirs.node && theirs.lane <= core.last_lane {
            let last = u64::from(core.last_lane);
            return Err(refuse(
                &connection,
                ResetReason::Protocol,
                last,
                theirs.lane,
            ));
        }
        core.last_lane = theirs.lane;
        drop(core);
        let ours = Hello {
            lane: theirs.lane,
            ..*ours
        };
        self.answered(connection, &ours, theirs)
    }

    /// Both ends have said hello. If both wish so, they agree on a channel; it takes a while, and the link is not
    /// locked meanwhile.
    pub(crate) fn answered(
        self: &Arc<Self>,
        connection: Connection,
        ours: &Hello,
        theirs: &Hello,
    ) -> Result<(), HelloError> {
        let both = rdma_of_both(ours.rdma, theirs.rdma).map_err(HelloError::Rdma)?;
        let agreed = match (&self.shared.rdma, both) {
            (_, false) => Err(self.why_no_rdma(ours, theirs)),
            (None, true) => Err(Some("this host has no RDMA".into())),
            (Some(rdma), true) => {
                let agreed = agree(&connection, rdma, ours.lane)?;
                connection.set_limit(None)?;
                agreed.map_err(Some)
            }
        };
        if let (true, Err(Some(why))) = (both, &agreed) {
            if [ours.rdma, theirs.rdma].contains(&Wish::Require) {
                return Err(HelloError::Rdma(why.clone()));
            }
            self.rdma_failed(&mut self.lock(), why.clone());
        }
        self.lane_opened(connection, ours.lane, theirs, agreed)
    }

    /// Why nobody asks for RDMA that this end could have.
    fn why_no_rdma(&self, ours: &Hello, theirs: &Hello) -> Option<String> {
        if self.wish() == Wish::No {
            return None;
        }
        if ours.rdma == Wish::No {
            return self.lock().rdma_why.clone();
        }
        debug_assert_eq!(theirs.rdma, Wish::No);
        Some("the peer has no RDMA, or leaves it for now".into())
    }

    /// The lane begins: over a channel, or over the connection itself and why.
    fn lane_opened(
        self: &Arc<Self>,
        connection: Connection,
        number: u32,
        theirs: &Hello,
        agreed: Result<Agreed, Option<String>>,
    ) -> Result<(), HelloError> {
        let now_ms = self.now_ms();
        let is_rdma = agreed.is_ok();
        let (lane, threads) = self.lane(number, connection, agreed)?;
        let mut core = self.lock();
        if core.seen != 0 && theirs.node != core.seen {
            self.begin_restart(&mut core);
        }
        let stale = core.closing || core.restarting || core.peer.key != theirs.key;
        let ring = self.ring;
        if stale || !core.driver.lane_opened(number, theirs.ring, ring, now_ms) {
            lane.close("it is not wanted any more");
            return Ok(());
        }
        core.seen = theirs.node;
        core.peer_has_rdma = theirs.rdma != Wish::No;
        core.counts.lanes_opened += 1;
        core.counts.rdma_opened += u64::from(is_rdma);
        let open = Open {
            lane: Arc::clone(&lane),
            since_ms: now_ms,
            is_rdma,
            replaced: false,
        };
        if core.lanes.insert(number, open).is_none() && core.lanes.len() == 1 {
            core.driver.event(Event::Up);
        }
        if is_rdma && !core.peer.dial.is_empty() && core.lanes.len() > self.config.lanes {
            self.replace_one(&mut core);
        }
        core.threads.retain(|thread| !thread.is_finished());
        let mut missing = 0;
        for (name, run) in threads {
            let link = Arc::clone(self);
            let builder = std::thread::Builder::new().name(name);
            match builder.spawn(move || run(&link)) {
                Ok(thread) => core.threads.push(thread),
                Err(error) => {
                    lane.close(&format!("a lane's thread could not be started: {error}"));
                    missing += 1;
                }
            }
        }
        drop(core);
        (0..missing).for_each(|_| lane.leave(self));
        self.settle();
        Ok(())
    }

    /// A lane and what its threads do.
    fn lane(
        self: &Arc<Self>,
        number: u32,
        mut connection: Connection,
        agreed: Result<Agreed, Option<String>>,
    ) -> Result<(Arc<dyn Lane>, Vec<Thread>), HelloError> {
        let now_ms = self.now_ms();
        Ok(match agreed {
            Ok(agreed) => {
                let registered = Arc::clone(&self.shared.registered);
                let lane = RdmaLane::new(number, connection, agreed, registered, now_ms)?;
                let lane = Arc::new(lane);
                let serves = Arc::clone(&lane);
                let serves: Thread = (
                    format!("lane-rdma-{number}"),
                    Box::new(move |link| serves.run(link)),
                );
                (lane, vec![serves])
            }
            Err(why_not) => {
                connection.set_spin(self.config.spin);
                let stream = Arc::new(Stream::new(number, connection, why_not, now_ms));
                let (reads, writes) = (Arc::clone(&stream), Arc::clone(&stream));
                let threads: Vec<Thread> = vec![
                    (
                        format!("lane-rx-{number}"),
                        Box::new(move |link| reads.read_all(link)),
                    ),
                    (
                        format!("lane-tx-{number}"),
                        Box::new(move |link| writes.write_all(link)),
                    ),
                ];
                (stream, threads)
            }
        })
    }
}
