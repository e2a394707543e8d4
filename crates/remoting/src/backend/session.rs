//! The client's handles, and the calls that the driver answers at once.
//!
//! One thread owns this and makes the calls of all lanes in the order in which they came. What waits for the GPU is
//! handed to `jobs` with the driver's own handles.

use super::api::{cu, Api, LaunchAttribute, LaunchConfig};
use super::jobs::Job;
use super::memory::Memory;
use super::rows;
use crate::call::{Call, KernelId, KernelInfo, Value};
use crate::codes::Code;
use crate::frame::Header;
use crate::limits::{HANDLES_MAX, LAUNCH_ATTRIBUTES_MAX, PARAMETER_BYTES_MAX};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void, CString};
use std::sync::Arc;

/// Handles up to this one mean a stream of the current device: default, legacy, per-thread.
const PER_THREAD: u64 = 2;
const ATTRIBUTE_COOPERATIVE: u32 = 2;
/// Attributes of launches without handles in them: cooperative, cluster dimension and its scheduling, programmatic
/// serialization, priority, synchronization domain, preferred cluster dimension, carveout.
const ATTRIBUTES: [u32; 8] = [2, 4, 5, 6, 8, 10, 11, 14];
/// Attributes of kernels are numbered below this.
const KERNEL_ATTRIBUTE_MAX: c_int = 16;

struct Kernel {
    raw: usize,
    /// Offset and bytes of each parameter.
    parameters: Vec<(u32, u32)>,
}

struct Loaded {
    raw: usize,
    kernels: Vec<Option<Kernel>>,
}

thread_local! {
    /// The device whose context is current on this thread, and since which reset.
    static ENTERED: Cell<Option<(u64, u16)>> = const { Cell::new(None) };
}

/// What a call comes to.
pub(crate) enum Outcome {
    /// The answer.
    Now(Value),
    /// Something that waits for the GPU.
    Later(Job),
}

/// Everything that a client has on the server.
pub(crate) struct Session {
    api: Arc<Api>,
    contexts: Vec<Option<usize>>,
    /// Counts resets, after which each thread has to enter its context again.
    epoch: u64,
    streams: HashMap<u64, (u16, usize)>,
    per_thread: HashMap<(u16, u16), usize>,
    events: HashMap<u64, (u16, usize)>,
    libraries: HashMap<u64, Loaded>,
    pub(crate) memory: Memory,
}

fn number(value: u64) -> Result<Outcome, Code> {
    Ok(Outcome::Now(Value::Number(value)))
}

fn done(result: Result<(), Code>) -> Result<Outcome, Code> {
    result.map(|()| Outcome::Now(Value::Nothing))
}

fn c_string(text: &str) -> Result<CString, Code> {
    CString::new(text).map_err(|_| Code::INVALID_VALUE)
}

