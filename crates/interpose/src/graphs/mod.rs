//! Graphs: those that streams record, which the server keeps; those that the program makes of nodes, which this process keeps (`nodes`);
//! and the executable graphs of both.

mod nodes;

pub(crate) use nodes::{KernelNode, Nodes, Work};

use crate::handles::streams;
use crate::servers::{at, is_here};
use crate::{managed, notice, session};
use nodes::Executable;
use rgaps_remoting::{Call, CallValue, Code};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// `cudaStreamCaptureMode`: global, thread-local, relaxed.
const MODE_MAX: i32 = 2;
/// `cudaGraphExecUpdateTopologyChanged`.
const TOPOLOGY_CHANGED: u32 = 2;
/// Flags of instantiation: free allocations when launched again, upload, use the priorities of nodes.
const INSTANTIATE_FLAGS: u64 = 1 | 2 | 8;

enum Graph {
    /// A stream recorded it, on the server of this GPU, which keeps it.
    Recorded(u16),
    Made(Nodes),
}

enum Launchable {
    /// An executable of a recorded graph, which the server of this GPU keeps.
    Recorded(u16),
    Made(Arc<Executable>),
}

#[derive(Default)]
struct Graphs {
    graphs: HashMap<u64, Graph>,
    /// The graph of each node.
    of: HashMap<u64, u64>,
    executables: HashMap<u64, Launchable>,
}

fn graphs() -> MutexGuard<'static, Graphs> {
    static GRAPHS: OnceLock<Mutex<Graphs>> = OnceLock::new();
    GRAPHS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Graphs {
    fn made(&mut self, graph: u64) -> Result<&mut Nodes, Code> {
        match self.graphs.get_mut(&graph) {
            Some(Graph::Made(nodes)) => Ok(nodes),
            Some(Graph::Recorded(_)) => {
                notice::unsupported("the nodes of a graph that a stream has recorded");
                Err(Code::NOT_SUPPORTED)
            }
            None => Err(Code::INVALID_VALUE),
        }
    }

    fn add(&mut self, nodes: Nodes) -> u64 {
        let graph = session::mint();
        self.of
            .extend(nodes.nodes().into_iter().map(|node| (node, graph)));
        self.graphs.insert(graph, Graph::Made(nodes));
        graph
    }

    fn graph_of(&mut self, node: u64) -> Result<&mut Nodes, Code> {
        let graph = self.of.get(&node).copied().ok_or(Code::INVALID_VALUE)?;
        self.made(graph)
    }
}

/// Sets the calling thread's capture mode, and gives the old one. The mode has no effect: all captures are relaxed.
pub(crate) fn exchange_mode(mode: i32) -> Result<i32, Code> {
    thread_local! {
        static MODE: Cell<i32> = const { Cell::new(0) };
    }
    match (0..=MODE_MAX).contains(&mode) {
        true => Ok(MODE.replace(mode)),
        false => Err(Code::INVALID_VALUE),
    }
}

/// Begins to record a stream.
pub(crate) fn begin(stream: u64, mode: i32) -> Result<(), Code> {
    streams::check(stream)?;
    if !(0..=MODE_MAX).contains(&mode) {
        return Err(Code::INVALID_VALUE);
    }
    // Waits, so that an error is this call's.
    streams::at_stream(stream, || {
        session::call(&Call::CaptureBegin { stream }, &[])
    })?;
    streams::set_recording(stream, Some(session::mint()));
    Ok(())
}

/// Ends recording; gives the graph.
pub(crate) fn end(stream: u64) -> Result<u64, Code> {
    let device = streams::find(stream)?.device;
    let graph = streams::recorded_graph(stream).unwrap_or_else(session::mint);
    let ended = at(device, || {
        session::call(&Call::CaptureEnd { stream, graph }, &[])
    });
    streams::set_recording(stream, None);
    ended?;
    graphs().graphs.insert(graph, Graph::Recorded(device));
    Ok(graph)
}

