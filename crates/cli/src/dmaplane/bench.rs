//! `dmaplane bench`.

use super::nodes;
use crate::args::DmaplaneBench;
use crate::output::{table, Output};
use crate::units;
use rgaps::Domain;
use rgaps_bench::Bar;
use rgaps_cuda::Driver;
use rgaps_dmaplane::{
    Access, BufferKind, Device, Error, FlowParams, NumaBenchParams, SustainedParams, SweepParams,
};
use serde::Serialize;
use std::io::{self, Write};

/// The port of the device that carries the streams.
const PORT: u32 = 1;
/// Points of a sweep: as many as its record has room for.
const POINTS: u32 = 32;
/// Bytes and number of GPU copies, through the BAR and by CUDA. The sizes are those of the tiers in the dmaplane paper. Reads through
/// the BAR are slow, so few are made.
const BAR_BYTES: u64 = 4 << 20;
const BAR_COPIES: u32 = 3;
const CUDA_BYTES: u64 = 16 << 20;
const CUDA_COPIES: usize = 20;

#[derive(Serialize)]
struct Report {
    copy_bytes: u64,
    copies: Vec<Copies>,
    /// Why nothing was streamed; `null` if it was.
    streams_left_out: Option<String>,
    device: Option<String>,
    stream: Option<Stream>,
    sweep: Option<Sweep>,
    /// Copies between the host and the first GPU; `null` without a GPU.
    gpu: Option<Gpu>,
}

/// Throughput of copies between the host and a GPU.
#[derive(Serialize)]
struct Gpu {
    gpu: String,
    /// Copies by the CPU through the BAR; `null` if they could not be measured.
    bar: Option<Bar>,
    /// Why `bar` is `null`.
    bar_left_out: Option<String>,
    /// Copies by CUDA.
    copies: Copied,
}

/// Medians of `cuMemcpy`.
#[derive(Serialize)]
struct Copied {
    bytes: u64,
    pinned_host_to_gpu_mb_per_s: f64,
    pinned_gpu_to_host_mb_per_s: f64,
    pageable_host_to_gpu_mb_per_s: f64,
    pageable_gpu_to_host_mb_per_s: f64,
}

/// Copies that processors of one node make to the memory of another.
#[derive(Serialize)]
struct Copies {
    from: usize,
    to: usize,
    mb_per_s: u64,
    copy_us: f64,
}

#[derive(Serialize)]
struct Stream {
    message_bytes: u32,
    depth: u32,
    seconds: u32,
    messages: u64,
    mb_per_s: u64,
    /// The slowest window of 1 s.
    window_mb_per_s_min: u64,
    window_mb_per_s_max: u64,
    /// How many messages waited for a credit.
    stalls: u64,
    overflows: u64,
}

#[derive(Serialize)]
struct Sweep {
    message_bytes: u32,
    messages: u32,
    /// The least depth with 95 % of the best throughput.
    saturation_depth: u32,
    points: Vec<Point>,
}

#[derive(Serialize)]
struct Point {
    depth: u32,
    mb_per_s: u64,
    mean_us: f64,
    p99_us: f64,
}

pub fn bench(arguments: &DmaplaneBench, output: &mut Output) -> anyhow::Result<()> {
    let device = Device::open()?;
    let copies = copies(&device, arguments)?;
    let mut report = Report {
        copy_bytes: arguments.copy.0,
        copies,
        streams_left_out: None,
        device: arguments.device.clone().or_else(first_device),
        stream: None,
        sweep: None,
        gpu: gpu(&device)?,
    };
    match &report.device {
        None => {
            report.streams_left_out = Some(
                "there is no RDMA device; 'rdma link add rxe0 type rxe netdev eth0' makes one of a network interface"
                    .to_owned(),
            );
        }
        Some(name) => {
            let message = message_bytes(arguments)?;
            let region = connect(&device, name, arguments, message)?;
            report.stream = Some(stream(&device, region, arguments, message)?);
            report.sweep = Some(sweep(&device, region, arguments, message)?);
            device.teardown_rdma()?;
        }
    }
    output.put(&report, |to| write_text(&report, to))
}

fn message_bytes(arguments: &DmaplaneBench) -> anyhow::Result<u32> {
    let bytes = arguments.message;
    let fits = u32::try_from(bytes.0).ok().filter(|bytes| *bytes > 0);
    fits.ok_or_else(|| {
        crate::exit::Usage(format!("--message {bytes}: it must be 1 byte to 4 GiB")).into()
    })
}

