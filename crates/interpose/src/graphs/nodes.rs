//! Graphs that the program makes of nodes. This process keeps them. A launch makes the calls of all nodes in one batch, on the stream of
//! the launch, in an order that their dependencies allow. The stream keeps that order, so the graph does what it does in CUDA; but nodes
//! that CUDA may run concurrently run one after the other.

use crate::callbacks::{self, Function, HostFunction};
use crate::handles::events;
use crate::launch::{self, Launch};
use crate::session;
use crate::transfer::{self, Direction, Order};
use rgaps_remoting::{Code, Extent, Pitched};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;

/// `cudaGraphNodeType`.
pub(crate) const KERNEL: i32 = 0;
pub(crate) const COPY: i32 = 1;
pub(crate) const FILL: i32 = 2;
pub(crate) const HOST: i32 = 3;
pub(crate) const CHILD: i32 = 4;
pub(crate) const EMPTY: i32 = 5;
pub(crate) const WAIT: i32 = 6;
pub(crate) const RECORD: i32 = 7;

#[derive(Clone)]
pub(crate) struct KernelNode {
    pub(crate) function: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    /// The values of all parameters, where the kernel expects them.
    pub(crate) values: Vec<u8>,
}

/// What a node does.
#[derive(Clone)]
pub(crate) enum Work {
    Empty,
    Kernel(KernelNode),
    Copy {
        to: Pitched,
        from: Pitched,
        extent: Extent,
        direction: Direction,
    },
    Fill {
        to: Pitched,
        extent: Extent,
        value: u32,
        width: u8,
    },
    Host {
        function: HostFunction,
        data: usize,
    },
    Record(u64),
    Wait(u64),
    Child(Nodes),
}

impl Work {
    /// Its `cudaGraphNodeType`.
    pub(crate) fn kind(&self) -> i32 {
        match self {
            Work::Kernel(_) => KERNEL,
            Work::Copy { .. } => COPY,
            Work::Fill { .. } => FILL,
            Work::Host { .. } => HOST,
            Work::Child(_) => CHILD,
            Work::Empty => EMPTY,
            Work::Wait(_) => WAIT,
            Work::Record(_) => RECORD,
        }
    }

    fn queue(&self, stream: u64) -> Result<(), Code> {
        match self {
            Work::Empty => Ok(()),
            Work::Kernel(kernel) => {
                let wanted = Launch {
                    grid: kernel.grid,
                    block: kernel.block,
                    shared_bytes: kernel.shared_bytes as usize,
                    stream,
                    cooperative: false,
                };
                launch::launch_packed(kernel.function, &wanted, &kernel.values)
            }
            Work::Copy {
                to,
                from,
                extent,
                direction,
            } => transfer::copy_rows(*to, *from, *extent, *direction, Order::queue(stream)),
            Work::Fill {
                to,
                extent,
                value,
                width,
            } => transfer::fill(*to, *extent, (*value, *width), stream),
            Work::Host { function, data } => {
                callbacks::queue(stream, Function::Host(*function), *data as *mut c_void)
            }
            Work::Record(event) => events::record(*event, stream, 0),
            Work::Wait(event) => events::wait(stream, *event, 0),
            Work::Child(nodes) => nodes.launch(stream),
        }
    }
}

/// The nodes of a graph, in the order in which they were added.
#[derive(Clone, Default)]
pub(crate) struct Nodes {
    all: Vec<(u64, Work)>,
    /// Dependencies: from a node, to the node that waits for it.
    edges: Vec<(u64, u64)>,
    /// In a clone: the clone of each node, by the handle of the original node.
    originals: HashMap<u64, u64>,
}

impl Nodes {
    /// Adds a node behind others.
    pub(crate) fn add(&mut self, behind: &[u64], work: Work) -> Result<u64, Code> {
        let unique: HashSet<u64> = behind.iter().copied().collect();
        if unique.len() != behind.len() || !behind.iter().all(|node| self.has(*node)) {
            return Err(Code::INVALID_VALUE);
        }
        let node = session::mint();
        self.all.push((node, work));
        self.edges.extend(behind.iter().map(|from| (*from, node)));
        Ok(node)
    }

    /// Whether a node is of this graph.
    pub(crate) fn has(&self, node: u64) -> bool {
        self.work(node).is_ok()
    }

    /// What a node does.
    pub(crate) fn work(&self, node: u64) -> Result<&Work, Code> {
        let found = self.all.iter().find(|(of, _)| *of == node);
        found.map(|(_, work)| work).ok_or(Code::INVALID_VALUE)
    }

