//! The subscriber's process. Says what it found as JSON.

use crate::gpu::{node, Gpu, SOON};
use crate::plan::{Found, Scenario, Spec, AT_ONCE, TAG_IGNORED};
use anyhow::ensure;
use rgaps_pool::Mapping;

pub fn run(spec: &Spec) -> anyhow::Result<()> {
    let gpu = Gpu::open(spec.read_on)?;
    let node = node(spec, "races-subscriber")?;
    let counts = gpu.numbers(spec.messages)?;
    let reading = (0..AT_ONCE)
        .map(|_| gpu.stream())
        .collect::<Result<Vec<_>, _>>()?;
    let mut subscriber = node.subscriber(&spec.topic).reliable();
    if spec.across.is_some() {
        subscriber = subscriber.domain(gpu.domain);
    }
    let subscriber = subscriber.create()?;
    let mut received = 0;
    while received < spec.messages {
        let reading = &reading[received as usize % AT_ONCE];
        // So many samples are held at most.
        reading.synchronize()?;
        let stream = reading.handle();
        let sample = subscriber.recv_timeout(SOON)?;
        if sample.tag() == TAG_IGNORED {
            continue;
        }
        ensure!(
            sample.tag() == received && sample.len() == spec.words * 8,
            "message {} of {} bytes came in the place of {received}",
            sample.tag(),
            sample.len()
        );
        match (spec.scenario, spec.skip) {
            (Scenario::Publish, false) => sample.wait_on(stream)?,
            (Scenario::Publish | Scenario::Synchronize, true) => {}
            (Scenario::Synchronize, false) => sample.synchronize(SOON)?,
            (Scenario::Release, _) => {
                sample.synchronize(SOON)?;
                gpu.kernels.spin(stream, spec.kernel_ns)?;
            }
            (Scenario::Evict | Scenario::Discard, _) => {
                // The kernel that might still write here does so meanwhile.
                sample.wait_on(stream)?;
                gpu.kernels.spin(stream, spec.kernel_ns * 3 / 2)?;
            }
        }
        // SAFETY: the sample is held until this work has finished, but where the test leaves that
        // out to see it caught; its memory stays mapped either way. The count is ours.
        unsafe {
            gpu.kernels.check_pattern(
                stream,
                sample.address(),
                spec.words,
                spec.pattern(received),
                counts.base() + received * 8,
            )?;
        }
        match (spec.scenario, spec.skip) {
            (Scenario::Release, true) => drop(sample),
            _ => sample.release_on(stream),
        }
        received += 1;
    }
    for stream in &reading {
        stream.synchronize()?;
    }
    let mut bytes = vec![0; spec.messages as usize * 8];
    counts.read(0, &mut bytes)?;
    let mut found = Found {
        checked: received,
        ..Found::default()
    };
    for count in bytes.chunks_exact(8) {
        let count = u64::from_ne_bytes(count.try_into()?);
        found.wrong += u64::from(count > 0);
        found.wrong_words += count;
    }
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}
