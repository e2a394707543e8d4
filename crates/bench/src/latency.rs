//! `bench latency`: how long a message takes from the publish call until a subscriber has it.

use crate::copied::{copied, Copied};
use crate::enqueue::{enqueue, Enqueue};
use crate::exchange::{self, ExchangePlan, Wait};
use crate::gpu::{is_under_mps, Gpu};
use crate::machine::Machine;
use crate::stage::Stage;
use crate::summary::{round, Micros, Short};
use rgaps::{Config, Domain, GpuUuid};
use serde::Serialize;

/// What `bench latency` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Latency {
    pub domain: String,
    pub size: u64,
    pub subscribers: usize,
    pub wait: Wait,
    /// How long the publisher slept before each message and each hop.
    pub pause_us: u64,
    #[serde(flatten)]
    pub latency: Micros,
    /// Messages timed, by each subscriber.
    pub messages: usize,
    pub lost: u64,
    pub corrupt: u64,
    /// Latency of each round's first message, right after filling and verifying evicted the caches. Not part of `latency`.
    pub first: Short,
    pub floor: Short,
    /// How long the publish call took.
    pub publish: Short,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<WithHeader>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<OnGpu>,
    pub machine: Machine,
}

/// Figures of messages with a header, measured in turns with those without.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct WithHeader {
    pub header_bytes: usize,
    /// From the publish call until the subscriber has read the header.
    #[serde(flatten)]
    pub latency: Micros,
    pub messages: usize,
    /// How long it took to set the header and to publish.
    pub publish: Short,
    /// The medians with a header, as multiples of those without.
    pub ratio: f64,
    pub publish_ratio: f64,
}

/// Figures of messages in GPU memory.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct OnGpu {
    /// This process was a client of MPS.
    pub mps: bool,
    /// Messages published on the stream that wrote them, when all work on it is done.
    pub idle_stream: IdleStream,
    /// Messages published on that stream with a kernel in flight.
    pub in_flight: InFlight,
    pub enqueue: Enqueue,
    /// The bytes copied through pinned host memory, to one subscriber.
    pub copied: Copied,
}

/// Latency between CPUs when rgaps must ask the driver whether the stream has work to wait for.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct IdleStream {
    #[serde(flatten)]
    pub latency: Micros,
    pub messages: usize,
    pub publish: Short,
}

/// Latency between CPUs while the GPU works on the publisher's stream.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct InFlight {
    pub kernel_us: u64,
    #[serde(flatten)]
    pub latency: Micros,
    pub messages: usize,
    pub publish: Short,
    /// The floor with such a kernel in flight as well.
    pub floor: Short,
    /// How much the medians of the latency and of the publish call exceed those with an idle stream.
    pub grew_us: f64,
    pub publish_grew_us: f64,
}

/// Most messages that are timed with a kernel in flight: each takes as long as the kernel.
const IN_FLIGHT_MAX: usize = 2000;

/// What `bench latency` measures.
pub struct LatencyOptions {
    /// Where the messages are published.
    pub domain: Domain,
    /// Bytes of a message.
    pub size: u64,
    /// Subscribers, each a process.
    pub subscribers: usize,
    /// Messages that are timed.
    pub messages: usize,
    /// How subscribers wait.
    pub wait: Wait,
    /// On a GPU: also with a kernel of this duration in flight.
    pub kernel_us: u64,
    /// How long the publisher sleeps before each message.
    pub pause_us: u64,
    /// Bytes of the header of as many messages more, in turns with the others; 0: there are none.
    pub header_bytes: usize,
}

