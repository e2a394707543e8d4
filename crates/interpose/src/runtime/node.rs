//! Graphs that the program makes of nodes.

use super::copy::{copy_3d_of, direction};
use super::runtime;
use crate::abi::{Address, Copy3d, HostNode, In, KernelNodeParameters, MemsetNode, Out};
use crate::graphs::{self, KernelNode, Nodes, Work};
use crate::handles::events;
use crate::{launch, notice};
use rgaps_remoting::{row, Code, Extent};
use std::ffi::{c_int, c_uint};

/// Handles of nodes that the program passes.
fn list(nodes: In<u64>, count: usize) -> Result<Vec<u64>, Code> {
    (0..count).map(|at| nodes.at(at)).collect()
}

fn pairs(from: In<u64>, to: In<u64>, count: usize) -> Result<Vec<(u64, u64)>, Code> {
    (0..count)
        .map(|at| Ok((from.at(at)?, to.at(at)?)))
        .collect()
}

/// Writes as many handles as there is room for (`count`), zeros behind them, and how many handles it wrote. With a null `to` writes only
/// how many there are.
pub(super) fn put_list(to: Out<u64>, count: Out<usize>, all: &[u64]) -> Result<(), Code> {
    count.check()?;
    if to.check().is_ok() {
        let room = count.get()?;
        for at in 0..room {
            to.put_at(at, all.get(at).copied().unwrap_or(0))?;
        }
        return count.put(room.min(all.len()));
    }
    count.put(all.len())
}

fn add(
    to: Out<u64>,
    graph: u64,
    (behind, count): (In<u64>, usize),
    work: Work,
) -> Result<(), Code> {
    to.check()?;
    to.put(graphs::add(graph, &list(behind, count)?, work)?)
}

fn kernel(parameters: In<KernelNodeParameters>) -> Result<Work, Code> {
    let wanted = parameters.get()?;
    let values = launch::pack(wanted.function, wanted.arguments, wanted.extra)?;
    Ok(Work::Kernel(KernelNode {
        function: wanted.function,
        grid: wanted.grid.all(),
        block: wanted.block.all(),
        shared_bytes: wanted.shared_bytes,
        values,
    }))
}

fn copy_box(parameters: In<Copy3d>) -> Result<Work, Code> {
    let (to, from, extent, direction) = copy_3d_of(parameters)?;
    Ok(Work::Copy {
        to,
        from,
        extent,
        direction,
    })
}

fn copy_row(to: u64, from: u64, bytes: usize, kind: c_int) -> Result<Work, Code> {
    let ((to, extent), (from, _)) = (row(to, bytes as u64), row(from, bytes as u64));
    Ok(Work::Copy {
        direction: direction(&to, &from, kind)?,
        to,
        from,
        extent,
    })
}

fn fill(parameters: In<MemsetNode>) -> Result<Work, Code> {
    let wanted = parameters.get()?;
    let width = wanted.element_bytes;
    if ![1, 2, 4].contains(&width) {
        return Err(Code::INVALID_VALUE);
    }
    if wanted.height > 1 && width != 1 {
        notice::unsupported("a memset node with rows of elements of several bytes");
        return Err(Code::NOT_SUPPORTED);
    }
    let (mut to, extent) = row(wanted.to, wanted.width as u64 * u64::from(width));
    to.row_bytes = wanted.pitch as u64;
    Ok(Work::Fill {
        to,
        extent: Extent {
            height: wanted.height as u64,
            ..extent
        },
        value: wanted.value,
        width: width as u8,
    })
}

fn host(parameters: In<HostNode>) -> Result<Work, Code> {
    let wanted = parameters.get()?;
    Ok(Work::Host {
        function: wanted.function.ok_or(Code::INVALID_VALUE)?,
        data: wanted.data,
    })
}

fn record(event: u64) -> Result<Work, Code> {
    events::check(event).map(|_| Work::Record(event))
}

fn wait(event: u64) -> Result<Work, Code> {
    events::check(event).map(|_| Work::Wait(event))
}

/// Replaces the work of a node.
fn set(node: u64, work: Work) -> Result<(), Code> {
    graphs::with_node(node, |nodes| nodes.set(node, work))
}

fn dependencies(node: u64) -> Result<Vec<u64>, Code> {
    let before = |nodes: &mut Nodes| {
        let to_node = nodes.edges().iter().filter(|(_, to)| *to == node);
        Ok(to_node.map(|(from, _)| *from).collect())
    };
    graphs::with_node(node, before)
}

