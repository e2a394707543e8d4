//! Two machines, and lanes that carry all waiting frames in both directions at once, one trip after the other.
use crate::host::{describe, remote_of, SimPayload, SimUser};
use rgaps_transport::machine::frame::{Decoded, Description, Frame, Small};
use rgaps_transport::machine::{
    FlowEvent, FrameStep, LinkLimits, LinkMachine, LinkOutput, ProtocolViolation, Turn, WriteLimit,
};
use std::sync::Arc;

/// A frame and its bytes, as they are on the wire.
pub struct Sent {
    pub lane: u32,
    pub frame: Frame,
    pub payload: Vec<u8>,
}

pub struct End {
    pub machine: LinkMachine,
    pub user: Arc<SimUser>,
    /// The turns that were delivered, as flow and text.
    pub delivered: Vec<(u64, String)>,
    pub reported: Vec<String>,
    /// Flows that the receiver has accepted.
    pub accepted: Vec<u64>,
    /// The user takes no turn.
    pub is_slow: bool,
}

pub struct Pair {
    pub ends: [End; 2],
    pub lanes: Vec<u32>,
    pub trips: u64,
}

pub const CHUNK: u64 = 1000;

pub fn limits() -> LinkLimits {
    LinkLimits {
        small_bytes_max: 200,
        chunk_bytes: CHUNK as u32,
        ..LinkLimits::default()
    }
}

pub fn end(limits: LinkLimits) -> End {
    let user = Arc::new(SimUser::new(1 << 20, false));
    End {
        machine: LinkMachine::new(limits, user.clone(), Arc::new(remote_of)),
        user,
        delivered: Vec::new(),
        reported: Vec::new(),
        accepted: Vec::new(),
        is_slow: false,
    }
}

impl End {
    pub fn open(&mut self, publisher: u64, first: u64) -> u64 {
        let description = Description::new(&publisher.to_le_bytes()).unwrap();
        self.machine.open(first, description).unwrap()
    }

    pub fn send(&mut self, flow: u64, publisher: u64, sequence: u64, bytes: u64) -> bool {
        let payload = SimPayload::new(publisher, sequence, bytes, bytes);
        let description = Description::new(&describe(sequence)).unwrap();
        self.machine.send(flow, sequence, payload, description)
    }

    /// Takes all frames that wait for a lane.
    pub fn write(&mut self, lane: u32) -> Vec<Sent> {
        let mut all = Vec::new();
        while let Some(queued) = self.machine.next(lane, WriteLimit::All) {
            let mut payload = Vec::new();
            let description = queued.description.iter();
            payload.extend(description.flat_map(|of| of.as_slice()));
            if let Some((bytes, from, to)) = &queued.payload {
                payload.extend_from_slice(bytes.slice(*from, *to));
                self.machine.written(lane, 1);
            }
            let mut encoded = Vec::new();
            queued.frame.encode(&mut encoded);
            let Ok(Decoded::Frame(frame, _)) = Frame::decode(&encoded) else {
                panic!("a frame does not decode");
            };
            assert_eq!(frame, queued.frame);
            all.push(Sent {
                lane,
                frame,
                payload,
            });
        }
        all
    }

    pub fn read(&mut self, sent: &Sent) -> Result<(), ProtocolViolation> {
        let small: &[u8] = match sent.frame {
            Frame::Small(_) => &sent.payload,
            _ => &[],
        };
        match self.machine.frame(sent.lane, &sent.frame, small)? {
            FrameStep::Done => {}
            FrameStep::Chunk(mut range) => {
                range.as_mut_slice().copy_from_slice(&sent.payload);
                let landed = range.landed(false);
                if let Some(grant) = landed {
                    self.machine.landed(grant);
                }
            }
            FrameStep::Deliver(Small {
                flow,
                sequence,
                description_bytes,
                ..
            }) => {
                let turn = Turn::Small {
                    sequence,
                    bytes: sent.payload.clone().into(),
                    description_bytes: description_bytes.into(),
                };
                let outcome = self.deliver(flow, turn);
                self.machine.delivered(flow, outcome);
            }
        }
        self.carry_out();
        Ok(())
    }

