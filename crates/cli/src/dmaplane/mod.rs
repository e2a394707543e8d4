//! `dmaplane`: shows what the kernel module sees, and runs its measurements.

mod bench;
mod status;

use crate::args::Dmaplane;
use crate::output::Output;
use rgaps_dmaplane::NumaTopo;
use serde::Serialize;

pub fn dmaplane(command: &Dmaplane, output: &mut Output) -> anyhow::Result<()> {
    match command {
        Dmaplane::Status => status::status(output),
        Dmaplane::Bench(arguments) => bench::bench(arguments, output),
    }
}

/// A NUMA node.
#[derive(Serialize)]
struct Node {
    node: usize,
    cpus: u32,
    memory_bytes: u64,
    free_bytes: u64,
    /// Distances to each node, as ACPI's SLIT has them: 10 is the node itself.
    distances: Vec<u32>,
}

/// The nodes that are online.
fn nodes(topology: &NumaTopo) -> Vec<Node> {
    let online: Vec<usize> = (0..topology.node_online.len())
        .filter(|node| topology.node_online[*node] != 0)
        .collect();
    let node = |node: &usize| Node {
        node: *node,
        cpus: topology.node_cpu_count[*node],
        memory_bytes: topology.node_mem_total_kb[*node].saturating_mul(1024),
        free_bytes: topology.node_mem_free_kb[*node].saturating_mul(1024),
        distances: online
            .iter()
            .map(|other| topology.distances[*node][*other])
            .collect(),
    };
    online.iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_that_are_online_are_listed() {
        let mut topology = NumaTopo::default();
        for (node, other) in [(0, 2), (2, 0)] {
            topology.node_online[node] = 1;
            topology.node_mem_total_kb[node] = 4;
            topology.distances[node][node] = 10;
            topology.distances[node][other] = 21;
        }
        let nodes = nodes(&topology);
        assert_eq!(nodes.len(), 2);
        assert_eq!((nodes[1].node, nodes[1].memory_bytes), (2, 4096));
        assert_eq!(nodes[1].distances, [21, 10]);
    }
}