    /// Replaces the work of a node by work of the same kind.
    pub(crate) fn set(&mut self, node: u64, work: Work) -> Result<(), Code> {
        let found = self.all.iter_mut().find(|(of, _)| *of == node);
        let (_, known) = found.ok_or(Code::INVALID_VALUE)?;
        if known.kind() != work.kind() {
            return Err(Code::INVALID_VALUE);
        }
        *known = work;
        Ok(())
    }

    /// Removes a node and its dependencies.
    pub(crate) fn remove(&mut self, node: u64) {
        self.all.retain(|(of, _)| *of != node);
        self.edges.retain(|(from, to)| *from != node && *to != node);
    }

    pub(crate) fn nodes(&self) -> Vec<u64> {
        self.all.iter().map(|(node, _)| *node).collect()
    }

    /// Nodes that depend on none.
    pub(crate) fn roots(&self) -> Vec<u64> {
        let is_root = |node: &u64| !self.edges.iter().any(|(_, to)| to == node);
        self.nodes().into_iter().filter(is_root).collect()
    }

    pub(crate) fn edges(&self) -> &[(u64, u64)] {
        &self.edges
    }

    /// Adds dependencies. Fails if the graph has one of them already, or would have a cycle.
    pub(crate) fn depend(&mut self, new: &[(u64, u64)]) -> Result<(), Code> {
        let are_known = new
            .iter()
            .all(|(from, to)| self.has(*from) && self.has(*to));
        if !are_known || new.iter().any(|edge| self.edges.contains(edge)) {
            return Err(Code::INVALID_VALUE);
        }
        let before = self.edges.len();
        self.edges.extend_from_slice(new);
        if self.order().is_none() {
            self.edges.truncate(before);
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }

    pub(crate) fn release(&mut self, removed: &[(u64, u64)]) -> Result<(), Code> {
        if !removed.iter().all(|edge| self.edges.contains(edge)) {
            return Err(Code::INVALID_VALUE);
        }
        self.edges.retain(|edge| !removed.contains(edge));
        Ok(())
    }

    /// Clones the nodes, under new handles.
    pub(crate) fn clone_nodes(&self) -> Nodes {
        let originals: HashMap<u64, u64> = self
            .all
            .iter()
            .map(|(node, _)| (*node, session::mint()))
            .collect();
        let new = |node: &u64| originals[node];
        Nodes {
            all: self
                .all
                .iter()
                .map(|(node, work)| (new(node), work.clone()))
                .collect(),
            edges: self
                .edges
                .iter()
                .map(|(from, to)| (new(from), new(to)))
                .collect(),
            originals,
        }
    }

    /// The clone of a node.
    pub(crate) fn clone_of(&self, original: u64) -> Result<u64, Code> {
        let found = self.originals.get(&original).copied();
        found
            .filter(|node| self.has(*node))
            .ok_or(Code::INVALID_VALUE)
    }

    /// Takes over the work of the nodes of another graph, if that has the same kinds of nodes and the same dependencies. Returns whether
    /// it has.
    pub(crate) fn update(&mut self, from: &Nodes) -> bool {
        let index = |of: &Nodes, node: u64| of.all.iter().position(|(other, _)| *other == node);
        let shape = |of: &Nodes| {
            let mut edges: Vec<_> = of
                .edges
                .iter()
                .map(|(from, to)| (index(of, *from), index(of, *to)))
                .collect();
            edges.sort();
            let kinds: Vec<i32> = of.all.iter().map(|(_, work)| work.kind()).collect();
            (kinds, edges)
        };
        let is_same_shape = shape(self) == shape(from);
        if is_same_shape {
            for (known, (_, work)) in self.all.iter_mut().zip(&from.all) {
                known.1 = work.clone();
            }
        }
        is_same_shape
    }

    /// A topological order of the nodes (Kahn's algorithm), as indices of `all`; `None` if there is a cycle.
    fn order(&self) -> Option<Vec<usize>> {
        let indices: HashMap<u64, usize> = self.nodes().into_iter().zip(0..).collect();
        let mut waits = vec![0; indices.len()];
        let mut next = vec![Vec::new(); indices.len()];
        for (from, to) in &self.edges {
            let (from, to) = (*indices.get(from)?, *indices.get(to)?);
            waits[to] += 1;
            next[from].push(to);
        }
        let mut ready: Vec<usize> = (0..waits.len())
            .rev()
            .filter(|at| waits[*at] == 0)
            .collect();
        let mut order = Vec::with_capacity(waits.len());
        while let Some(at) = ready.pop() {
            order.push(at);
            for to in &next[at] {
                waits[*to] -= 1;
                if waits[*to] == 0 {
                    ready.push(*to);
                }
            }
        }
        (order.len() == waits.len()).then_some(order)
    }

    /// Makes the calls of all nodes.
    fn launch(&self, stream: u64) -> Result<(), Code> {
        self.launch_in(&self.order().ok_or(Code::INVALID_VALUE)?, stream)
    }

    fn launch_in(&self, order: &[usize], stream: u64) -> Result<(), Code> {
        let mut all = order.iter().map(|at| &self.all[*at].1);
        all.try_for_each(|work| work.queue(stream))
    }
}

/// An executable graph: a copy of a graph's nodes, and the order in which a launch makes their calls.
#[derive(Clone)]
pub(crate) struct Executable {
    nodes: Nodes,
    order: Vec<usize>,
}

impl Executable {
    /// Makes an executable graph of the current nodes of a graph.
    pub(crate) fn of(nodes: &Nodes) -> Result<Executable, Code> {
        Ok(Executable {
            nodes: nodes.clone(),
            order: nodes.order().ok_or(Code::INVALID_VALUE)?,
        })
    }

