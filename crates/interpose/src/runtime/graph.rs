//! Graphs that streams record.

use super::node::put_list;
use super::{runtime, runtime_12, runtime_on_stream, stream_of};
use crate::abi::{Address, GraphUpdated, Out};
use crate::graphs;
use crate::notice;
use rgaps_remoting::Code;
use std::ffi::{c_int, c_uint, c_ulonglong};

/// Whether a stream records, the number of the recording, and its graph to be. The server has its nodes, without handles here.
fn capture_info(
    stream: u64,
    status: Out<c_int>,
    id: Out<u64>,
    (graph, nodes, count): (Out<u64>, Out<u64>, Out<usize>),
) -> Result<(), Code> {
    status.check()?;
    let (found, number) = graphs::status(stream)?;
    if found != 0 {
        if nodes.check().is_ok() || count.check().is_ok() {
            notice::unsupported("cudaStreamGetCaptureInfo with places for the graph's nodes");
            return Err(Code::NOT_SUPPORTED);
        }
        if graph.check().is_ok() {
            graph.put(graphs::recorded(number)?)?;
        }
        id.put_if_wanted(number);
    }
    status.put(found)
}

runtime_12! {
    fn cudaStreamGetCaptureInfo(stream: usize, status: Out<c_int>, id: Out<u64>) {
        let none = Out::none();
        capture_info(stream as u64, status, id, (none, none, Out::none()))
    }

    fn cudaStreamGetCaptureInfo_ptsz(stream: usize, status: Out<c_int>, id: Out<u64>) {
        let none = Out::none();
        capture_info(stream_of(stream, super::PER_THREAD), status, id, (none, none, Out::none()))
    }
}

runtime! {
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
        match graphs::recorded_nodes(graph)? {
            None => put_list(nodes, count, &graphs::with(graph, |nodes| Ok(nodes.nodes()))?),
            Some(found) if nodes.check().is_err() => count.put(found),
            Some(_) => {
                notice::unsupported("cudaGraphGetNodes with room for nodes that a stream has recorded");
                Err(Code::NOT_SUPPORTED)
            }
        }
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
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, _data: Address,
        count: Out<usize>
    ) {
        capture_info(stream_of(stream, default), status, id, (graph, nodes, count))
    }

    fn cudaStreamGetCaptureInfo_v2 "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, count: Out<usize>
    ) {
        capture_info(stream_of(stream, default), status, id, (graph, nodes, count))
    }

    fn cudaStreamGetCaptureInfo_v3 "_ptsz" (
        default; stream: usize, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, _data: Address,
        count: Out<usize>
    ) {
        capture_info(stream_of(stream, default), status, id, (graph, nodes, count))
    }

    fn cudaGraphUpload "_ptsz" (default; executable: u64, stream: usize) {
        graphs::upload(executable, stream_of(stream, default))
    }

    fn cudaGraphLaunch "_ptsz" (default; executable: u64, stream: usize) {
        graphs::launch(executable, stream_of(stream, default))
    }
}
