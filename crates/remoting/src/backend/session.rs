//! The client's handles, and the calls that the driver answers at once.
//!
//! One thread at a time, the reader, has the session, and makes the calls of all threads in the order in which they came. A call that
//! waits for the GPU becomes a job (`jobs`) with the driver's own handles.
//!
//! A handle "of this session" is the driver's, which a table here has under the client's number, from the call that makes it to
//! the one that destroys it, which takes it out of the table first.

use super::api::{cu, Api};
use super::arrays::Arrays;
use super::async_copies::AsyncCopies;
use super::functions;
use super::handles::{Graphs, Loaded, Pools};
use super::images::Images;
use super::jobs::{CopyOut, Job};
use super::math_libraries::Math;
use super::memory::Memory;
use super::regions::Regions;
use super::rows;
use super::topics::Topics;
use crate::call::{Call, CallValue};
use crate::codes::Code;
use crate::extent::{row, Extent, Pitched};
use crate::frame::FrameHeader;
use crate::limits::HANDLES_MAX;
use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Handles up to this one mean a stream of the current device: default, legacy, per-thread.
const PER_THREAD: u64 = 2;
thread_local! {
    /// The device whose context is current on this thread, and the epoch in which the thread entered it.
    static ENTERED: Cell<Option<(u64, u16)>> = const { Cell::new(None) };
}

/// What a call gives.
pub(crate) enum Outcome {
    /// The answer.
    Now(CallValue),
    /// A job that waits; the answer comes after it.
    Later(Job),
    /// Memory that the answer hands to the client.
    Shared(OwnedFd),
}

/// Everything that a client has on the server.
pub(crate) struct Session {
    pub(super) api: Arc<Api>,
    contexts: Vec<Option<usize>>,
    /// Counts resets, after which each thread has to enter its context again.
    epoch: u64,
    streams: HashMap<u64, (u16, usize)>,
    per_thread: HashMap<(u16, u16), usize>,
    events: HashMap<u64, (u16, usize)>,
    pub(super) libraries: HashMap<u64, Loaded>,
    pub(super) regions: Regions,
    pub(super) async_copies: Arc<AsyncCopies>,
    pub(super) images: Images,
    pub(super) graphs: Graphs,
    pub(super) pools: Pools,
    pub(super) arrays: Arrays,
    pub(super) math: Math,
    pub(crate) memory: Memory,
    pub(super) topics: Arc<Topics>,
}

pub(super) fn number(value: u64) -> Result<Outcome, Code> {
    Ok(Outcome::Now(CallValue::Number(value)))
}

pub(super) fn done(result: Result<(), Code>) -> Result<Outcome, Code> {
    result.map(|()| Outcome::Now(CallValue::Nothing))
}

impl Session {
    pub(crate) fn new(
        api: Arc<Api>,
        devices: usize,
        memory_limit: Option<u64>,
        (async_copies, images): (Arc<AsyncCopies>, Images),
        topics: Topics,
    ) -> Session {
        Session {
            api,
            contexts: vec![None; devices],
            epoch: 0,
            streams: HashMap::new(),
            per_thread: HashMap::new(),
            events: HashMap::new(),
            libraries: HashMap::new(),
            regions: Regions::default(),
            async_copies,
            images,
            graphs: Graphs::default(),
            pools: Pools::default(),
            arrays: Arrays::default(),
            math: Math::default(),
            memory: Memory::new(memory_limit),
            topics: Arc::new(topics),
        }
    }

    /// Makes a device's primary context current on this thread; makes it at the first use.
    pub(crate) fn enter(&mut self, device: u16) -> Result<usize, Code> {
        let slot = self
            .contexts
            .get_mut(device as usize)
            .ok_or(Code::INVALID_DEVICE)?;
        let context = match *slot {
            Some(context) => context,
            None => {
                let mut context = 0;
                // SAFETY: the out pointer is to a variable of this function; ordinals of devices are devices.
                unsafe { cu!(self.api, primary_retain(&mut context, device.into()))? };
                *slot = Some(context);
                context
            }
        };
        let wanted = Some((self.epoch, device));
        if ENTERED.get() != wanted {
            self.api.enter(context)?;
            ENTERED.set(wanted);
        }
        Ok(context)
    }

    /// The driver's handle of a stream, as the client's calling thread means it.
    pub(crate) fn stream(&mut self, of: &FrameHeader, stream: u64) -> Result<usize, Code> {
        if stream < PER_THREAD {
            return Ok(stream as usize);
        }
        if stream > PER_THREAD {
            let found = self.streams.get(&stream).ok_or(Code::INVALID_HANDLE)?;
            return Ok(found.1);
        }
        // The driver's per-thread stream would be that of a thread of the backend, which serves several of the client's.
        if let Some(raw) = self.per_thread.get(&(of.thread, of.device)) {
            return Ok(*raw);
        }
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function.
        unsafe { cu!(self.api, stream_create(&mut raw, 0, 0))? };
        self.per_thread.insert((of.thread, of.device), raw);
        Ok(raw)
    }

