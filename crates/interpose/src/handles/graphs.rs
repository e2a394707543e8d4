//! Graphs that streams record, and graphs that can be launched.

use super::{captures, streams};
use crate::session;
use rgaps_remoting::{Call, Code};
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `cudaStreamCaptureMode`: global, thread-local, relaxed.
const MODE_MAX: i32 = 2;

#[derive(Default)]
struct Graphs {
    graphs: HashSet<u64>,
    executables: HashSet<u64>,
    /// Streams that record, as the program names them.
    recording: HashSet<u64>,
}

fn graphs() -> MutexGuard<'static, Graphs> {
    static GRAPHS: OnceLock<Mutex<Graphs>> = OnceLock::new();
    GRAPHS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn check(is_known: bool) -> Result<(), Code> {
    match is_known {
        true => Ok(()),
        false => Err(Code::INVALID_VALUE),
    }
}

/// Begins to record a stream.
pub(crate) fn begin(stream: u64, mode: i32) -> Result<(), Code> {
    streams::check(stream)?;
    check((0..=MODE_MAX).contains(&mode))?;
    // Waited for, so that an error is told here.
    session::call(&Call::CaptureBegin { stream }, &[])?;
    captures::begun(stream);
    graphs().recording.insert(stream);
    Ok(())
}

/// Ends recording; gives the graph.
pub(crate) fn end(stream: u64) -> Result<u64, Code> {
    streams::check(stream)?;
    let graph = captures::of(stream).graph;
    let ended = session::call(&Call::CaptureEnd { stream, graph }, &[]);
    graphs().recording.remove(&stream);
    ended?;
    graphs().graphs.insert(graph);
    Ok(graph)
}

/// Whether a stream records: 0, 1, or 2 if it does in vain.
pub(crate) fn status(stream: u64) -> Result<i32, Code> {
    streams::check(stream)?;
    if graphs().recording.is_empty() {
        return session::check_alive().map(|()| 0);
    }
    session::number(&Call::CaptureStatus { stream }).map(|status| status as i32)
}

/// How many nodes a graph has.
pub(crate) fn nodes(graph: u64) -> Result<usize, Code> {
    check(graphs().graphs.contains(&graph))?;
    session::number(&Call::GraphNodes { graph }).map(|count| count as usize)
}

/// Makes a graph that can be launched.
pub(crate) fn instantiate(graph: u64, flags: u64) -> Result<u64, Code> {
    check(graphs().graphs.contains(&graph))?;
    let executable = session::mint();
    let call = Call::GraphInstantiate {
        graph,
        executable,
        flags,
    };
    session::call(&call, &[])?;
    graphs().executables.insert(executable);
    Ok(executable)
}

/// Gives one the parameters of a graph with the same nodes; CUDA's result, 0 if it has them.
pub(crate) fn update(executable: u64, graph: u64) -> Result<u32, Code> {
    {
        let graphs = graphs();
        check(graphs.executables.contains(&executable) && graphs.graphs.contains(&graph))?;
    }
    session::number(&Call::GraphUpdate { executable, graph }).map(|result| result as u32)
}

/// Has the device know one before it is launched.
pub(crate) fn upload(executable: u64, stream: u64) -> Result<(), Code> {
    streams::check(stream)?;
    check(graphs().executables.contains(&executable))?;
    session::send(&Call::GraphUpload { executable, stream }, &[])
}

/// Launches one.
pub(crate) fn launch(executable: u64, stream: u64) -> Result<(), Code> {
    streams::check(stream)?;
    check(graphs().executables.contains(&executable))?;
    session::send(&Call::GraphLaunch { executable, stream }, &[])
}

/// Destroys a graph.
pub(crate) fn destroy(graph: u64) -> Result<(), Code> {
    check(graphs().graphs.remove(&graph))?;
    session::send(&Call::GraphDestroy { graph }, &[])
}

/// Destroys one that can be launched.
pub(crate) fn destroy_executable(executable: u64) -> Result<(), Code> {
    check(graphs().executables.remove(&executable))?;
    session::send(&Call::GraphExecDestroy { executable }, &[])
}
