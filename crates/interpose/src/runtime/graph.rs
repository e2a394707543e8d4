//! Graphs that streams record.

use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::{Address, GraphUpdated, Out};
use crate::handles::graphs;
use crate::notice;
use rgaps_remoting::Code;
use std::ffi::{c_int, c_uint, c_ulonglong};

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

    fn cudaGraphGetNodes(graph: u64, nodes: Address, count: Out<usize>) {
        count.check()?;
        if !nodes.is_null() {
            notice::unsupported("cudaGraphGetNodes with room for nodes");
            return Err(Code::NOT_SUPPORTED);
        }
        count.put(graphs::nodes(graph)?)
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
        status.put(graphs::status(stream_of(stream, default))?)
    }

    fn cudaGraphUpload "_ptsz" (default; executable: u64, stream: usize) {
        graphs::upload(executable, stream_of(stream, default))
    }

    fn cudaGraphLaunch "_ptsz" (default; executable: u64, stream: usize) {
        graphs::launch(executable, stream_of(stream, default))
    }
}