    fn event(&self, event: u64) -> Result<usize, Code> {
        let found = self.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
        Ok(found.1)
    }

    /// Makes a call that has no bytes behind it, or a job of it if it waits.
    pub(crate) fn dispatch(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        self.enter(of.device)?;
        match call {
            Call::Allocate { .. }
            | Call::AllocateOnStream { .. }
            | Call::Free { .. }
            | Call::FreeOnStream { .. }
            | Call::MemoryInfo => self.memory_call(of, call),
            Call::CopyOut { .. }
            | Call::CopyOutRows { .. }
            | Call::Copy { .. }
            | Call::CopyRows { .. }
            | Call::Fill { .. } => self.copy_call(of, call),
            Call::ArrayCreate { .. }
            | Call::ArrayDestroy { .. }
            | Call::MipmapCreate { .. }
            | Call::MipmapLevel { .. }
            | Call::MipmapDestroy { .. }
            | Call::TextureCreate { .. }
            | Call::TextureDestroy { .. }
            | Call::TextureSampler { .. }
            | Call::SurfaceCreate { .. }
            | Call::SurfaceDestroy { .. } => self.array_call(of, call),
            Call::Share { .. }
            | Call::Unshare { .. }
            | Call::CopyShared { .. }
            | Call::CopyToRegion { .. }
            | Call::WaitForMarks { .. } => self.shared_call(of, call),
            Call::AllocateFromPool { .. }
            | Call::PoolDefault { .. }
            | Call::PoolCreate { .. }
            | Call::PoolDestroy { .. }
            | Call::PoolUse { .. }
            | Call::PoolSet { .. }
            | Call::PoolGet { .. }
            | Call::PoolTrim { .. } => self.pool_call(of, call),
            Call::Synchronize
            | Call::Limit { .. }
            | Call::LimitSet { .. }
            | Call::PeerEnable { .. }
            | Call::PeerDisable { .. }
            | Call::Reset => self.context_call(of, call),
            Call::LibraryKnown { .. }
            | Call::LibraryMore { .. }
            | Call::LibraryNow { .. }
            | Call::LibraryUnload { .. }
            | Call::Variable { .. } => self.library_call(of, call),
            Call::KernelInfo { .. }
            | Call::KernelSet { .. }
            | Call::Launch { .. }
            | Call::Occupancy { .. }
            | Call::OccupancyShared { .. } => self.kernel_call(of, call),
            Call::MathOpen { .. } | Call::Math { .. } => self.math_call(of, call),
            _ => self.dispatch_ordered(of, call),
        }
    }