/// The capture status of a stream (1: it records, 2: its recording is invalid, 0: it does not record), and the number of the recording.
pub(crate) fn status(stream: u64) -> Result<(i32, u64), Code> {
    streams::check(stream)?;
    if !streams::is_any_recording() {
        return session::check_alive().map(|()| (0, 0));
    }
    let asked = streams::at_stream(stream, || {
        session::call(&Call::CaptureStatus { stream }, &[])
    });
    match asked? {
        CallValue::Pair(status, number) => Ok((status as i32, number)),
        _ => Err(Code::UNKNOWN),
    }
}

fn nodes(call: &Call<'_>) -> Result<Vec<u64>, Code> {
    match session::call(call, &[])? {
        CallValue::Nodes(nodes) => Ok(nodes),
        _ => Err(Code::UNKNOWN),
    }
}

/// The nodes on which the next node that a stream records will depend.
pub(crate) fn next_behind(stream: u64) -> Result<Vec<u64>, Code> {
    streams::at_stream(stream, || nodes(&Call::CaptureNodes { stream }))
}

/// The handle that the graph of recording `number` will have. The stream `by` takes part in that recording. The server learns the handle
/// when the recording ends.
pub(crate) fn recorded(by: u64, number: u64) -> Result<u64, Code> {
    let device = streams::find(by)?.device;
    for (stream, graph) in streams::all_recording() {
        let is_there = at(device, || streams::check_here(stream)).is_ok();
        if is_there && status(stream)?.1 == number {
            return Ok(graph);
        }
    }
    Err(Code::NOT_SUPPORTED)
}

pub(crate) fn create() -> Result<u64, Code> {
    session::check_alive()?;
    Ok(graphs().add(Nodes::default()))
}

/// Calls `act` with the nodes of a graph that the program makes.
pub(crate) fn with<T>(
    graph: u64,
    act: impl FnOnce(&mut Nodes) -> Result<T, Code>,
) -> Result<T, Code> {
    act(graphs().made(graph)?)
}

/// Calls `act` with all nodes of the graph that has `node`.
pub(crate) fn with_node<T>(
    node: u64,
    act: impl FnOnce(&mut Nodes) -> Result<T, Code>,
) -> Result<T, Code> {
    act(graphs().graph_of(node)?)
}

/// Adds a node to a graph, behind others.
pub(crate) fn add(graph: u64, behind: &[u64], work: Work) -> Result<u64, Code> {
    let mut graphs = graphs();
    let node = graphs.made(graph)?.add(behind, work)?;
    graphs.of.insert(node, graph);
    Ok(node)
}

pub(crate) fn remove(node: u64) -> Result<(), Code> {
    let mut graphs = graphs();
    graphs.graph_of(node)?.remove(node);
    graphs.of.remove(&node);
    Ok(())
}

/// A copy of a graph.
pub(crate) fn copy(graph: u64) -> Result<u64, Code> {
    let mut graphs = graphs();
    let nodes = graphs.made(graph)?.clone_nodes();
    Ok(graphs.add(nodes))
}

/// The nodes of a graph that a stream has recorded; `None` if the program makes it of nodes.
pub(crate) fn recorded_nodes(graph: u64) -> Result<Option<Vec<u64>>, Code> {
    let device = match graphs().graphs.get(&graph) {
        Some(Graph::Recorded(device)) => *device,
        Some(Graph::Made(_)) => return Ok(None),
        None => return Err(Code::INVALID_VALUE),
    };
    at(device, || nodes(&Call::GraphNodes { graph })).map(Some)
}

