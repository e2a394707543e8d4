//! Subscribers that read in other domains than the messages live in, over a test driver with two GPUs,
//! or on a real machine with two with `RGAPS_TEST_GPU=1`.

#[allow(dead_code, reason = "every test program uses a part of it")]
mod support;

use rgaps::{Domain, Late, Node, Sample};
use rgaps_cuda::{Context, CudaStream, Driver};
use std::sync::Arc;
use std::time::Duration;
use support::Daemon;

const SOON: Duration = Duration::from_secs(20);

/// The GPUs. Streams of the test driver take their time, so that what is not waited for has not
/// happened.
fn gpus() -> Vec<(Arc<Context>, Domain)> {
    static DRIVER: std::sync::OnceLock<Arc<Driver>> = std::sync::OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        if std::env::var_os("RGAPS_TEST_GPU").is_none() {
            std::env::set_var("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
            std::env::set_var("RGAPS_TEST_DRIVER_DEVICES", "2");
            std::env::set_var("RGAPS_TEST_DRIVER_DELAY_US", "2000");
        }
        Driver::load().unwrap()
    });
    let devices = driver.devices().unwrap();
    devices
        .iter()
        .map(|device| {
            let context = Context::retain(driver.clone(), device.uuid).unwrap();
            (context, Domain::Cuda(device.uuid))
        })
        .collect()
}

fn node(settings: &str) -> (Daemon, Node) {
    let daemon = Daemon::start_with(&format!("[pool.cuda]\ncap = \"1GiB\"\n{settings}"));
    let node = daemon.node("test");
    (daemon, node)
}

fn bytes_of(sample: &Sample) -> Vec<u8> {
    let mut bytes = vec![0; sample.len() as usize];
    sample.read(0, &mut bytes).unwrap();
    bytes
}

fn payload(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed * 7) as u8).collect()
}

/// Publishes in `from` and reads in `to`, messages of many sizes.
fn travels(settings: &str, from: Domain, to: &[Domain]) {
    let (_daemon, node) = node(settings);
    let subscribers: Vec<_> = to
        .iter()
        .map(|domain| {
            node.subscriber("t")
                .reliable()
                .domain(*domain)
                .create()
                .unwrap()
        })
        .collect();
    let publisher = node
        .publisher("t")
        .domain(from)
        .keep_last(4)
        .create()
        .unwrap();
    for (seed, bytes) in [0, 1, 4096, (3 << 20) + 5, 9 << 20, 77]
        .into_iter()
        .enumerate()
    {
        let sent = payload(bytes, seed);
        publisher.put(&sent).unwrap();
        for (subscriber, domain) in subscribers.iter().zip(to) {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!(sample.domain(), *domain);
            assert_eq!(sample.len(), bytes as u64);
            assert!(
                bytes_of(&sample) == sent,
                "{bytes} bytes from {from} to {domain}"
            );
        }
    }
}

#[test]
fn messages_travel_between_all_domains() {
    let gpus = gpus();
    let mut domains: Vec<Domain> = gpus.iter().map(|(_, domain)| *domain).collect();
    domains.push(Domain::Host);
    for settings in ["", "peer = \"copy\"\n", "peer = \"map\"\n"] {
        for from in &domains {
            travels(settings, *from, &domains);
        }
    }
}

#[test]
fn a_copy_is_made_behind_the_work_that_writes_the_message() {
    let gpus = gpus();
    let (context, home) = &gpus[0];
    let (_daemon, node) = node("peer = \"copy\"\n");
    let away: Vec<_> = gpus[1..]
        .iter()
        .map(|(_, domain)| *domain)
        .chain([Domain::Host])
        .map(|domain| node.subscriber("w").domain(domain).create().unwrap())
        .collect();
    let publisher = node.publisher("w").domain(*home).create().unwrap();
    let stream = CudaStream::new(context.clone()).unwrap();
    for value in 1..20u8 {
        let loan = publisher.loan(1 << 20).unwrap();
        // SAFETY: the loan's bytes are ours until the work that was queued before publishing passed.
        unsafe { stream.fill(loan.address(), value, loan.len()).unwrap() };
        loan.publish_on(stream.handle()).unwrap();
        for subscriber in &away {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert!(bytes_of(&sample).iter().all(|byte| *byte == value));
        }
    }
}

#[test]
fn history_reaches_a_late_joiner_in_another_domain() {
    let gpus = gpus();
    let (_daemon, node) = node("");
    let publisher = node
        .publisher("late")
        .domain(gpus[0].1)
        .keep_last(3)
        .transient_local()
        .create()
        .unwrap();
    for seed in 0..3 {
        publisher.put(&payload(5000, seed)).unwrap();
    }
    for domain in gpus.iter().map(|(_, domain)| *domain).chain([Domain::Host]) {
        let subscriber = node
            .subscriber("late")
            .late(Late::AllKept)
            .domain(domain)
            .create()
            .unwrap();
        for seed in 0..3 {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!(sample.domain(), domain);
            assert!(bytes_of(&sample) == payload(5000, seed));
        }
    }
}
