//! Graphs: streams record them, and launch them as one.
//!
//! Every capture is relaxed here, whatever the program asked for: the backend's threads make calls of their own (events, regions)
//! while a stream records, and a capture may begin and end on different threads of the backend.
//!
//! Each launch of a graph has to do what the first one does. So the backend refuses copies through buffers that it uses again, and
//! functions of the host, while a stream records. Copies of shared memory are recorded as they are.

use super::api::{cu, GraphUpdated};
use super::handles::Graphs;
use super::session::{done, number, Outcome, Session};
use crate::call::{Call, CallValue};
use crate::codes::Code;
use crate::frame::FrameHeader;
use std::ffi::c_int;

const RELAXED: c_int = 2;
/// Free allocations when launched again, upload when instantiated, use the priorities of nodes.
const INSTANTIATE_FLAGS: u64 = 1 | 2 | 8;

impl Session {
    /// Whether a stream records. Asks the driver only while some stream does.
    pub(super) fn is_recording(&self, stream: usize) -> Result<bool, Code> {
        if self.graphs.recording.is_empty() {
            return Ok(false);
        }
        let mut status = 0;
        // SAFETY: the out pointer is to a variable of this function; the stream is one of this session.
        unsafe { cu!(self.api, stream_is_capturing(stream, &mut status))? };
        Ok(status != 0)
    }

    /// Refuses a call that a graph could not repeat.
    pub(super) fn refuse_recording(&self, stream: usize) -> Result<(), Code> {
        match self.is_recording(stream)? {
            true => Err(Code::STREAM_CAPTURE_UNSUPPORTED),
            false => Ok(()),
        }
    }

    pub(super) fn capture_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::CaptureBegin { stream } => {
                let stream = self.stream(of, stream)?;
                // SAFETY: a stream of this session.
                unsafe { cu!(api, capture_begin(stream, RELAXED))? };
                self.graphs.recording.insert(stream);
                done(Ok(()))
            }
            Call::CaptureEnd { stream, graph } => {
                let stream = self.stream(of, stream)?;
                self.graphs.is_free(graph)?;
                let mut raw = 0;
                // SAFETY: the out pointer is to a variable of this function; the stream is one of this session.
                let ended = unsafe { cu!(api, capture_end(stream, &mut raw)) };
                self.graphs.recording.remove(&stream);
                ended?;
                self.graphs.graphs.insert(graph, raw);
                done(Ok(()))
            }
            Call::CaptureStatus { stream } => {
                let stream = self.stream(of, stream)?;
                let (mut status, mut id, null) = (0, 0, std::ptr::null_mut());
                // SAFETY: the out pointers are to variables of this function, or null where nothing is wanted; the stream is one of
                // this session.
                unsafe {
                    cu!(
                        api,
                        capture_info(stream, &mut status, &mut id, null, null, null)
                    )?
                };
                Ok(Outcome::Now(CallValue::Pair(status as u64, id)))
            }
            Call::CaptureNodes { stream } => {
                let stream = self.stream(of, stream)?;
                self.next_behind(stream)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// The nodes on which the next node that a stream records will depend.
    fn next_behind(&self, stream: usize) -> Result<Outcome, Code> {
        let (mut status, mut nodes, mut count) = (0, 0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: the out pointers are to variables of this function, or null where nothing is wanted; the stream is one of
        // this session.
        unsafe {
            cu!(
                self.api,
                capture_info(
                    stream,
                    &mut status,
                    std::ptr::null_mut(),
                    null,
                    &mut nodes,
                    &mut count
                )
            )?
        };
        let found = match status != 0 && nodes != 0 {
            // SAFETY: the driver has just given its array of `count` nodes. It stays until the next call on the stream, and only this
            // thread makes calls now: it has the session.
            true => unsafe { std::slice::from_raw_parts(nodes as *const u64, count) },
            false => &[],
        };
        Ok(Outcome::Now(CallValue::Nodes(found.to_vec())))
    }

    pub(super) fn graph_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::GraphNodes { graph } => {
                let graph = self.graphs.graph(graph)?;
                let mut count = 0;
                // SAFETY: the out pointer is to a variable of this function; no nodes are asked for.
                unsafe { cu!(api, graph_nodes(graph, std::ptr::null_mut(), &mut count))? };
                let mut nodes = vec![0usize; count];
                if count > 0 {
                    // SAFETY: `nodes` has room for the `count` nodes that the driver has just counted, and `count` tells it so.
                    unsafe { cu!(api, graph_nodes(graph, nodes.as_mut_ptr(), &mut count))? };
                }
                let nodes = nodes.iter().take(count).map(|node| *node as u64);
                Ok(Outcome::Now(CallValue::Nodes(nodes.collect())))
            }
            Call::GraphInstantiate {
                graph,
                executable,
                flags,
            } => self.instantiate(graph, executable, flags),
            Call::GraphUpdate { executable, graph } => self.update(executable, graph),
            Call::GraphUpload { executable, stream } => {
                let executable = self.graphs.executable(executable)?;
                let stream = self.stream(of, stream)?;
                // SAFETY: an executable graph and a stream of this session.
                done(unsafe { cu!(api, graph_upload(executable, stream)) })
            }
            Call::GraphLaunch { executable, stream } => {
                let executable = self.graphs.executable(executable)?;
                let stream = self.stream(of, stream)?;
                // SAFETY: an executable graph and a stream of this session.
                done(unsafe { cu!(api, graph_launch(executable, stream)) })
            }
            Call::GraphDestroy { graph } => {
                let removed = self.graphs.graphs.remove(&graph);
                // SAFETY: a graph of this session, just taken out of its table, so no later call uses it.
                done(unsafe { cu!(api, graph_destroy(removed.ok_or(Code::INVALID_VALUE)?)) })
            }
            Call::GraphExecDestroy { executable } => {
                let removed = self.graphs.executables.remove(&executable);
                // SAFETY: an executable graph of this session, just taken out of its table, so no later call uses it.
                done(unsafe { cu!(api, graph_exec_destroy(removed.ok_or(Code::INVALID_VALUE)?)) })
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn instantiate(&mut self, graph: u64, executable: u64, flags: u64) -> Result<Outcome, Code> {
        let graph = self.graphs.graph(graph)?;
        self.graphs.is_free(executable)?;
        if flags & !INSTANTIATE_FLAGS != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function; the graph is one of this session.
        unsafe { cu!(self.api, graph_instantiate(&mut raw, graph, flags))? };
        self.graphs.executables.insert(executable, raw);
        done(Ok(()))
    }

    fn update(&mut self, executable: u64, graph: u64) -> Result<Outcome, Code> {
        let executable = self.graphs.executable(executable)?;
        let graph = self.graphs.graph(graph)?;
        let mut updated = GraphUpdated::default();
        // SAFETY: both graphs are of this session; the out pointer is to a variable of this function.
        let result = unsafe { cu!(self.api, graph_update(executable, graph, &mut updated)) };
        match result {
            Err(Code::GRAPH_EXEC_UPDATE_FAILURE) => number(updated.result.into()),
            result => result.and_then(|()| number(0)),
        }
    }

    /// Forgets a stream that is destroyed.
    pub(super) fn forget_recording(&mut self, stream: usize) {
        self.graphs.recording.remove(&stream);
    }

    /// Forgets all graphs: call when a device was reset, since a graph may have nodes of several devices.
    pub(super) fn forget_graphs(&mut self) {
        self.graphs = Graphs::default();
    }
}