    /// Makes calls that order work, and those of topics.
    fn dispatch_ordered(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        match call {
            Call::CaptureBegin { .. }
            | Call::CaptureEnd { .. }
            | Call::CaptureStatus { .. }
            | Call::CaptureNodes { .. } => self.capture_call(of, call),
            Call::GraphNodes { .. }
            | Call::GraphInstantiate { .. }
            | Call::GraphUpdate { .. }
            | Call::GraphUpload { .. }
            | Call::GraphLaunch { .. }
            | Call::GraphDestroy { .. }
            | Call::GraphExecDestroy { .. } => self.graph_call(of, call),
            Call::HostFunction { .. }
            | Call::NextHostFunction
            | Call::HostFunctionDone { .. }
            | Call::StreamCreate { .. }
            | Call::StreamDestroy { .. }
            | Call::StreamSynchronize { .. }
            | Call::StreamQuery { .. }
            | Call::StreamWaitEvent { .. }
            | Call::StreamPriorities => self.stream_call(of, call),
            Call::EventCreate { .. }
            | Call::EventDestroy { .. }
            | Call::EventRecord { .. }
            | Call::EventSynchronize { .. }
            | Call::EventQuery { .. }
            | Call::EventElapsed { .. } => self.event_call(of, call),
            Call::TopicPublisher { .. }
            | Call::TopicSubscriber { .. }
            | Call::TopicPublish { .. }
            | Call::TopicReceive { .. }
            | Call::TopicRelease { .. }
            | Call::TopicLeave { .. } => self.topic_call(of, call),
            // Calls with bytes behind them, which `Shared::make` makes.
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn memory_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        let mut address = 0;
        match *call {
            Call::Allocate { bytes } => {
                self.memory.admit(bytes)?;
                // SAFETY: the out pointer is to a variable of this function.
                unsafe { cu!(api, allocate(&mut address, bytes as usize))? };
                self.memory.add(address, bytes, of.device);
                number(address)
            }
            Call::AllocateOnStream { bytes, stream } => {
                self.memory.admit(bytes)?;
                let stream = self.stream(of, stream)?;
                self.refuse_recording(stream)?;
                // SAFETY: the out pointer is to a variable of this function; the stream is one of this session.
                unsafe { cu!(api, allocate_async(&mut address, bytes as usize, stream))? };
                self.memory.add(address, bytes, of.device);
                number(address)
            }
            Call::Free { address } => {
                self.memory.is_allocation(address)?;
                // SAFETY: an allocation of this session (`is_allocation`), which leaves the table right after.
                unsafe { cu!(api, free(address))? };
                self.memory.remove(address);
                done(Ok(()))
            }
            Call::FreeOnStream { address, stream } => {
                self.memory.is_allocation(address)?;
                let stream = self.stream(of, stream)?;
                self.refuse_recording(stream)?;
                // SAFETY: an allocation of this session (`is_allocation`), which leaves the table right after; the stream is one of this
                // session.
                unsafe { cu!(api, free_async(address, stream))? };
                self.memory.remove(address);
                done(Ok(()))
            }
            _ => {
                let (mut free, mut total) = (0, 0);
                // SAFETY: both out pointers are to variables of this function.
                unsafe { cu!(api, memory_info(&mut free, &mut total))? };
                let (mut free, mut total) = (free as u64, total as u64);
                if let Some(left) = self.memory.left() {
                    free = free.min(left);
                    total = total.min(left + self.memory.used());
                }
                Ok(Outcome::Now(CallValue::Pair(free, total)))
            }
        }
    }

    fn copy_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::CopyOut {
                from,
                bytes,
                stream,
            } => {
                let (from, extent) = row(from, bytes);
                self.bring(of, from, extent, stream)
            }
            Call::CopyOutRows {
                from,
                extent,
                stream,
            } => self.bring(of, from, extent, stream),
            Call::Copy {
                to,
                from,
                bytes,
                stream,
            } => {
                self.memory.check(to, bytes)?;
                self.readable(from, bytes)?;
                let stream = self.stream(of, stream)?;
                // SAFETY: both ranges are device memory of this session, as was just checked.
                done(unsafe { cu!(api, copy(to, from, bytes as usize, stream)) })
            }
            Call::CopyRows {
                to,
                from,
                extent,
                stream,
            } => {
                let (to, from) = (self.target(&to, &extent)?, self.origin(&from, &extent)?);
                let stream = self.stream(of, stream)?;
                let (to, from) = (rows::Side::Device(to), rows::Side::Device(from));
                done(rows::copy(&api, to, from, extent, stream))
            }
            Call::Fill {
                to,
                extent,
                value,
                width,
                stream,
            } => {
                self.memory.check_rows(&to, &extent)?;
                if to.array != 0 {
                    return Err(Code::INVALID_VALUE);
                }
                let stream = self.stream(of, stream)?;
                done(rows::fill(&api, to, extent, value, width, stream))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// A copy to the client, behind the work of a stream.
    fn bring(
        &mut self,
        of: &FrameHeader,
        from: Pitched,
        extent: Extent,
        stream: u64,
    ) -> Result<Outcome, Code> {
        let from = self.origin(&from, &extent)?;
        let stream = self.stream(of, stream)?;
        self.refuse_recording(stream)?;
        Ok(Outcome::Later(Job::CopyOut(CopyOut {
            from,
            extent,
            stream,
            context: self.enter(of.device)?,
        })))
    }

    fn stream_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::StreamCreate {
                stream,
                flags,
                priority,
            } => {
                let is_free = stream > PER_THREAD && !self.streams.contains_key(&stream);
                if !is_free || self.streams.len() >= HANDLES_MAX {
                    return Err(Code::INVALID_VALUE);
                }
                let mut raw = 0;
                // SAFETY: the out pointer is to a variable of this function.
                unsafe { cu!(api, stream_create(&mut raw, flags, priority))? };
                self.streams.insert(stream, (of.device, raw));
                done(Ok(()))
            }
            Call::HostFunction { function, stream } => {
                let stream = self.stream(of, stream)?;
                self.refuse_recording(stream)?;
                done(functions::queue(&api, function, stream))
            }
            Call::NextHostFunction => Ok(Outcome::Later(Job::Function)),
            Call::HostFunctionDone { function } => done(functions::done(function)),
            Call::StreamDestroy { stream } => {
                let (_, raw) = self.streams.remove(&stream).ok_or(Code::INVALID_HANDLE)?;
                self.forget_recording(raw);
                // SAFETY: a stream of this session, just taken out of its table, so no later call uses it.
                done(unsafe { cu!(api, stream_destroy(raw)) })
            }
            Call::StreamSynchronize { stream } => {
                Ok(Outcome::Later(Job::Stream(self.stream(of, stream)?)))
            }
            Call::StreamQuery { stream } => {
                let stream = self.stream(of, stream)?;
                // SAFETY: a stream of this session.
                done(unsafe { cu!(api, stream_query(stream)) })
            }
            Call::StreamWaitEvent {
                stream,
                event,
                flags,
            } => {
                let (stream, event) = (self.stream(of, stream)?, self.event(event)?);
                // SAFETY: a stream and an event of this session.
                done(unsafe { cu!(api, stream_wait_event(stream, event, flags)) })
            }
            _ => {
                let (mut least, mut greatest) = (0, 0);
                // SAFETY: both out pointers are to variables of this function.
                unsafe { cu!(api, context_priorities(&mut least, &mut greatest))? };
                Ok(Outcome::Now(CallValue::Pair(least as u64, greatest as u64)))
            }
        }
    }