    pub fn carry_out(&mut self) {
        while let Some(output) = self.machine.output() {
            match output {
                LinkOutput::Deliver { flow, turn } => {
                    let outcome = self.deliver(flow, turn);
                    self.machine.delivered(flow, outcome);
                }
                LinkOutput::Flow(FlowEvent::Acknowledged { flow, sequence, .. }) => {
                    self.reported
                        .push(format!("{flow} acknowledged {sequence}"));
                }
                LinkOutput::Flow(FlowEvent::Accepted { flow }) => self.accepted.push(flow),
                LinkOutput::Flow(FlowEvent::Ended { flow }) => {
                    self.reported.push(format!("{flow} ended"))
                }
                LinkOutput::Violation(what) => self.reported.push(what.to_string()),
                LinkOutput::Stuck { lane } => self.reported.push(format!("lane {lane} stuck")),
                LinkOutput::Flow(FlowEvent::Refused { flow, why, dropped }) => {
                    let why = String::from_utf8_lossy(why.as_slice()).into_owned();
                    let dropped: Vec<u64> = dropped.iter().map(|(sequence, _)| *sequence).collect();
                    let text = format!("{flow} refused, {why}, dropped {dropped:?}");
                    self.reported.push(text);
                }
            }
        }
    }

    fn deliver(&mut self, flow: u64, turn: Turn) -> Result<(), Turn> {
        if self.is_slow {
            return Err(turn);
        }
        if let Turn::Opened { description, .. } = &turn {
            let id = u64::from_le_bytes(description.as_slice().try_into().unwrap());
            let mut decisions = self.user.decisions.lock().unwrap();
            decisions.publishers.insert(flow, id);
        }
        let name = crate::host::name(&turn);
        if let Turn::Large {
            sequence,
            description,
            buffer,
        } = turn
        {
            assert!(buffer.deliver(sequence, description.as_slice()).is_ok());
        }
        self.delivered.push((flow, name));
        Ok(())
    }

    /// What was delivered since the last call.
    pub fn take_delivered(&mut self) -> Vec<String> {
        let all = std::mem::take(&mut self.delivered);
        all.into_iter().map(|(_, name)| name).collect()
    }

    pub fn take_reported(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reported)
    }
}

impl Pair {
    pub fn new(lanes: &[u32]) -> Self {
        let mut pair = Self {
            ends: [end(limits()), end(limits())],
            lanes: Vec::new(),
            trips: 0,
        };
        lanes.iter().for_each(|lane| pair.lane_up(*lane));
        pair
    }

    pub fn lane_up(&mut self, lane: u32) {
        for end in &mut self.ends {
            assert!(end.machine.lane_up(lane, 64 << 10));
        }
        self.lanes.push(lane);
    }

    pub fn lane_ends(&mut self, lane: u32) {
        self.lanes.retain(|of| *of != lane);
        for end in &mut self.ends {
            end.machine.lane_ended(lane);
            end.carry_out();
        }
    }

    /// Carries all waiting frames of both ends across. Returns whether there were any.
    pub fn trip(&mut self) -> bool {
        let lanes = &self.lanes;
        let written = self.ends.each_mut().map(|end| {
            let frames = lanes.iter().flat_map(|lane| end.write(*lane));
            frames.collect::<Vec<Sent>>()
        });
        self.trips += 1;
        let any = written.iter().any(|frames| !frames.is_empty());
        for (from, frames) in written.into_iter().enumerate() {
            for sent in frames {
                self.ends[1 - from].read(&sent).unwrap();
            }
        }
        any
    }

    /// Makes trips and ticks until no frame waits.
    pub fn run(&mut self) {
        loop {
            while self.trip() {}
            self.ends.iter_mut().for_each(|end| {
                end.machine.tick();
                end.carry_out();
            });
            if !self.trip() {
                return;
            }
        }
    }

    /// Makes trips until the second end has delivered this turn; returns how many.
    pub fn trips_until(&mut self, name: &str) -> u64 {
        let start = self.trips;
        while !self.ends[1].delivered.iter().any(|(_, of)| of == name) {
            assert!(self.trips < start + 20, "{name} is not delivered");
            self.trip();
        }
        self.trips - start
    }
}

/// The names of frames, in the order of writing.
pub fn names(frames: &[Sent]) -> Vec<&'static str> {
    frames.iter().map(|sent| sent.frame.name()).collect()
}
