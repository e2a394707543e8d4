//! The publisher's process.

use crate::gpu::{node, Gpu, SOON};
use crate::plan::{Scenario, Spec, AT_ONCE, TAG_IGNORED};
use anyhow::ensure;
use rgaps::{Loan, Stream};
use std::io::Read;

pub fn run(spec: &Spec) -> anyhow::Result<()> {
    let gpu = Gpu::open(spec.gpu)?;
    let node = node(spec, "races-publisher")?;
    let publisher = node
        .publisher(&spec.topic)
        .domain(gpu.domain)
        .keep_last(spec.scenario.history())
        .deadline(SOON)
        .loan_timeout(SOON)
        .create()?;
    ensure!(
        publisher.wait_for_subscribers(1, SOON)?,
        "no subscriber came"
    );
    let slow = (0..AT_ONCE)
        .map(|_| gpu.stream())
        .collect::<Result<Vec<_>, _>>()?;
    let (fast, idle) = (gpu.stream()?, gpu.stream()?);
    let (fast_stream, idle_stream) = (fast.handle(), idle.handle());
    let loan = || -> anyhow::Result<Loan> { Ok(publisher.loan(spec.words * 8)?) };
    let fill = |loan: &Loan, stream: Stream, seed: u64| {
        // SAFETY: the loan is ours until it is published or given back behind this work, or until
        // the test leaves that out to see it caught; its memory stays mapped either way.
        unsafe {
            gpu.kernels
                .fill_pattern(stream, loan.address(), spec.words, seed)
        }
    };
    let fill_slowly = |loan: &Loan, stream: Stream, seed: u64| {
        // SAFETY: as above.
        unsafe {
            gpu.kernels
                .spin_fill(stream, loan.address(), spec.words, seed, spec.kernel_ns)
        }
    };
    for message in 0..spec.messages {
        let slow = slow[message as usize % AT_ONCE].handle();
        // What the library is told of where the slow work is.
        let told = if spec.skip { idle_stream } else { slow };
        let mut next = match spec.scenario {
            Scenario::Publish | Scenario::Synchronize => {
                let mut next = loan()?;
                fill_slowly(&next, slow, spec.pattern(message))?;
                next.set_tag(message);
                next.publish_on(slow)?;
                continue;
            }
            Scenario::Release => loan()?,
            Scenario::Evict => {
                let mut evicted = loan()?;
                fill_slowly(&evicted, slow, spec.rubbish(message))?;
                evicted.set_tag(TAG_IGNORED);
                evicted.publish_on(told)?;
                // The first pushes it out, and the second gets its place if it is free.
                let mut first = loan()?;
                fill(&first, fast_stream, spec.rubbish(message))?;
                first.set_tag(TAG_IGNORED);
                first.publish_on(fast_stream)?;
                loan()?
            }
            Scenario::Discard => {
                let discarded = loan()?;
                fill_slowly(&discarded, slow, spec.rubbish(message))?;
                discarded.discard_on(told);
                loan()?
            }
        };
        fill(&next, fast_stream, spec.pattern(message))?;
        next.set_tag(message);
        next.publish_on(fast_stream)?;
    }
    for stream in slow.iter().chain([&fast, &idle]) {
        stream.synchronize()?;
    }
    // The supervisor ends the input when the subscriber has all messages.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
