//! Cables, the frames on them, and the queue of events in virtual time.
//!
//! A cable stands for a link and its machines: frames of one direction stay in order, and those that are lost while the cable is down
//! are sent again when it is up, until one end withdraws the link. Then the *session* ends, and with it all its frames; the next session
//! has a new number.
use rgaps_routing::{HostId, Life, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::node::Frame;
use rgaps_testkit::Random;

/// An event of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Happening {
    /// The oldest frame on a cable arrives at its lower or higher end.
    Arrival(usize, usize),
    /// A host polls its timers.
    Poll(usize),
    /// A random fault happens.
    Fault,
    /// A host publishes a message.
    Publish(usize),
    /// A host learns that a link has lanes: it, the cable, the other end, and the session.
    Up(usize, usize, Life, u64),
    /// A host learns that the link with a life has ended, also if it never learned that there was one.
    Over(usize, Life),
}

#[derive(Default)]
pub struct Cable {
    pub ends: (usize, usize),
    pub is_up: bool,
    /// The link's session, while there is one.
    pub session: Option<u64>,
    /// When the last frame to the lower and to the higher end arrives.
    last: [Time; 2],
    /// Frames to the lower and to the higher end.
    pub frames: [VecDeque<Frame>; 2],
}

impl Cable {
    /// Ends the link, and drops all frames on the cable.
    pub fn end_session(&mut self) {
        self.session = None;
        self.frames = Default::default();
    }
}

/// The cables, and the queue of coming events.
pub struct Network {
    pub now: Time,
    pub cables: Vec<Cable>,
    queue: BinaryHeap<Reverse<(Time, u64, Happening)>>,
    count: u64,
    sessions: u64,
}

pub fn host(at: usize) -> HostId {
    HostId(at as u64)
}

impl Network {
    pub fn new(cables: Vec<(usize, usize)>) -> Network {
        let cable = |ends| Cable {
            ends,
            ..Cable::default()
        };
        Network {
            now: Duration::ZERO,
            cables: cables.into_iter().map(cable).collect(),
            queue: BinaryHeap::new(),
            count: 0,
            sessions: 0,
        }
    }

    pub fn at(&mut self, time: Time, happening: Happening) {
        self.count += 1;
        self.queue.push(Reverse((time, self.count, happening)));
    }

    /// Takes the next event before `end`, and sets the time to it.
    pub fn next(&mut self, end: Time) -> Option<Happening> {
        let Reverse((time, _, happening)) = *self.queue.peek()?;
        if time > end {
            return None;
        }
        self.queue.pop();
        self.now = time;
        Some(happening)
    }

    pub fn cable_between(&self, a: usize, b: usize) -> Option<usize> {
        let ends = (a.min(b), a.max(b));
        self.cables.iter().position(|cable| cable.ends == ends)
    }

    pub fn new_session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// Sends a frame, if there is a link.
    pub fn send(&mut self, from: usize, to: usize, frame: Frame, random: &mut Random) {
        let Some(cable) = self.cable_between(from, to) else {
            panic!("host {from} sends to {to}, and there is no cable");
        };
        if self.cables[cable].session.is_some() {
            let end = usize::from(to > from);
            self.cables[cable].frames[end].push_back(frame);
            self.deliver(cable, end, random);
        }
    }

    /// Schedules the arrival of one more frame, in order.
    fn deliver(&mut self, cable: usize, end: usize, random: &mut Random) {
        let delay = Duration::from_micros(50 + random.below(2000));
        let last = &mut self.cables[cable].last[end];
        *last = (*last).max(self.now + delay);
        let time = *last;
        self.at(time, Happening::Arrival(cable, end));
    }

    /// Schedules all frames that were not delivered, after the cable was down.
    pub fn resend(&mut self, cable: usize, random: &mut Random) {
        for end in 0..2 {
            for _ in 0..self.cables[cable].frames[end].len() {
                self.deliver(cable, end, random);
            }
        }
    }
}