    /// Replaces the work of a node by work of the same kind.
    pub(crate) fn set(&mut self, node: u64, work: Work) -> Result<(), Code> {
        self.nodes.set(node, work)
    }

    /// Takes over the work of the nodes of a graph, if that has the same kinds of nodes and the same dependencies. Returns whether it has.
    pub(crate) fn update(&mut self, from: &Nodes) -> bool {
        self.nodes.update(from)
    }

    /// Makes the calls of all nodes.
    pub(crate) fn launch(&self, stream: u64) -> Result<(), Code> {
        self.nodes.launch_in(&self.order, stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(value: u32) -> Work {
        let (to, extent) = rgaps_remoting::row(0, 8);
        Work::Fill {
            to,
            extent,
            value,
            width: 1,
        }
    }

    fn values(nodes: &Nodes) -> Vec<u32> {
        let value = |work: &Work| match work {
            Work::Fill { value, .. } => *value,
            _ => 0,
        };
        let order = nodes.order().unwrap();
        order.iter().map(|at| value(&nodes.all[*at].1)).collect()
    }

    #[test]
    fn nodes_come_behind_those_on_which_they_depend() {
        let mut nodes = Nodes::default();
        let last = nodes.add(&[], fill(4)).unwrap();
        let first = nodes.add(&[], fill(1)).unwrap();
        let left = nodes.add(&[first], fill(2)).unwrap();
        let right = nodes.add(&[first], fill(3)).unwrap();
        nodes.depend(&[(left, last), (right, last)]).unwrap();
        let order = values(&nodes);
        assert_eq!((order[0], order[3]), (1, 4));
        assert_eq!(nodes.roots(), [first]);
        // A cycle, a dependency that the graph has, and a node of another graph.
        for wrong in [(last, first), (left, last), (first, 77)] {
            assert!(nodes.depend(&[wrong]).is_err());
        }
        assert!(nodes.add(&[first, first], Work::Empty).is_err());
        nodes.remove(last);
        assert_eq!(nodes.edges().len(), 2);
        nodes.release(&[(first, left)]).unwrap();
        assert!(nodes.release(&[(first, left)]).is_err());
    }

    #[test]
    fn a_clone_has_nodes_of_its_own_and_an_update_needs_the_same_shape() {
        let mut nodes = Nodes::default();
        let one = nodes.add(&[], fill(1)).unwrap();
        let two = nodes.add(&[one], fill(2)).unwrap();
        let mut clone = nodes.clone_nodes();
        let its = clone.clone_of(one).unwrap();
        assert_ne!(its, one);
        clone.set(its, fill(9)).unwrap();
        assert!(clone.set(its, Work::Empty).is_err());
        assert_eq!((values(&nodes), values(&clone)), (vec![1, 2], vec![9, 2]));
        assert!(nodes.update(&clone));
        assert_eq!(values(&nodes), [9, 2]);
        clone
            .release(&[(its, clone.clone_of(two).unwrap())])
            .unwrap();
        assert!(!nodes.update(&clone));
    }
}
