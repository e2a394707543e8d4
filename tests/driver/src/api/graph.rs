//! Graphs and how streams record them.

use crate::abi::Code;
use crate::call::{call, put};
use crate::context::current;
use crate::graph::Graph;
use crate::stream::Kind;
use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::Ordering;
use std::sync::Arc;

#[no_mangle]
extern "C" fn cuStreamBeginCapture_v2(stream: usize, _mode: c_int) -> c_int {
    call("cuStreamBeginCapture", |g| {
        let stream = current()?.stream(g, stream)?;
        let begun = stream
            .capture
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
        match begun {
            Ok(_) if stream.kind != Kind::Legacy => {
                stream.record(Some(Arc::new(Graph::default())));
                Ok(())
            }
            Ok(_) => {
                stream.capture.store(0, Ordering::Release);
                Err(Code::STREAM_CAPTURE_UNSUPPORTED)
            }
            Err(_) => Err(Code::ILLEGAL_STATE),
        }
    })
}

thread_local! {
    /// The nodes that a thread was told.
    static LISTED: RefCell<Vec<usize>> = RefCell::default();
}

/// What is recorded last is that on which the next work depends.
#[no_mangle]
unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: usize,
    status: *mut c_int,
    id: *mut c_ulonglong,
    graph: *mut usize,
    nodes: *mut usize,
    count: *mut usize,
) -> c_int {
    call("cuStreamGetCaptureInfo", |g| {
        let stream = current()?.stream(g, stream)?;
        let recorded = stream.recording();
        let address = |recorded: &Arc<Graph>| Arc::as_ptr(recorded) as c_ulonglong;
        let number = recorded.as_ref().map_or(0, address);
        let last = recorded
            .iter()
            .filter_map(|recorded| recorded.nodes().pop());
        let told = LISTED.with_borrow_mut(|told| {
            *told = last.collect();
            (told.as_ptr() as usize, told.len())
        });
        let put_if_wanted = |to: *mut usize, value| match to.is_null() {
            true => Ok(()),
            // SAFETY: the caller's.
            false => unsafe { put(to, value) },
        };
        put_if_wanted(graph, number as usize)?;
        put_if_wanted(nodes, told.0)?;
        put_if_wanted(count, told.1)?;
        // SAFETY: the caller's.
        unsafe {
            put(status, stream.capture.load(Ordering::Acquire) as c_int)?;
            match id.is_null() {
                true => Ok(()),
                false => put(id, number),
            }
        }
    })
}

#[no_mangle]
unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> c_int {
    call("cuStreamEndCapture", |g| {
        let context = current()?;
        let stream = context.stream(g, stream)?;
        let recorded = stream.recording();
        let state = stream.capture.load(Ordering::Acquire);
        if let Some(recorded) = &recorded {
            // Streams that joined leave with it.
            recorded.end();
            let same = |of: &Arc<Graph>| Arc::ptr_eq(of, recorded);
            for other in context.all_streams(g) {
                if other.recording().as_ref().is_some_and(same) {
                    other.record(None);
                    other.capture.store(0, Ordering::Release);
                }
            }
        }
        let handle = match (state, recorded) {
            (1, Some(recorded)) => Ok(g.graphs.add(recorded)),
            (0, _) => Err(Code::STREAM_CAPTURE_UNMATCHED),
            _ => Err(Code::STREAM_CAPTURE_INVALIDATED),
        };
        // SAFETY: the caller's.
        unsafe { put(graph, *handle.as_ref().unwrap_or(&0))? };
        handle.map(drop)
    })
}

#[no_mangle]
unsafe extern "C" fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) -> c_int {
    call("cuGraphGetNodes", |g| {
        let found = g.graphs.get(graph)?.nodes();
        // SAFETY: the caller's: room for as many nodes as it says.
        unsafe {
            if !nodes.is_null() {
                let room = count.read().min(found.len());
                nodes.copy_from_nonoverlapping(found.as_ptr(), room);
            }
            put(count, found.len())
        }
    })
}

#[no_mangle]
extern "C" fn cuGraphDestroy(graph: usize) -> c_int {
    call("cuGraphDestroy", |g| g.graphs.remove(graph))
}

#[no_mangle]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut usize,
    graph: usize,
    _flags: c_ulonglong,
) -> c_int {
    call("cuGraphInstantiate", |g| {
        current()?;
        // SAFETY: the caller's.
        unsafe { put(executable, g.graphs.instantiate(graph)?) }
    })
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
struct Updated {
    result: c_uint,
    node: usize,
    from: usize,
}

const TOPOLOGY_CHANGED: c_uint = 2;

/// Whether nodes are of the same kinds is not checked, only how many there are.
#[no_mangle]
unsafe extern "C" fn cuGraphExecUpdate_v2(
    executable: usize,
    graph: usize,
    updated: *mut Updated,
) -> c_int {
    call("cuGraphExecUpdate", |g| {
        let fits = g.graphs.update(executable, graph)?;
        let result = if fits { 0 } else { TOPOLOGY_CHANGED };
        let told = Updated {
            result,
            node: 0,
            from: 0,
        };
        // SAFETY: the caller's.
        unsafe { put(updated, told)? };
        match fits {
            true => Ok(()),
            false => Err(Code::GRAPH_EXEC_UPDATE_FAILURE),
        }
    })
}

/// Nothing has to be sent anywhere.
#[no_mangle]
extern "C" fn cuGraphUpload(executable: usize, stream: usize) -> c_int {
    call("cuGraphUpload", |g| {
        current()?.stream(g, stream)?;
        g.graphs.executable(executable).map(drop)
    })
}

#[no_mangle]
extern "C" fn cuGraphLaunch(executable: usize, stream: usize) -> c_int {
    call("cuGraphLaunch", |g| {
        let context = current()?;
        let stream = context.stream(g, stream)?;
        let all = g.graphs.executable(executable)?;
        let work = move || all.iter().for_each(|work| work());
        context.submit(g, &stream, Vec::new(), work).map(drop)
    })
}

#[no_mangle]
extern "C" fn cuGraphExecDestroy(executable: usize) -> c_int {
    call("cuGraphExecDestroy", |g| {
        g.graphs.remove_executable(executable)
    })
}