fn dependents(node: u64) -> Result<Vec<u64>, Code> {
    let behind = |nodes: &mut Nodes| {
        let from_node = nodes.edges().iter().filter(|(from, _)| *from == node);
        Ok(from_node.map(|(_, to)| *to).collect())
    };
    graphs::with_node(node, behind)
}

fn edges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) -> Result<(), Code> {
    count.check()?;
    let all = graphs::with(graph, |nodes| Ok(nodes.edges().to_vec()))?;
    let (starts, ends): (Vec<u64>, Vec<u64>) = all.into_iter().unzip();
    if from.check().is_ok() {
        // Both calls of `put_list` read the room from `count`, and write to it.
        let room = count.get()?;
        put_list(from, count, &starts)?;
        count.put(room)?;
    }
    put_list(to, count, &ends)
}

fn depend(graph: u64, from: In<u64>, to: In<u64>, count: usize) -> Result<(), Code> {
    let new = pairs(from, to, count)?;
    graphs::with(graph, |nodes| nodes.depend(&new))
}

fn release(graph: u64, from: In<u64>, to: In<u64>, count: usize) -> Result<(), Code> {
    let removed = pairs(from, to, count)?;
    graphs::with(graph, |nodes| nodes.release(&removed))
}

runtime! {
    fn cudaGraphCreate(graph: Out<u64>, flags: c_uint) {
        graph.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        graph.put(graphs::create()?)
    }

    fn cudaGraphAddEmptyNode(node: Out<u64>, graph: u64, behind: In<u64>, count: usize) {
        add(node, graph, (behind, count), Work::Empty)
    }

    fn cudaGraphAddKernelNode(
        node: Out<u64>, graph: u64, behind: In<u64>, count: usize, parameters: In<KernelNodeParameters>
    ) {
        add(node, graph, (behind, count), kernel(parameters)?)
    }

    fn cudaGraphAddMemcpyNode(node: Out<u64>, graph: u64, behind: In<u64>, count: usize, parameters: In<Copy3d>) {
        add(node, graph, (behind, count), copy_box(parameters)?)
    }

    fn cudaGraphAddMemcpyNode1D(
        node: Out<u64>, graph: u64, behind: In<u64>, count: usize, to: u64, from: u64, bytes: usize, kind: c_int
    ) {
        add(node, graph, (behind, count), copy_row(to, from, bytes, kind)?)
    }

    fn cudaGraphAddMemsetNode(node: Out<u64>, graph: u64, behind: In<u64>, count: usize, parameters: In<MemsetNode>) {
        add(node, graph, (behind, count), fill(parameters)?)
    }

    fn cudaGraphAddHostNode(node: Out<u64>, graph: u64, behind: In<u64>, count: usize, parameters: In<HostNode>) {
        add(node, graph, (behind, count), host(parameters)?)
    }

    fn cudaGraphAddEventRecordNode(node: Out<u64>, graph: u64, behind: In<u64>, count: usize, event: u64) {
        add(node, graph, (behind, count), record(event)?)
    }

    fn cudaGraphAddEventWaitNode(node: Out<u64>, graph: u64, behind: In<u64>, count: usize, event: u64) {
        add(node, graph, (behind, count), wait(event)?)
    }

    fn cudaGraphAddChildGraphNode(node: Out<u64>, graph: u64, behind: In<u64>, count: usize, child: u64) {
        let nodes = graphs::with(child, |nodes| Ok(nodes.clone()))?;
        add(node, graph, (behind, count), Work::Child(nodes))
    }

    fn cudaGraphKernelNodeSetParams(node: u64, parameters: In<KernelNodeParameters>) {
        set(node, kernel(parameters)?)
    }

    fn cudaGraphMemcpyNodeSetParams(node: u64, parameters: In<Copy3d>) {
        set(node, copy_box(parameters)?)
    }

    fn cudaGraphMemcpyNodeSetParams1D(node: u64, to: u64, from: u64, bytes: usize, kind: c_int) {
        set(node, copy_row(to, from, bytes, kind)?)
    }

    fn cudaGraphMemsetNodeSetParams(node: u64, parameters: In<MemsetNode>) {
        set(node, fill(parameters)?)
    }

    fn cudaGraphHostNodeSetParams(node: u64, parameters: In<HostNode>) {
        set(node, host(parameters)?)
    }

    fn cudaGraphEventRecordNodeSetEvent(node: u64, event: u64) {
        set(node, record(event)?)
    }

    fn cudaGraphEventWaitNodeSetEvent(node: u64, event: u64) {
        set(node, wait(event)?)
    }

    fn cudaGraphExecKernelNodeSetParams(executable: u64, node: u64, parameters: In<KernelNodeParameters>) {
        graphs::set(executable, node, kernel(parameters)?)
    }

    fn cudaGraphExecMemcpyNodeSetParams(executable: u64, node: u64, parameters: In<Copy3d>) {
        graphs::set(executable, node, copy_box(parameters)?)
    }

    fn cudaGraphExecMemcpyNodeSetParams1D(
        executable: u64, node: u64, to: u64, from: u64, bytes: usize, kind: c_int
    ) {
        graphs::set(executable, node, copy_row(to, from, bytes, kind)?)
    }

    fn cudaGraphExecMemsetNodeSetParams(executable: u64, node: u64, parameters: In<MemsetNode>) {
        graphs::set(executable, node, fill(parameters)?)
    }

    fn cudaGraphExecHostNodeSetParams(executable: u64, node: u64, parameters: In<HostNode>) {
        graphs::set(executable, node, host(parameters)?)
    }

    fn cudaGraphExecEventRecordNodeSetEvent(executable: u64, node: u64, event: u64) {
        graphs::set(executable, node, record(event)?)
    }

    fn cudaGraphExecEventWaitNodeSetEvent(executable: u64, node: u64, event: u64) {
        graphs::set(executable, node, wait(event)?)
    }

    fn cudaGraphNodeGetType(node: u64, kind: Out<c_int>) {
        kind.check()?;
        kind.put(graphs::with_node(node, |nodes| Ok(nodes.work(node)?.kind()))?)
    }

    fn cudaGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        put_list(nodes, count, &graphs::with(graph, |nodes| Ok(nodes.roots()))?)
    }

    fn cudaGraphDestroyNode(node: u64) {
        graphs::remove(node)
    }

    fn cudaGraphClone(clone: Out<u64>, graph: u64) {
        clone.check()?;
        clone.put(graphs::copy(graph)?)
    }

    fn cudaGraphNodeFindInClone(node: Out<u64>, original: u64, clone: u64) {
        node.check()?;
        node.put(graphs::with(clone, |nodes| nodes.clone_of(original))?)
    }

    // Edges have no data here: all dependencies are full ones.
    fn cudaGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, _data: Address, count: usize) {
        depend(graph, from, to, count)
    }

    fn cudaGraphAddDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, _data: Address, count: usize) {
        depend(graph, from, to, count)
    }

    fn cudaGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, _data: Address, count: usize) {
        release(graph, from, to, count)
    }

    fn cudaGraphRemoveDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, _data: Address, count: usize) {
        release(graph, from, to, count)
    }

    fn cudaGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, _data: Address, count: Out<usize>) {
        edges(graph, from, to, count)
    }

    fn cudaGraphGetEdges_v2(graph: u64, from: Out<u64>, to: Out<u64>, _data: Address, count: Out<usize>) {
        edges(graph, from, to, count)
    }

    fn cudaGraphNodeGetDependencies(node: u64, all: Out<u64>, _data: Address, count: Out<usize>) {
        put_list(all, count, &dependencies(node)?)
    }

    fn cudaGraphNodeGetDependencies_v2(node: u64, all: Out<u64>, _data: Address, count: Out<usize>) {
        put_list(all, count, &dependencies(node)?)
    }

    fn cudaGraphNodeGetDependentNodes(node: u64, all: Out<u64>, _data: Address, count: Out<usize>) {
        put_list(all, count, &dependents(node)?)
    }

    fn cudaGraphNodeGetDependentNodes_v2(node: u64, all: Out<u64>, _data: Address, count: Out<usize>) {
        put_list(all, count, &dependents(node)?)
    }
}

/// The functions as CUDA 12 has them, without data of edges.
mod of_cuda_12 {
    use super::{depend, dependencies, dependents, edges, put_list, release};
    use crate::abi::{In, Out};
    use crate::runtime::runtime_12;

    runtime_12! {
        fn cudaGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
            depend(graph, from, to, count)
        }

        fn cudaGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
            release(graph, from, to, count)
        }

        fn cudaGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) {
            edges(graph, from, to, count)
        }

        fn cudaGraphNodeGetDependencies(node: u64, all: Out<u64>, count: Out<usize>) {
            put_list(all, count, &dependencies(node)?)
        }

        fn cudaGraphNodeGetDependentNodes(node: u64, all: Out<u64>, count: Out<usize>) {
            put_list(all, count, &dependents(node)?)
        }
    }
}
