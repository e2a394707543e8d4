//! Two carriers without a network: one between two queue pairs of this process (the model), and one that carries out nothing.

use crate::carrier::{gather, request, scatter, Carrier, Event, Refusal, Responder};
use crate::entry::Work;
use crate::regions::Regions;
use crate::view::{Syndrome, CAN_CHANGE, CAN_READ, CAN_WRITE};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most posted works that wait to be carried out.
const WAITING_MAX: usize = 256;

/// One end of a connection inside this process.
pub(crate) struct LoopbackCarrier {
    mine: Arc<Responder>,
    peer: Arc<Responder>,
    waiting: VecDeque<Work>,
    /// How often a work is tried while the peer has no receive for it, before it fails. None: without limit.
    tries_max: Option<u32>,
    /// How often the first waiting work was tried.
    tried: u32,
}

impl LoopbackCarrier {
    /// Returns both ends. A write with immediate for which the peer has no receive is tried `tries_max` times, or without limit.
    pub(crate) fn pair(
        one: Arc<Regions>,
        other: Arc<Regions>,
        tries_max: Option<u32>,
    ) -> (LoopbackCarrier, LoopbackCarrier) {
        let (one, other) = (Responder::new(one), Responder::new(other));
        let end = |mine: &Arc<Responder>, peer: &Arc<Responder>| LoopbackCarrier {
            mine: Arc::clone(mine),
            peer: Arc::clone(peer),
            waiting: VecDeque::with_capacity(WAITING_MAX),
            tries_max,
            tried: 0,
        };
        (end(&one, &other), end(&other, &one))
    }

    fn execute(&self, work: &Work) -> Result<(), Refusal> {
        let data = gather(self.mine.regions(), work).map_err(Refusal::Failed)?;
        let found = self.peer.serve(&request(work), &data)?;
        scatter(self.mine.regions(), work, &found).map_err(Refusal::Failed)
    }
}

impl Carrier for LoopbackCarrier {
    fn abilities(&self) -> u32 {
        CAN_WRITE | CAN_READ | CAN_CHANGE
    }

    fn post(&mut self, work: &Work) -> bool {
        if self.waiting.len() >= WAITING_MAX {
            return false;
        }
        self.waiting.push_back(*work);
        true
    }

    fn add_receives(&mut self, count: u32) {
        self.mine.add_receives(count);
    }

    fn progress(&mut self, events: &mut VecDeque<Event>) {
        self.mine.take_received(events);
        while let Some(work) = self.waiting.front() {
            let result = match self.execute(work) {
                Ok(()) => Ok(()),
                Err(Refusal::Failed(syndrome)) => Err(syndrome),
                Err(Refusal::NotReady) => {
                    self.tried += 1;
                    if self.tries_max.is_none_or(|most| self.tried < most) {
                        return;
                    }
                    Err(Syndrome::ReceiverNotReady)
                }
            };
            self.tried = 0;
            self.waiting.pop_front();
            events.push_back(Event::Done(result));
            if result.is_err() {
                return;
            }
        }
    }

    fn fail(&mut self) {
        self.waiting.clear();
    }
}

/// Ends each work `latency` after it was posted, without carrying it out. Only the cost of posting is left.
pub(crate) struct NullCarrier {
    latency: Duration,
    posted: VecDeque<Instant>,
}

impl NullCarrier {
    pub(crate) fn new(latency: Duration) -> NullCarrier {
        NullCarrier {
            latency,
            posted: VecDeque::new(),
        }
    }
}

impl Carrier for NullCarrier {
    fn abilities(&self) -> u32 {
        CAN_WRITE | CAN_READ | CAN_CHANGE
    }

    fn post(&mut self, _work: &Work) -> bool {
        self.posted.push_back(Instant::now() + self.latency);
        true
    }

    fn add_receives(&mut self, _count: u32) {}

    fn progress(&mut self, events: &mut VecDeque<Event>) {
        let now = Instant::now();
        while self.posted.front().is_some_and(|due| *due <= now) {
            self.posted.pop_front();
            events.push_back(Event::Done(Ok(())));
        }
    }

    fn fail(&mut self) {
        self.posted.clear();
    }
}