/// The system's RDMA device with the first name.
fn first_device() -> Option<String> {
    let listed = std::fs::read_dir("/sys/class/infiniband").ok()?;
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.min()
}

fn copies(device: &Device, arguments: &DmaplaneBench) -> Result<Vec<Copies>, Error> {
    let measured = device.numa_bench(NumaBenchParams {
        buffer_size: arguments.copy.0,
        iterations: arguments.copies,
        ..NumaBenchParams::default()
    })?;
    let nodes = nodes(&device.numa_topology()?);
    let numbers = || nodes.iter().map(|node| node.node);
    let pairs = numbers().flat_map(|from| numbers().map(move |to| (from, to)));
    let copies = pairs.map(|(from, to)| Copies {
        from,
        to,
        mb_per_s: measured.bw_mbps[from][to],
        copy_us: measured.lat_ns[from][to] as f64 / 1e3,
    });
    // A node without processors copies nothing.
    Ok(copies.filter(|copies| copies.mb_per_s > 0).collect())
}

/// Opens a context on the RDMA device, with a memory region that holds one message for each end.
fn connect(
    device: &Device,
    name: &str,
    arguments: &DmaplaneBench,
    message: u32,
) -> Result<u32, Error> {
    let depth = arguments.depth.max(POINTS);
    device.connect(name, PORT, 2 * depth, depth)?;
    if let Some(credits) = arguments.credits {
        let high = arguments.high.unwrap_or(credits);
        device.configure_flow(FlowParams {
            max_credits: credits,
            high_watermark: high,
            low_watermark: arguments.low.unwrap_or(high / 2),
            ..FlowParams::default()
        })?;
    }
    let buffer = device.buffer(BufferKind::Pages, 2 * u64::from(message), None)?;
    let access = Access {
        local_write: true,
        ..Access::default()
    };
    Ok(device.register(buffer.buf_id, access)?.mr_id)
}

/// The first GPU, if there is one.
fn gpu(device: &Device) -> anyhow::Result<Option<Gpu>> {
    let devices = Driver::load().and_then(|driver| driver.devices());
    let Some(first) = devices.ok().and_then(|found| found.into_iter().next()) else {
        return Ok(None);
    };
    let bar = rgaps_bench::bar(device, first.uuid, BAR_BYTES, BAR_COPIES);
    let domain = Domain::Cuda(first.uuid);
    let copies = rgaps_bench::copies(domain, &[CUDA_BYTES], CUDA_COPIES)?;
    let [took] = &copies.copies[..] else {
        anyhow::bail!("copies of one size were asked for");
    };
    let mb_per_s = |us: f64| CUDA_BYTES as f64 / us.max(1e-3);
    Ok(Some(Gpu {
        gpu: copies.gpu,
        bar_left_out: bar.as_ref().err().map(|error| format!("{error:#}")),
        bar: bar.ok(),
        copies: Copied {
            bytes: CUDA_BYTES,
            pinned_host_to_gpu_mb_per_s: mb_per_s(took.h2d_pinned_us),
            pinned_gpu_to_host_mb_per_s: mb_per_s(took.d2h_pinned_us),
            pageable_host_to_gpu_mb_per_s: mb_per_s(took.h2d_pageable_us),
            pageable_gpu_to_host_mb_per_s: mb_per_s(took.d2h_pageable_us),
        },
    }))
}

fn stream(
    device: &Device,
    region: u32,
    arguments: &DmaplaneBench,
    message: u32,
) -> Result<Stream, Error> {
    let found = device.sustained_stream(SustainedParams {
        mr_id: region,
        msg_size: message,
        queue_depth: arguments.depth,
        duration_secs: arguments.seconds,
        ..SustainedParams::default()
    })?;
    Ok(Stream {
        message_bytes: message,
        depth: arguments.depth,
        seconds: arguments.seconds,
        messages: found.total_ops,
        mb_per_s: found.avg_throughput_mbps,
        window_mb_per_s_min: found.min_window_mbps,
        window_mb_per_s_max: found.max_window_mbps,
        stalls: found.stall_count,
        overflows: found.cq_overflow_count,
    })
}

