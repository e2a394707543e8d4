//! Grants of the receiving end: which lanes may still bring chunks of which message.
//!
//! A grant's buffer is nobody else's before each of its lanes has ended or brought ABANDON, or the message is complete. So a grant may
//! outlive its message (a gap, a refused flow).

use super::buffer::{GrantedBuffer, NotLent, UnfinishedBuffer, WriteRange};
use super::frame::{Lanes, Remote, LANES_MAX};
use super::receive_message::Request;
use super::user::{violation, ProtocolViolation};
use std::collections::BTreeMap;

pub(super) struct Grant {
    pub(super) flow: u64,
    pub(super) sequence: u64,
    pub(super) request: Request,
    pub(super) lanes: Lanes,
    /// Those of them that may still bring chunks.
    open: [bool; LANES_MAX],
    buffer: GrantedBuffer,
    /// Where the peer's card may write by itself.
    pub(super) remote: Option<Remote>,
    pub(super) from_chunk: u32,
    /// The sender has requested the message again: it has lost a lane and leaves this grant.
    pub(super) requested_again: Option<Request>,
    /// The lane that brought GRANT to the sender.
    pub(super) reported_on: Option<u32>,
}

impl Grant {
    fn leave(&mut self, lane: u32) {
        let at = self.lanes.as_slice().iter().position(|of| *of == lane);
        if let Some(at) = at {
            self.open[at] = false;
        }
    }

    fn may_bring(&self, lane: u32) -> bool {
        let mut lanes = self.lanes.as_slice().iter().zip(self.open);
        lanes.any(|(of, open)| *of == lane && open)
    }

    /// Its buffer; `None` if ranges of it are lent still.
    pub(super) fn into_buffer(self) -> Option<UnfinishedBuffer> {
        self.buffer.into_unfinished()
    }
}

/// The grants that have not ended.
#[derive(Default)]
pub(super) struct Grants {
    all: BTreeMap<u64, Grant>,
    last: u64,
}

impl Grants {
    /// A new one. Its number.
    pub(super) fn add(
        &mut self,
        (flow, sequence): (u64, u64),
        request: Request,
        lanes: Lanes,
        (buffer, from_chunk, remote): (GrantedBuffer, u32, Option<Remote>),
    ) -> u64 {
        self.last += 1;
        let grant = Grant {
            flow,
            sequence,
            request,
            open: std::array::from_fn(|at| at < lanes.as_slice().len()),
            lanes,
            buffer,
            remote,
            from_chunk,
            requested_again: None,
            reported_on: None,
        };
        self.all.insert(self.last, grant);
        self.last
    }

    /// The last grant whose number ends with a mark, which has the bits of `mask`; 0 if there was none.
    pub(super) fn marked(&self, mark: u32, mask: u32) -> u64 {
        let back = self.last.wrapping_sub(mark.into()) & u64::from(mask);
        self.last.saturating_sub(back)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Grant> {
        self.all.get_mut(&number)
    }

    /// The right to write a chunk that a lane brings.
    pub(super) fn lend(
        &mut self,
        lane: u32,
        number: u64,
        chunk: u32,
        bytes: u32,
    ) -> Result<WriteRange, ProtocolViolation> {
        let wrong = |what| violation("Chunk", what);
        let grant = self.all.get_mut(&number);
        let grant = grant.ok_or(wrong("there is no such grant"))?;
        if !grant.may_bring(lane) {
            return Err(wrong("its lane is none of the grant's"));
        }
        let lent = grant.buffer.lend(number, chunk, bytes);
        lent.map_err(|why| match why {
            NotLent::Outside => wrong("it lies outside its message"),
            NotLent::Length => wrong("it has another length"),
            NotLent::Twice => wrong("it arrived before"),
        })
    }

    /// Takes a grant that is complete.
    pub(super) fn take_whole(&mut self, number: u64) -> Option<Grant> {
        self.all.get(&number)?.buffer.is_whole().then_some(())?;
        self.all.remove(&number)
    }

    /// A lane brought ABANDON. The grant, if that was its last lane.
    pub(super) fn abandoned(
        &mut self,
        number: u64,
        lane: u32,
    ) -> Result<Option<(u64, Grant)>, ProtocolViolation> {
        if number == 0 || number > self.last {
            return Err(violation("Abandon", "there was no such grant"));
        }
        let Some(grant) = self.all.get_mut(&number) else {
            return Ok(None);
        };
        grant.leave(lane);
        match grant.open.contains(&true) {
            true => Ok(None),
            false => Ok(self.all.remove_entry(&number)),
        }
    }

    /// A lane ended: nothing more arrives through it. The grants that end with it.
    pub(super) fn lane_ended(&mut self, lane: u32) -> Vec<(u64, Grant)> {
        for grant in self.all.values_mut() {
            grant.leave(lane);
            grant.reported_on = grant.reported_on.filter(|on| *on != lane);
        }
        let ended = self
            .all
            .iter()
            .filter(|(_, grant)| !grant.open.contains(&true));
        let numbers: Vec<u64> = ended.map(|(number, _)| *number).collect();
        let ended = numbers
            .iter()
            .filter_map(|number| self.all.remove_entry(number));
        ended.collect()
    }

    /// Those whose GRANT was lost with its lane, or may have been.
    pub(super) fn unreported(&self) -> Vec<u64> {
        let unreported = self
            .all
            .iter()
            .filter(|(_, grant)| grant.reported_on.is_none());
        unreported.map(|(number, _)| *number).collect()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Grant> {
        self.all.get(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
