//! `dmaplane status`.

use super::{nodes, Node};
use crate::output::{table, Output};
use crate::units;
use rgaps_dmaplane::{Device, Error, GpuUnpinParams, Realm};
use rustix::io::Errno;
use serde::Serialize;

#[derive(Serialize)]
struct Status {
    nodes: Vec<Node>,
    /// Counts since the module was loaded, over all users.
    counts: Counts,
    /// Why `/dev/dmaplane-pool` cannot be used; `null` if it can.
    pools: Option<String>,
    /// Why GPUs cannot be used; `null` if they can.
    gpu: Option<String>,
}

#[derive(Serialize)]
struct Counts {
    buffers_created: u64,
    buffers_destroyed: u64,
    dmabufs_exported: u64,
    dmabufs_released: u64,
    mrs_registered: u64,
    mrs_deregistered: u64,
    rdma_bytes_sent: u64,
    rdma_errors: u64,
    credit_stalls: u64,
    cq_overflows: u64,
}

fn counts(device: &Device) -> Result<Counts, Error> {
    let buffers = device.buffer_stats()?;
    let dmabufs = device.dmabuf_stats()?;
    let rdma = device.rdma_stats()?;
    let flow = device.flow_stats()?;
    Ok(Counts {
        buffers_created: buffers.buffers_created,
        buffers_destroyed: buffers.buffers_destroyed,
        dmabufs_exported: dmabufs.dmabufs_exported,
        dmabufs_released: dmabufs.dmabufs_released,
        mrs_registered: rdma.mrs_registered,
        mrs_deregistered: rdma.mrs_deregistered,
        rdma_bytes_sent: rdma.bytes_sent,
        rdma_errors: rdma.completion_errors,
        credit_stalls: flow.credit_stalls,
        cq_overflows: flow.cq_overflows,
    })
}

fn why_not<T>(tried: Result<T, Error>) -> Option<String> {
    tried.err().map(|error| error.to_string())
}

/// Why the module reaches no GPU. None: it reaches GPUs. The module has no call for this question, so this function unpins a handle
/// that nobody has: the module answers `ENODEV` without GPUs, and another error with them.
fn gpu_lacks(device: &Device) -> Option<String> {
    let asked = device.gpu_unpin(GpuUnpinParams { handle: u32::MAX });
    let error = asked.err()?;
    let lacks = error.errno() == Some(Errno::NODEV.raw_os_error());
    lacks.then(|| error.to_string())
}

pub fn status(output: &mut Output) -> anyhow::Result<()> {
    let device = Device::open()?;
    let status = Status {
        nodes: nodes(&device.numa_topology()?),
        counts: counts(&device)?,
        pools: why_not(Realm::open()),
        gpu: gpu_lacks(&device),
    };
    output.put(&status, |to| {
        let cells = |node: &Node| {
            let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
            vec![
                node.node.to_string(),
                node.cpus.to_string(),
                units::bytes(node.memory_bytes),
                units::bytes(node.free_bytes),
                distances.join(" "),
            ]
        };
        let rows: Vec<_> = status.nodes.iter().map(cells).collect();
        table(to, &["NODE", "CPUS", "MEMORY", "FREE", "DISTANCES"], &rows)?;
        let counts = &status.counts;
        let row = |what: &str, made: u64, ended: u64| {
            vec![what.to_owned(), made.to_string(), ended.to_string()]
        };
        writeln!(to)?;
        let rows = [
            row("buffers", counts.buffers_created, counts.buffers_destroyed),
            row("dma-bufs", counts.dmabufs_exported, counts.dmabufs_released),
            row(
                "memory regions",
                counts.mrs_registered,
                counts.mrs_deregistered,
            ),
        ];
        table(to, &["SINCE LOADED", "MADE", "ENDED"], &rows)?;
        writeln!(
            to,
            "\nRDMA: {} sent, {} errors, {} waits for a credit, {} overflows",
            units::bytes(counts.rdma_bytes_sent),
            counts.rdma_errors,
            counts.credit_stalls,
            counts.cq_overflows
        )?;
        let usable = |why: &Option<String>| why.clone().unwrap_or_else(|| "can be used".to_owned());
        writeln!(to, "pools: {}", usable(&status.pools))?;
        writeln!(to, "GPU: {}", usable(&status.gpu))
    })
}