fn sweep(
    device: &Device,
    region: u32,
    arguments: &DmaplaneBench,
    message: u32,
) -> Result<Sweep, Error> {
    let deepest = arguments.depth.max(POINTS);
    let wanted = SweepParams {
        mr_id: region,
        msg_size: message,
        iterations: arguments.messages,
        min_qdepth: 1,
        max_qdepth: deepest,
        step: deepest.div_ceil(POINTS),
        ..SweepParams::default()
    };
    let found = device.qdepth_sweep(wanted)?;
    let points = (0..found.nr_points.min(POINTS) as usize).map(|at| Point {
        depth: wanted.min_qdepth + at as u32 * wanted.step,
        mb_per_s: found.throughput_mbps[at],
        mean_us: found.avg_latency_ns[at] as f64 / 1e3,
        p99_us: found.p99_latency_ns[at] as f64 / 1e3,
    });
    Ok(Sweep {
        message_bytes: message,
        messages: arguments.messages,
        saturation_depth: found.saturation_qdepth,
        points: points.collect(),
    })
}

fn write_text(report: &Report, to: &mut dyn Write) -> io::Result<()> {
    let copies = report.copies.iter().map(|copies| {
        vec![
            copies.from.to_string(),
            copies.to.to_string(),
            copies.mb_per_s.to_string(),
            units::micros(copies.copy_us),
        ]
    });
    let size = units::bytes(report.copy_bytes);
    writeln!(
        to,
        "copies of {size} by the processors of one node to the memory of another:"
    )?;
    let heads = ["FROM", "TO", "MB/S", "TIME"];
    table(to, &heads, &copies.collect::<Vec<_>>())?;
    if let Some(why) = &report.streams_left_out {
        writeln!(to, "\nstreams: left out: {why}")?;
    }
    let device = report.device.as_deref().unwrap_or_default();
    if let Some(stream) = &report.stream {
        writeln!(
            to,
            "\nstream on {device} for {} s, {} messages of {}, {} in flight:",
            stream.seconds,
            stream.messages,
            units::bytes(stream.message_bytes.into()),
            stream.depth
        )?;
        let row = [
            stream.mb_per_s,
            stream.window_mb_per_s_min,
            stream.window_mb_per_s_max,
            stream.stalls,
            stream.overflows,
        ];
        let heads = [
            "MB/S",
            "LEAST SECOND",
            "BEST SECOND",
            "WAITS FOR A CREDIT",
            "OVERFLOWS",
        ];
        table(to, &heads, &[row.iter().map(u64::to_string).collect()])?;
    }
    if let Some(sweep) = &report.sweep {
        write_sweep(sweep, device, to)?;
    }
    report.gpu.as_ref().map_or(Ok(()), |gpu| write_gpu(gpu, to))
}

fn write_sweep(sweep: &Sweep, device: &str, to: &mut dyn Write) -> io::Result<()> {
    writeln!(
        to,
        "\nsweep on {device}, {} messages of {} at each depth; saturated at {}:",
        sweep.messages,
        units::bytes(sweep.message_bytes.into()),
        sweep.saturation_depth
    )?;
    let rows = sweep.points.iter().map(|point| {
        vec![
            point.depth.to_string(),
            point.mb_per_s.to_string(),
            units::micros(point.mean_us),
            units::micros(point.p99_us),
        ]
    });
    table(
        to,
        &["DEPTH", "MB/S", "MEAN", "P99"],
        &rows.collect::<Vec<_>>(),
    )
}

fn write_gpu(gpu: &Gpu, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "\n{}:", gpu.gpu)?;
    let row = |how: &str, bytes: u64, to_gpu: f64, to_host: f64| {
        let rate = |mb_per_s: f64| format!("{mb_per_s:.0}");
        vec![
            how.to_owned(),
            units::bytes(bytes),
            rate(to_gpu),
            rate(to_host),
        ]
    };
    let Copied { bytes, .. } = gpu.copies;
    let mut rows = Vec::new();
    if let Some(bar) = &gpu.bar {
        let (to_gpu, to_host) = (bar.host_to_gpu_mb_per_s, bar.gpu_to_host_mb_per_s);
        rows.push(row(
            "CPU, by the BAR",
            bar.bytes,
            to_gpu as f64,
            to_host as f64,
        ));
    }
    let copies = &gpu.copies;
    rows.push(row(
        "CUDA, pinned",
        bytes,
        copies.pinned_host_to_gpu_mb_per_s,
        copies.pinned_gpu_to_host_mb_per_s,
    ));
    rows.push(row(
        "CUDA, pageable",
        bytes,
        copies.pageable_host_to_gpu_mb_per_s,
        copies.pageable_gpu_to_host_mb_per_s,
    ));
    table(
        to,
        &["COPY", "SIZE", "MB/S TO THE GPU", "TO THE HOST"],
        &rows,
    )?;
    if let Some(why) = &gpu.bar_left_out {
        writeln!(to, "by the BAR: left out: {why}")?;
    }
    Ok(())
}