pub(crate) fn instantiate(graph: u64, flags: u64) -> Result<u64, Code> {
    let executable = session::mint();
    let launchable = match graphs().graphs.get(&graph).ok_or(Code::INVALID_VALUE)? {
        Graph::Made(nodes) => Launchable::Made(Arc::new(Executable::of(nodes)?)),
        Graph::Recorded(device) => Launchable::Recorded(*device),
    };
    match launchable {
        Launchable::Made(_) if flags & !INSTANTIATE_FLAGS != 0 => return Err(Code::NOT_SUPPORTED),
        Launchable::Made(_) => {}
        Launchable::Recorded(device) => {
            let call = Call::GraphInstantiate {
                graph,
                executable,
                flags,
            };
            at(device, || session::call(&call, &[]))?;
        }
    }
    graphs().executables.insert(executable, launchable);
    Ok(executable)
}

/// Gives an executable graph the parameters of a graph with the same nodes. Returns CUDA's result: 0 if the nodes are the same.
pub(crate) fn update(executable: u64, graph: u64) -> Result<u32, Code> {
    let device = {
        let mut guard = graphs();
        let Graphs {
            graphs,
            executables,
            ..
        } = &mut *guard;
        let known = executables
            .get_mut(&executable)
            .ok_or(Code::INVALID_VALUE)?;
        match (known, graphs.get(&graph).ok_or(Code::INVALID_VALUE)?) {
            (Launchable::Made(made), Graph::Made(nodes)) => {
                return Ok(match Arc::make_mut(made).update(nodes) {
                    true => 0,
                    false => TOPOLOGY_CHANGED,
                })
            }
            (Launchable::Recorded(device), Graph::Recorded(other))
                if at(*device, || is_here(*other)) =>
            {
                *device
            }
            _ => return Ok(TOPOLOGY_CHANGED),
        }
    };
    let updated = at(device, || {
        session::number(&Call::GraphUpdate { executable, graph })
    });
    updated.map(|result| result as u32)
}

/// Replaces the work of a node of an executable graph.
pub(crate) fn set(executable: u64, node: u64, work: Work) -> Result<(), Code> {
    match graphs().executables.get_mut(&executable) {
        Some(Launchable::Made(made)) => Arc::make_mut(made).set(node, work),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// The nodes of an executable graph; `None` if the current server keeps the graph. Fails if another server does.
fn made(executable: u64) -> Result<Option<Arc<Executable>>, Code> {
    match graphs().executables.get(&executable) {
        Some(Launchable::Made(made)) => Ok(Some(made.clone())),
        Some(Launchable::Recorded(device)) if is_here(*device) => Ok(None),
        Some(Launchable::Recorded(_)) | None => Err(Code::INVALID_VALUE),
    }
}

/// Uploads an executable graph to the device, before its launch.
pub(crate) fn upload(executable: u64, stream: u64) -> Result<(), Code> {
    streams::at_stream(stream, || match made(executable)? {
        Some(_) => session::check_alive(),
        None => session::send(&Call::GraphUpload { executable, stream }, &[]),
    })
}

/// Launches an executable graph.
pub(crate) fn launch(executable: u64, stream: u64) -> Result<(), Code> {
    if status(stream)?.0 != 0 {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    streams::at_stream(stream, || match made(executable)? {
        Some(made) => made.launch(stream),
        None => {
            managed::before(stream)?;
            session::send(&Call::GraphLaunch { executable, stream }, &[])
        }
    })
}

pub(crate) fn destroy(graph: u64) -> Result<(), Code> {
    let removed = {
        let mut graphs = graphs();
        let removed = graphs.graphs.remove(&graph).ok_or(Code::INVALID_VALUE)?;
        graphs.of.retain(|_, of| *of != graph);
        removed
    };
    match removed {
        Graph::Made(_) => session::check_alive(),
        Graph::Recorded(device) => at(device, || session::send(&Call::GraphDestroy { graph }, &[])),
    }
}

pub(crate) fn destroy_executable(executable: u64) -> Result<(), Code> {
    let removed = graphs().executables.remove(&executable);
    match removed.ok_or(Code::INVALID_VALUE)? {
        Launchable::Made(_) => session::check_alive(),
        Launchable::Recorded(device) => at(device, || {
            session::send(&Call::GraphExecDestroy { executable }, &[])
        }),
    }
}
