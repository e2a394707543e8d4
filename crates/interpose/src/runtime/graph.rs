//! Graphs that streams record.

use super::node::put_list;
use super::{runtime, runtime_12, runtime_on_stream, stream_of};
use crate::abi::{GraphUpdated, Out};
use crate::graphs;
use rgaps_remoting::Code;
use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_ulonglong};

/// The arrays that a program gets: the nodes, and for each an edge without properties.
#[derive(Default)]
struct Listed {
    nodes: Vec<u64>,
    edges: Vec<u64>,
}

thread_local! {
    /// They stay until the thread asks again.
    static LISTED: RefCell<Listed> = RefCell::default();
}

/// The addresses where a program wants nodes, their edges, and their number.
struct Wanted {
    nodes: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
}

/// Writes whether a stream records, the number of the recording, the handle that its graph will have, and the nodes on which the next
/// node will depend. The nodes are the server's: a program can compare and count them.
fn capture_info(
    stream: u64,
    status: Out<c_int>,
    id: Out<u64>,
    (graph, wanted): (Out<u64>, Wanted),
) -> Result<(), Code> {
    status.check()?;
    let (found, number) = graphs::status(stream)?;
    if found != 0 {
        if wanted.nodes.check().is_ok() || wanted.count.check().is_ok() {
            let nodes = graphs::next_behind(stream)?;
            LISTED.with_borrow_mut(|listed| {
                listed.edges = vec![0; nodes.len()];
                listed.nodes = nodes;
                wanted.count.put_if_wanted(listed.nodes.len());
                wanted.nodes.put_if_wanted(listed.nodes.as_ptr() as usize);
                wanted.edges.put_if_wanted(listed.edges.as_ptr() as usize);
            });
        }
        if graph.check().is_ok() {
            graph.put(graphs::recorded(stream, number)?)?;
        }
        id.put_if_wanted(number);
    }
    status.put(found)
}

runtime_12! {
    fn cudaStreamGetCaptureInfo(stream: usize, status: Out<c_int>, id: Out<u64>) {
        let (nodes, edges, count) = (Out::none(), Out::none(), Out::none());
        capture_info(stream as u64, status, id, (Out::none(), Wanted { nodes, edges, count }))
    }

    fn cudaStreamGetCaptureInfo_ptsz(stream: usize, status: Out<c_int>, id: Out<u64>) {
        let (nodes, edges, count) = (Out::none(), Out::none(), Out::none());
        capture_info(stream_of(stream, crate::handles::streams::PER_THREAD), status, id, (Out::none(), Wanted { nodes, edges, count }))
    }
}

runtime! {
    fn cudaThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        mode.put(graphs::exchange_mode(mode.get()?)?)
    }

    fn cudaGraphDestroy(graph: u64) {
        graphs::destroy(graph)
    }

    fn cudaGraphExecDestroy(executable: u64) {
        graphs::destroy_executable(executable)
    }

    fn cudaGraphInstantiate(to: Out<u64>, graph: u64, flags: c_ulonglong) {
        to.check()?;
        to.put(graphs::instantiate(graph, flags)?)
    }

    fn cudaGraphInstantiateWithFlags(to: Out<u64>, graph: u64, flags: c_ulonglong) {
        to.check()?;
        to.put(graphs::instantiate(graph, flags)?)
    }

    fn cudaGraphExecUpdate(executable: u64, graph: u64, updated: Out<GraphUpdated>) {
        updated.check()?;
        let result = graphs::update(executable, graph)?;
        // The server's nodes have no handles here.
        updated.put(GraphUpdated { result, node: 0, from: 0 })?;
        match result {
            0 => Ok(()),
            _ => Err(Code::GRAPH_EXEC_UPDATE_FAILURE),
        }
    }

    fn cudaGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        count.check()?;
        let nodes_of = |graph| match graphs::recorded_nodes(graph)? {
            None => graphs::with(graph, |nodes| Ok(nodes.nodes())),
            Some(found) => Ok(found),
        };
        put_list(nodes, count, &nodes_of(graph)?)
    }
}

runtime_on_stream! {
    fn cudaStreamBeginCapture "_ptsz" (default; stream: usize, mode: c_uint) {
        graphs::begin(stream_of(stream, default), mode as c_int)
    }

    fn cudaStreamEndCapture "_ptsz" (default; stream: usize, graph: Out<u64>) {
        graph.check()?;
        let ended = graphs::end(stream_of(stream, default));
        graph.put(*ended.as_ref().unwrap_or(&0))?;
        ended.map(drop)
    }

    fn cudaStreamIsCapturing "_ptsz" (default; stream: usize, status: Out<c_int>) {
        status.check()?;
        status.put(graphs::status(stream_of(stream, default))?.0)
    }

    fn cudaStreamGetCaptureInfo "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<usize>, edges: Out<usize>,
        count: Out<usize>
    ) {
        capture_info(stream_of(stream, default), status, id, (graph, Wanted { nodes, edges, count }))
    }

    fn cudaStreamGetCaptureInfo_v2 "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<usize>, count: Out<usize>
    ) {
        let wanted = Wanted { nodes, edges: Out::none(), count };
        capture_info(stream_of(stream, default), status, id, (graph, wanted))
    }

    fn cudaStreamGetCaptureInfo_v3 "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<usize>, edges: Out<usize>,
        count: Out<usize>
    ) {
        capture_info(stream_of(stream, default), status, id, (graph, Wanted { nodes, edges, count }))
    }

    fn cudaGraphUpload "_ptsz" (default; executable: u64, stream: usize) {
        graphs::upload(executable, stream_of(stream, default))
    }

    fn cudaGraphLaunch "_ptsz" (default; executable: u64, stream: usize) {
        graphs::launch(executable, stream_of(stream, default))
    }
}