    fn event_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::EventCreate { event, flags } => {
                if event == 0
                    || self.events.contains_key(&event)
                    || self.events.len() >= HANDLES_MAX
                {
                    return Err(Code::INVALID_VALUE);
                }
                let mut raw = 0;
                // SAFETY: the out pointer is to a variable of this function.
                unsafe { cu!(api, event_create(&mut raw, flags))? };
                self.events.insert(event, (of.device, raw));
                done(Ok(()))
            }
            Call::EventDestroy { event } => {
                let (_, raw) = self.events.remove(&event).ok_or(Code::INVALID_HANDLE)?;
                // SAFETY: an event of this session, just taken out of its table, so no later call uses it.
                done(unsafe { cu!(api, event_destroy(raw)) })
            }
            Call::EventRecord {
                event,
                stream,
                flags,
            } => {
                let (event, stream) = (self.event(event)?, self.stream(of, stream)?);
                // SAFETY: an event and a stream of this session.
                done(unsafe {
                    match flags {
                        0 => cu!(api, event_record(event, stream)),
                        _ => cu!(api, event_record_with_flags(event, stream, flags)),
                    }
                })
            }
            Call::EventSynchronize { event } => {
                Ok(Outcome::Later(Job::Events(vec![self.event(event)?])))
            }
            Call::EventQuery { event } => {
                let event = self.event(event)?;
                // SAFETY: an event of this session.
                done(unsafe { cu!(api, event_query(event)) })
            }
            Call::EventElapsed { start, end } => {
                let (start, end) = (self.event(start)?, self.event(end)?);
                let mut milliseconds = 0.0;
                // SAFETY: the out pointer is to a variable of this function; both are events of this session.
                unsafe { cu!(api, event_elapsed(&mut milliseconds, start, end))? };
                Ok(Outcome::Now(CallValue::Float(milliseconds)))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn context_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::Synchronize => Ok(Outcome::Later(Job::Context)),
            Call::Limit { limit } => {
                let mut value = 0;
                // SAFETY: the out pointer is to a variable of this function.
                unsafe { cu!(api, context_limit(&mut value, limit))? };
                number(value as u64)
            }
            Call::LimitSet { limit, value } => {
                // SAFETY: two numbers, which the driver checks.
                done(unsafe { cu!(api, context_limit_set(limit, value as usize)) })
            }
            Call::PeerEnable { device } => {
                let peer = self.enter(device)?;
                self.enter(of.device)?;
                // SAFETY: a context that this session retains.
                done(unsafe { cu!(api, context_peer_enable(peer, 0)) })
            }
            Call::PeerDisable { device } => {
                let peer = self.enter(device)?;
                self.enter(of.device)?;
                // SAFETY: a context that this session retains.
                done(unsafe { cu!(api, context_peer_disable(peer)) })
            }
            Call::Reset => self.reset(of.device),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn reset(&mut self, device: u16) -> Result<Outcome, Code> {
        let is_of_it = |entry: &(u16, usize)| entry.0 == device;
        self.topics.end();
        self.streams.retain(|_, entry| !is_of_it(entry));
        self.events.retain(|_, entry| !is_of_it(entry));
        self.per_thread.retain(|key, _| key.1 != device);
        self.memory.reset(device);
        self.memory.discount(self.arrays.reset(device));
        self.regions.reset(device);
        self.async_copies.reset(device);
        self.forget_graphs();
        self.contexts[device as usize] = None;
        self.epoch += 1;
        // SAFETY: the tables have just forgotten this context and the streams, events, memory, arrays and graphs in it, so no later call
        // uses them; the next call for the device retains the context anew.
        unsafe {
            cu!(self.api, primary_reset(device.into()))?;
            cu!(self.api, primary_release(device.into()))?;
        }
        done(Ok(()))
    }
}