/// Measures the latency of messages.
pub fn latency(user: &Config, options: &LatencyOptions) -> anyhow::Result<Latency> {
    let LatencyOptions {
        domain,
        size,
        subscribers,
        messages,
        wait,
        kernel_us,
        pause_us,
        header_bytes,
    } = *options;
    let machine = Machine::describe();
    let stage = Stage::new(user, domain)?;
    let plan = ExchangePlan {
        size,
        messages,
        wait,
        subscribers,
        domain,
        kernel_ns: 0,
        pause_ns: pause_us * 1000,
        on_stream: false,
        header_bytes,
    };
    let outcome = exchange::run(&stage, "bench/latency", &plan)?;
    let (mut lost, mut corrupt) = (outcome.lost, outcome.corrupt);
    let latency = Micros::of(outcome.messages.concat());
    let publish = Micros::of(outcome.publish.clone()).short();
    let header = (header_bytes > 0)
        .then(|| with_header(header_bytes, outcome.header, latency.p50_us, publish.p50_us));
    let gpu = match domain {
        Domain::Cuda(uuid) if size > 0 && size % 8 == 0 => {
            let (report, losses) = on_gpu(&stage, uuid, &plan, kernel_us)?;
            lost += losses.0;
            corrupt += losses.1;
            Some(report)
        }
        _ => None,
    };
    Ok(Latency {
        domain: domain.to_string(),
        size,
        subscribers,
        wait,
        pause_us,
        messages: outcome.publish.len(),
        latency,
        publish,
        header,
        gpu,
        lost,
        corrupt,
        first: Micros::of(outcome.first).short(),
        floor: Micros::of(outcome.floor).short(),
        machine,
    })
}

/// Measures messages that are published on a stream of a GPU. Also returns how many were lost, and how many corrupt.
fn on_gpu(
    stage: &Stage,
    uuid: GpuUuid,
    plan: &ExchangePlan,
    kernel_us: u64,
) -> anyhow::Result<(OnGpu, (u64, u64))> {
    let idle = ExchangePlan {
        on_stream: true,
        header_bytes: 0,
        ..plan.clone()
    };
    let busy = ExchangePlan {
        kernel_ns: kernel_us * 1000,
        messages: plan.messages.min(IN_FLIGHT_MAX),
        ..idle.clone()
    };
    let without = exchange::run(stage, "bench/latency/idle-stream", &idle)?;
    let with = exchange::run(stage, "bench/latency/in-flight", &busy)?;
    let lost = without.lost + with.lost;
    let corrupt = without.corrupt + with.corrupt;
    let idle_stream = IdleStream {
        latency: Micros::of(without.messages.concat()),
        messages: without.publish.len(),
        publish: Micros::of(without.publish).short(),
    };
    let in_flight = in_flight(kernel_us, with, &idle_stream);
    let gpu = Gpu::open(uuid)?;
    let enqueue = enqueue(&gpu)?;
    let copied = copied(stage, uuid, idle.size, idle.messages, idle.wait)?;
    let corrupt = corrupt + copied.corrupt;
    let report = OnGpu {
        mps: is_under_mps(),
        idle_stream,
        in_flight,
        enqueue,
        copied,
    };
    Ok((report, (lost, corrupt)))
}

fn with_header(
    header_bytes: usize,
    times: exchange::WithHeader,
    latency_p50_us: f64,
    publish_p50_us: f64,
) -> WithHeader {
    let messages = times.publish.len();
    let latency = Micros::of(times.messages);
    let publish = Micros::of(times.publish).short();
    WithHeader {
        header_bytes,
        latency,
        messages,
        publish,
        ratio: round(latency.p50_us / latency_p50_us, 3),
        publish_ratio: round(publish.p50_us / publish_p50_us, 3),
    }
}

fn in_flight(kernel_us: u64, outcome: exchange::Outcome, idle: &IdleStream) -> InFlight {
    let latency = Micros::of(outcome.messages.concat());
    let messages = outcome.publish.len();
    let with = Micros::of(outcome.publish).short();
    InFlight {
        kernel_us,
        messages,
        latency,
        publish: with,
        floor: Micros::of(outcome.floor).short(),
        grew_us: round(latency.p50_us - idle.latency.p50_us, 3),
        publish_grew_us: round(with.p50_us - idle.publish.p50_us, 3),
    }
}