impl Session {
    pub(crate) fn new(api: Arc<Api>, devices: usize, memory_limit: Option<u64>) -> Session {
        Session {
            api,
            contexts: vec![None; devices],
            epoch: 0,
            streams: HashMap::new(),
            per_thread: HashMap::new(),
            events: HashMap::new(),
            libraries: HashMap::new(),
            memory: Memory::new(memory_limit),
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

    /// The driver's handle of a stream, as this lane means it.
    pub(crate) fn stream(&mut self, of: &Header, stream: u64) -> Result<usize, Code> {
        if stream < PER_THREAD {
            return Ok(stream as usize);
        }
        if stream > PER_THREAD {
            let found = self.streams.get(&stream).ok_or(Code::INVALID_HANDLE)?;
            return Ok(found.1);
        }
        // The driver's own would be the backend's thread's, which all lanes share.
        if let Some(raw) = self.per_thread.get(&(of.lane, of.device)) {
            return Ok(*raw);
        }
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function.
        unsafe { cu!(self.api, stream_create(&mut raw, 0, 0))? };
        self.per_thread.insert((of.lane, of.device), raw);
        Ok(raw)
    }

    fn event(&self, event: u64) -> Result<usize, Code> {
        let found = self.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
        Ok(found.1)
    }

    fn kernel(&self, id: &KernelId) -> Result<&Kernel, Code> {
        let library = self
            .libraries
            .get(&id.library)
            .ok_or(Code::INVALID_HANDLE)?;
        let kernel = library
            .kernels
            .get(id.index as usize)
            .and_then(Option::as_ref);
        kernel.ok_or(Code::INVALID_DEVICE_FUNCTION)
    }

    /// Makes a call that has no bytes behind it, or hands back what waits.
    pub(crate) fn dispatch(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
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
            Call::StreamCreate { .. }
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
            Call::Synchronize
            | Call::Limit { .. }
            | Call::LimitSet { .. }
            | Call::PeerEnable { .. }
            | Call::PeerDisable { .. }
            | Call::Reset => self.context_call(of, call),
            Call::LibraryMore { .. }
            | Call::LibraryUnload { .. }
            | Call::Variable { .. }
            | Call::KernelInfo { .. }
            | Call::KernelSet { .. }
            | Call::Launch { .. }
            | Call::Occupancy { .. }
            | Call::OccupancyShared { .. } => self.kernel_call(of, call),
            // They come with bytes, which the caller of this function has.
            Call::CopyIn { .. } | Call::CopyInRows { .. } | Call::LibraryLoad { .. } => {
                Err(Code::INVALID_VALUE)
            }
        }
    }

    fn memory_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
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
                // SAFETY: the out pointer is to a variable of this function; the stream is one of this session.
                unsafe { cu!(api, allocate_async(&mut address, bytes as usize, stream))? };
                self.memory.add(address, bytes, of.device);
                number(address)
            }
            Call::Free { address } => {
                self.memory.is_allocation(address)?;
                // SAFETY: an allocation of this session, which is forgotten with it.
                unsafe { cu!(api, free(address))? };
                self.memory.remove(address);
                done(Ok(()))
            }
            Call::FreeOnStream { address, stream } => {
                self.memory.is_allocation(address)?;
                let stream = self.stream(of, stream)?;
                // SAFETY: an allocation of this session, which is forgotten with it; the stream is one of this session.
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
                Ok(Outcome::Now(Value::Pair(free, total)))
            }
        }
    }

    fn copy_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::CopyOut {
                from,
                bytes,
                stream,
            } => {
                self.memory.check(from, bytes)?;
                let stream = self.stream(of, stream)?;
                Ok(Outcome::Later(Job::copy_out(from, bytes, stream)))
            }
            Call::CopyOutRows {
                from,
                extent,
                stream,
            } => {
                self.memory.check_rows(&from, &extent)?;
                let stream = self.stream(of, stream)?;
                Ok(Outcome::Later(Job::CopyOut {
                    from,
                    extent,
                    stream,
                }))
            }
            Call::Copy {
                to,
                from,
                bytes,
                stream,
            } => {
                self.memory.check(to, bytes)?;
                self.memory.check(from, bytes)?;
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
                self.memory.check_rows(&to, &extent)?;
                self.memory.check_rows(&from, &extent)?;
                let stream = self.stream(of, stream)?;
                let to = rows::Side::Device(to);
                done(rows::copy(
                    &api,
                    to,
                    rows::Side::Device(from),
                    extent,
                    stream,
                ))
            }
            Call::Fill {
                to,
                extent,
                value,
                width,
                stream,
            } => {
                self.memory.check_rows(&to, &extent)?;
                let stream = self.stream(of, stream)?;
                done(rows::fill(&api, to, extent, value, width, stream))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn stream_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
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
            Call::StreamDestroy { stream } => {
                let (_, raw) = self.streams.remove(&stream).ok_or(Code::INVALID_HANDLE)?;
                // SAFETY: a stream of this session, which nobody can name any more.
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
                Ok(Outcome::Now(Value::Pair(least as u64, greatest as u64)))
            }
        }
    }

    fn event_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
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
                // SAFETY: an event of this session, which nobody can name any more.
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
            Call::EventSynchronize { event } => Ok(Outcome::Later(Job::Event(self.event(event)?))),
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
                Ok(Outcome::Now(Value::Float(milliseconds)))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn context_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
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
        let gone = |entry: &(u16, usize)| entry.0 == device;
        self.streams.retain(|_, entry| !gone(entry));
        self.events.retain(|_, entry| !gone(entry));
        self.per_thread.retain(|key, _| key.1 != device);
        self.memory.reset(device);
        self.contexts[device as usize] = None;
        self.epoch += 1;
        // SAFETY: of this context nothing is known any more; the next call for the device retains it anew.
        unsafe {
            cu!(self.api, primary_reset(device.into()))?;
            cu!(self.api, primary_release(device.into()))?;
        }
        done(Ok(()))
    }

    /// Loads an image, which the driver checks, and finds its kernels.
    pub(crate) fn load(
        &mut self,
        of: &Header,
        library: u64,
        names: &[&str],
        image: &[u8],
    ) -> Result<Value, Code> {
        self.enter(of.device)?;
        if self.libraries.contains_key(&library) || self.libraries.len() >= HANDLES_MAX {
            return Err(Code::INVALID_VALUE);
        }
        let null = std::ptr::null::<c_void>();
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function. The image is followed by a zero, so that text
        // ends; what it contains the driver has to check, in a process that has nothing of anybody but its sender's.
        unsafe {
            cu!(
                self.api,
                library_load(
                    &mut raw,
                    image.as_ptr().cast(),
                    null,
                    null,
                    0,
                    null,
                    null,
                    0
                )
            )?
        };
        self.libraries.insert(
            library,
            Loaded {
                raw,
                kernels: Vec::new(),
            },
        );
        self.find_all(of, library, names)
    }

    fn find_all(&mut self, of: &Header, library: u64, names: &[&str]) -> Result<Value, Code> {
        let raw = self
            .libraries
            .get(&library)
            .ok_or(Code::INVALID_HANDLE)?
            .raw;
        let mut kernels = Vec::new();
        let mut infos = Vec::new();
        for name in names {
            match self.find(raw, name, of.device) {
                Ok((kernel, info)) => {
                    kernels.push(Some(kernel));
                    infos.push(info);
                }
                Err(code) => {
                    kernels.push(None);
                    infos.push(KernelInfo {
                        code: code.0,
                        ..KernelInfo::default()
                    });
                }
            }
        }
        let loaded = self
            .libraries
            .get_mut(&library)
            .ok_or(Code::INVALID_HANDLE)?;
        if loaded.kernels.len() + kernels.len() > HANDLES_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        loaded.kernels.extend(kernels);
        Ok(Value::Kernels(infos))
    }

    fn find(&self, library: usize, name: &str, device: u16) -> Result<(Kernel, KernelInfo), Code> {
        let name = c_string(name)?;
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function; the library was just loaded.
        unsafe { cu!(self.api, library_kernel(&mut raw, library, name.as_ptr()))? };
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: both out pointers are to variables of this function.
            let found = unsafe {
                cu!(
                    self.api,
                    kernel_parameter(raw, parameters.len(), &mut offset, &mut bytes)
                )
            };
            match found {
                Ok(()) if offset + bytes <= PARAMETER_BYTES_MAX => {
                    parameters.push((offset as u32, bytes as u32));
                }
                // There are no more.
                Err(Code::INVALID_VALUE) => break,
                Ok(()) => return Err(Code::NOT_SUPPORTED),
                Err(code) => return Err(code),
            }
        }
        let info = KernelInfo {
            code: 0,
            parameters: parameters.clone(),
            attributes: self.attributes(raw, device),
        };
        Ok((Kernel { raw, parameters }, info))
    }

    fn attributes(&self, kernel: usize, device: u16) -> Vec<(i32, i32)> {
        let attribute = |number: c_int| {
            let mut value = 0;
            // SAFETY: the out pointer is to a variable of this function; the kernel is one of a loaded library.
            let found = unsafe {
                cu!(
                    self.api,
                    kernel_attribute(&mut value, number, kernel, device.into())
                )
            };
            found.ok().map(|()| (number, value))
        };
        (0..KERNEL_ATTRIBUTE_MAX).filter_map(attribute).collect()
    }

    fn kernel_call(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match call {
            Call::LibraryMore { library, kernels } => {
                self.find_all(of, *library, kernels).map(Outcome::Now)
            }
            Call::LibraryUnload { library } => {
                let loaded = self.libraries.remove(library).ok_or(Code::INVALID_HANDLE)?;
                // SAFETY: a library of this session, whose kernels nobody can name any more.
                done(unsafe { cu!(api, library_unload(loaded.raw)) })
            }
            Call::Variable { library, name } => {
                let library = self.libraries.get(library).ok_or(Code::INVALID_HANDLE)?.raw;
                let name = c_string(name)?;
                let (mut address, mut bytes) = (0, 0);
                // SAFETY: both out pointers are to variables of this function; the library is one of this session.
                unsafe {
                    cu!(
                        api,
                        library_global(&mut address, &mut bytes, library, name.as_ptr())
                    )?
                };
                self.memory.add_variable(address, bytes as u64, of.device);
                Ok(Outcome::Now(Value::Pair(address, bytes as u64)))
            }
            Call::KernelInfo { kernel } => {
                let kernel = self.kernel(kernel)?;
                let info = KernelInfo {
                    code: 0,
                    parameters: kernel.parameters.clone(),
                    attributes: self.attributes(kernel.raw, of.device),
                };
                Ok(Outcome::Now(Value::Kernels(vec![info])))
            }
            Call::KernelSet {
                kernel,
                attribute,
                value,
            } => {
                let raw = self.kernel(kernel)?.raw;
                // SAFETY: a kernel of this session; the rest are numbers, which the driver checks.
                done(unsafe {
                    cu!(
                        api,
                        kernel_attribute_set(*attribute, *value, raw, of.device.into())
                    )
                })
            }
            Call::Occupancy {
                kernel,
                block_threads,
                shared_bytes,
                flags,
            } => {
                let raw = self.kernel(kernel)?.raw;
                let mut blocks = 0;
                // SAFETY: the out pointer is to a variable of this function; a kernel may stand for a function.
                unsafe {
                    cu!(
                        api,
                        occupancy(
                            &mut blocks,
                            raw,
                            *block_threads,
                            *shared_bytes as usize,
                            *flags
                        )
                    )?
                };
                number(blocks as u64)
            }
            Call::OccupancyShared {
                kernel,
                blocks,
                block_threads,
            } => {
                let raw = self.kernel(kernel)?.raw;
                let mut bytes = 0;
                // SAFETY: the out pointer is to a variable of this function; a kernel may stand for a function.
                unsafe {
                    cu!(
                        api,
                        occupancy_shared(&mut bytes, raw, *blocks, *block_threads)
                    )?
                };
                number(bytes as u64)
            }
            _ => self.launch(of, call),
        }
    }

    fn launch(&mut self, of: &Header, call: &Call<'_>) -> Result<Outcome, Code> {
        let Call::Launch {
            kernel,
            grid,
            block,
            shared_bytes,
            stream,
            cooperative,
            attributes,
            parameters,
        } = call
        else {
            return Err(Code::INVALID_VALUE);
        };
        let api = self.api.clone();
        let stream = self.stream(of, *stream)?;
        let kernel = self.kernel(kernel)?;
        let mut pointers = Vec::with_capacity(kernel.parameters.len());
        for (offset, bytes) in &kernel.parameters {
            let (start, end) = (*offset as usize, (*offset + *bytes) as usize);
            let value = parameters.get(start..end).ok_or(Code::INVALID_VALUE)?;
            pointers.push(value.as_ptr().cast_mut().cast::<c_void>());
        }
        let values = pointers.as_mut_ptr();
        let ([gx, gy, gz], [bx, by, bz]) = (*grid, *block);
        let (raw, shared) = (kernel.raw, *shared_bytes);
        if attributes.is_empty() && !cooperative {
            let extra = std::ptr::null_mut();
            // SAFETY: a kernel and a stream of this session; `values` points to as many bytes for each parameter as the
            // driver said that it has, and the driver copies them before it returns.
            return done(unsafe {
                cu!(
                    api,
                    launch(raw, gx, gy, gz, bx, by, bz, shared, stream, values, extra)
                )
            });
        }
        if attributes.is_empty() {
            // SAFETY: a kernel and a stream of this session; `values` points to as many bytes for each parameter as the
            // driver said that it has, and the driver copies them before it returns.
            return done(unsafe {
                cu!(
                    api,
                    launch_cooperative(raw, gx, gy, gz, bx, by, bz, shared, stream, values)
                )
            });
        }
        let mut raw_attributes = launch_attributes(attributes, *cooperative)?;
        let config = LaunchConfig {
            grid: *grid,
            block: *block,
            shared_bytes: shared,
            stream,
            attribute_count: raw_attributes.len() as u32,
            attributes: raw_attributes.as_mut_ptr(),
        };
        // SAFETY: a kernel and a stream of this session; the configuration and its attributes, which hold no handles and
        // no addresses, and the parameters, which have the lengths that the driver gave, stay until it returns.
        done(unsafe { cu!(api, launch_ex(&config, raw, values, std::ptr::null_mut())) })
    }
}

fn launch_attributes(
    wanted: &[(u32, &[u8])],
    cooperative: bool,
) -> Result<Vec<LaunchAttribute>, Code> {
    if wanted.len() > LAUNCH_ATTRIBUTES_MAX {
        return Err(Code::INVALID_VALUE);
    }
    let mut all = Vec::with_capacity(wanted.len() + 1);
    let attribute = |id, bytes: &[u8]| {
        let mut value = [0; 64];
        let known = ATTRIBUTES.contains(&id) && bytes.len() <= value.len();
        value[..bytes.len().min(64)].copy_from_slice(&bytes[..bytes.len().min(64)]);
        known
            .then_some(LaunchAttribute { id, pad: 0, value })
            .ok_or(Code::NOT_SUPPORTED)
    };
    for (id, bytes) in wanted {
        all.push(attribute(*id, bytes)?);
    }
    if cooperative && !wanted.iter().any(|(id, _)| *id == ATTRIBUTE_COOPERATIVE) {
        all.push(attribute(ATTRIBUTE_COOPERATIVE, &1i32.to_le_bytes())?);
    }
    Ok(all)
}
