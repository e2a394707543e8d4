//! Measures the costs of each provider of host memory on this machine, and prints one line of JSON for each: milliseconds to
//! make a segment of 64 MiB, to write all of it through a new mapping, to write it again, to write it through a second mapping
//! (as another process has one), and to discard it. With `numa_node`, the source asks for memory on that node (for memfd and
//! udmabuf by `mbind`) and verifies it. Each figure is the minimum of some rounds, since disturbances only add time.

use rgaps_pool::{
    Access, HostConfig, HostMapping, HostSource, Mapping, PoolError, Provider, SegmentSource,
};
use std::os::fd::AsFd;
use std::time::Instant;

/// The kernel's default limit for a dma-buf of udmabuf.
const BYTES: u64 = 64 << 20;
const ROUNDS: usize = 7;
const FIGURES: [&str; 5] = [
    "create",
    "write_new",
    "write_again",
    "write_second",
    "discard",
];

fn main() {
    let mut ways = vec![HostConfig {
        prefault: true,
        ..HostConfig::default()
    }];
    for provider in [Provider::Memfd, Provider::Udmabuf, Provider::Dmaplane] {
        for numa_node in [None, Some(0)] {
            ways.push(HostConfig {
                provider,
                numa_node,
                ..HostConfig::default()
            });
        }
    }
    for config in ways {
        let name = config.provider.name();
        let (prefault, node) = (config.prefault, config.numa_node);
        match least(config) {
            Ok(least) => {
                let figures: Vec<String> = FIGURES
                    .iter()
                    .zip(least)
                    .map(|(figure, ms)| format!(r#""{figure}_ms": {ms:.1}"#))
                    .collect();
                let node = node.map_or("null".to_owned(), |node| node.to_string());
                println!(
                    r#"{{"provider": "{name}", "prefault": {prefault}, "numa_node": {node}, {}}}"#,
                    figures.join(", ")
                );
            }
            Err(error) => println!("left out: {name}: {error}"),
        }
    }
}

fn least(config: HostConfig) -> Result<[f64; 5], PoolError> {
    let mut least = [f64::INFINITY; 5];
    for _ in 0..ROUNDS {
        for (least, took) in least.iter_mut().zip(round(config)?) {
            *least = least.min(took);
        }
    }
    Ok(least)
}

fn round(config: HostConfig) -> Result<[f64; 5], PoolError> {
    let bytes = vec![1u8; BYTES as usize];
    let mut source = HostSource::new(config);
    let (segment, create) = timed(|| source.create(BYTES));
    let segment = segment?;
    let (first, second) = (
        HostMapping::new(BYTES, Access::ReadWrite)?,
        HostMapping::new(BYTES, Access::ReadWrite)?,
    );
    for mapping in [&first, &second] {
        mapping.extend(segment.fd.as_fd(), BYTES)?;
    }
    let mut took = [create, 0.0, 0.0, 0.0, 0.0];
    for (mapping, took) in [&first, &first, &second].into_iter().zip(&mut took[1..]) {
        let (written, ms) = timed(|| mapping.write(0, &bytes));
        written?;
        *took = ms;
    }
    (_, took[4]) = timed(|| source.discard(&segment, 0, BYTES));
    Ok(took)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begun = Instant::now();
    let made = work();
    (made, begun.elapsed().as_secs_f64() * 1e3)
}
