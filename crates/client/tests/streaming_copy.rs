//! Streaming copies of large messages: subscribers on the host read parts of a copy before it is complete, and publishers
//! copy a loan to GPUs while it is still being filled. The test driver delays the work of streams.

use rgaps_client::links::LinksLoan;
use rgaps_client::{Domain, Node, RecvError, Sample, Stream, Subscriber};
use rgaps_cuda::{Context, CudaStream, Driver};
use rgaps_test_driver::TestDriver;
use rgaps_testkit::{content, Daemon};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

/// The GPU and the driver. A lock lets one test run at a time, since the driver's settings are those of the process.
struct Gpu {
    context: Arc<Context>,
    domain: Domain,
    driver: TestDriver,
    _turn: MutexGuard<'static, ()>,
}

fn gpu(settings: &str) -> Gpu {
    static TURN: Mutex<()> = Mutex::new(());
    static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let library = rgaps_test_driver::library();
    let loaded = DRIVER.get_or_init(|| {
        rgaps_testkit::driver::use_test_driver(&[]);
        Driver::load().unwrap()
    });
    let driver = TestDriver::loaded(&library);
    driver.configure(settings);
    let uuid = loaded.devices().unwrap()[0].uuid;
    Gpu {
        context: Context::retain(loaded.clone(), uuid).unwrap(),
        domain: Domain::Cuda(uuid),
        driver,
        _turn: turn,
    }
}

fn node() -> (Daemon, Node) {
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"1GiB\"\n");
    let node = daemon.node("test");
    (daemon, node)
}

fn payload(bytes: usize, seed: usize) -> Vec<u8> {
    content(seed as u64, bytes)
}

fn receive(subscriber: &Subscriber) -> Sample {
    subscriber.recv_timeout(SOON).unwrap()
}

fn bytes_of(sample: &Sample) -> Vec<u8> {
    let mut bytes = vec![0; sample.len() as usize];
    sample.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_said_to_be_there_of_a_copy_in_parts_is_there() {
    let (long, short) = (22 * MIB + 12_345, 4 * MIB);
    for (seed, bytes, part) in [
        (1, long, 4 * MIB),
        (2, short, MIB),
        (3, long, 4 * MIB),
        (4, short, MIB),
    ] {
        let gpu = gpu(&format!("delay_us=6000;seed={seed};fail="));
        let (_daemon, node) = node();
        let subscriber = node.subscriber("parts").domain(Domain::Host).create();
        let subscriber = subscriber.unwrap();
        let publisher = node.publisher("parts").domain(gpu.domain).create().unwrap();
        let expected = payload(bytes, seed);
        let stream = CudaStream::new(gpu.context.clone()).unwrap();
        let mut loan = publisher.loan(expected.len() as u64).unwrap();
        loan.write(0, &expected).unwrap();
        // The copy's block still has other bytes than those expected.
        let held = gpu.driver.hold(stream.handle().0);
        // SAFETY: `expected` outlives the copy: the loop below waits until the whole sample is there.
        unsafe {
            loan.copy_from_on(0, expected.as_ptr() as u64, 8, stream.handle())
                .unwrap()
        };
        loan.publish_on(stream.handle()).unwrap();
        let sample = receive(&subscriber);
        assert_eq!(
            sample.ready_bytes().unwrap(),
            0,
            "behind a stream that is held"
        );
        assert!(sample.ready_slice().unwrap().is_empty());
        let waited = sample.wait_bytes(1, Duration::from_millis(5));
        assert!(
            matches!(waited, Err(RecvError::Unfinished { .. })),
            "{waited:?}"
        );
        drop(held);
        let (mut last, mut seen) = (0, 0);
        let end = Instant::now() + SOON;
        while last < sample.len() {
            let ready = sample.wait_bytes(last + 1, SOON).unwrap();
            assert!(ready > last && Instant::now() < end);
            let there = sample.ready_slice().unwrap();
            assert!(there.len() as u64 >= ready);
            // Checks the new bytes each time. Several parts may arrive at once.
            let (from, to) = (last as usize, ready as usize);
            assert!(there[from..to] == expected[from..to], "{from} to {to}");
            assert!(ready == sample.len() || ready % part as u64 == 0);
            (last, seen) = (ready, seen + 1);
        }
        assert!(seen >= 1 && sample.is_ready().unwrap());
        assert!(sample.as_slice().unwrap() == expected);
    }
}

#[test]
fn a_loan_is_copied_while_it_is_filled_each_byte_once() {
    let gpu = gpu("delay_us=300;seed=3;fail=");
    let (_daemon, node) = node();
    let publisher = node.publisher("streaming").domain(Domain::Host).create();
    let publisher = publisher.unwrap();
    let subscribe = || {
        let subscriber = node.subscriber("streaming").domain(gpu.domain);
        subscriber.reliable().create().unwrap()
    };
    let copied = || gpu.driver.calls("cuMemcpyAsync");
    let mut subscribers: Vec<Subscriber> = Vec::new();
    // Round 0: nobody reads on a GPU. Round 1: subscribers join before the first chunk. Round 2: before the third.
    for (round, joins_at) in [(0, 99), (1, 0), (2, 2)] {
        let expected = payload(5 * MIB + 77, round);
        let mut loan = publisher.loan(expected.len() as u64).unwrap();
        let streaming = loan.begin_streaming_copy().unwrap();
        assert!(loan.begin_streaming_copy().unwrap().is_same(&streaming));
        if round == 2 {
            subscribers.clear();
        }
        // Chunks arrive in any order. The last one is not reported to the streaming copy.
        for (turn, chunk) in [3usize, 0, 5, 1, 2, 4].into_iter().enumerate() {
            if turn == joins_at {
                subscribers.push(subscribe());
                subscribers.push(subscribe());
            }
            let (from, to) = (chunk * MIB, ((chunk + 1) * MIB).min(expected.len()));
            loan.write(from as u64, &expected[from..to]).unwrap();
            let before = copied();
            if turn < 5 {
                streaming.arrived(from as u64, (to - from) as u64);
            }
            // One copy serves both subscribers. Without subscribers there is none.
            let one = u64::from(turn < 5 && !subscribers.is_empty());
            assert_eq!(copied() - before, one, "round {round}, chunk {chunk}");
        }
        // These ranges lie outside the loan.
        streaming.arrived(expected.len() as u64, 1);
        streaming.arrived(u64::MAX, 2);
        loan.publish().unwrap();
        for subscriber in &subscribers {
            assert!(bytes_of(&receive(subscriber)) == expected, "round {round}");
        }
        // This report comes after publishing, and does nothing.
        streaming.arrived(0, 10);
    }
    drop(subscribers);
}

#[test]
fn loans_that_are_dropped_with_copies_on_their_way_give_everything_back() {
    let gpu = gpu("delay_us=3000;seed=9;fail=");
    let (_daemon, node) = node();
    let subscriber = node.subscriber("dropped").domain(gpu.domain).create();
    let subscriber = subscriber.unwrap();
    let publisher = node
        .publisher("dropped")
        .domain(Domain::Host)
        .keep_last(1)
        .create()
        .unwrap();
    for round in 0..6usize {
        let expected = payload(2 * MIB, round);
        for seed in 0..2 {
            let mut dropped = publisher.loan(2 * MIB as u64).unwrap();
            dropped
                .write(0, &payload(2 * MIB, round + 100 + seed))
                .unwrap();
            let streaming = dropped.begin_streaming_copy().unwrap();
            streaming.arrived(0, MIB as u64);
            streaming.arrived(MIB as u64, MIB as u64);
            drop(dropped);
            streaming.arrived(0, MIB as u64);
        }
        let mut loan = publisher.loan(2 * MIB as u64).unwrap();
        loan.write(0, &expected).unwrap();
        let streaming = loan.begin_streaming_copy().unwrap();
        streaming.arrived(0, MIB as u64);
        // Overlapping ranges arrive where the links receive a chunk again.
        streaming.arrived(MIB as u64 / 2, MIB as u64);
        loan.publish().unwrap();
        let sample = receive(&subscriber);
        sample.wait_on(Stream(0)).unwrap();
        assert!(bytes_of(&sample) == expected, "round {round}");
    }
    drop(subscriber);
    // A small message replaces the large one in the history.
    let mut last = publisher.loan(1).unwrap();
    last.write(0, &[1]).unwrap();
    last.publish().unwrap();
    let end = Instant::now() + SOON;
    while publisher.used_bytes() > 256 {
        publisher.trim(u64::MAX).unwrap();
        assert!(Instant::now() < end, "{} bytes", publisher.used_bytes());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_copy_that_fails_while_a_loan_is_filled_is_made_when_it_is_published() {
    let gpu = gpu("delay_us=0;fail=");
    let (_daemon, node) = node();
    let subscriber = node.subscriber("failing").domain(gpu.domain).create();
    let subscriber = subscriber.unwrap();
    let publisher = node.publisher("failing").domain(Domain::Host).create();
    let publisher = publisher.unwrap();
    publisher.put(&[5; 100]).unwrap();
    assert_eq!(bytes_of(&receive(&subscriber)), [5; 100]);
    for nth in 1..=3 {
        gpu.driver.configure(&format!(
            "fail=cuMemcpyAsync:{nth}:CUDA_ERROR_INVALID_VALUE"
        ));
        let expected = payload(3 * MIB, nth);
        let mut loan = publisher.loan(3 * MIB as u64).unwrap();
        loan.write(0, &expected).unwrap();
        let streaming = loan.begin_streaming_copy().unwrap();
        for chunk in 0..2 {
            streaming.arrived(chunk * MIB as u64, MIB as u64);
        }
        loan.publish().unwrap();
        assert!(bytes_of(&receive(&subscriber)) == expected, "call {nth}");
    }
    gpu.driver.configure("fail=");
    drop(subscriber);
}

#[test]
fn a_loan_that_waits_for_memory_gets_what_later_ones_have_begun_with() {
    let gpu = gpu("delay_us=0;fail=");
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"8MiB\"\nsegment = \"2MiB\"\n");
    let node = daemon.node("test");
    let subscriber = node.subscriber("tight").domain(gpu.domain).create();
    let subscriber = subscriber.unwrap();
    let publisher = node
        .publisher("tight")
        .domain(Domain::Host)
        .keep_last(1)
        .loan_timeout(Duration::from_millis(20))
        .create()
        .unwrap();
    let large = 5 * MIB;
    let fill = |seed| {
        let mut loan = publisher.loan(large as u64).unwrap();
        loan.write(0, &payload(large, seed)).unwrap();
        loan
    };
    // The later loan's copy has the memory, but the first loan is published first.
    let first = fill(1);
    let mut second = fill(2);
    second
        .begin_streaming_copy()
        .unwrap()
        .arrived(0, large as u64);
    let mut first = Some(first);
    let end = Instant::now() + SOON;
    while let Some(loan) = first.take() {
        if let Err(failed) = loan.publish() {
            assert!(Instant::now() < end, "{}", failed.error);
            first = failed.loan.map(|loan| *loan);
            assert!(first.is_some(), "{}", failed.error);
        }
    }
    let sample = receive(&subscriber);
    assert!(bytes_of(&sample) == payload(large, 1));
    drop(sample);
    let mut second = Some(second);
    while let Some(loan) = second.take() {
        if let Err(failed) = loan.publish() {
            assert!(Instant::now() < end, "{}", failed.error);
            second = failed.loan.map(|loan| *loan);
        }
    }
    assert!(bytes_of(&receive(&subscriber)) == payload(large, 2));
    drop(subscriber);
    drop(publisher);
}

#[test]
fn a_loan_on_a_gpu_is_filled_on_the_host_and_copied_up_meanwhile_without_waiting() {
    let gpu = gpu("delay_us=2000;seed=4;fail=");
    let (_daemon, node) = node();
    let subscriber = node.subscriber("up").reliable().create().unwrap();
    let publisher = node.publisher("up").domain(gpu.domain).keep_last(1);
    let publisher = publisher.create().unwrap();
    let bytes = 3 * MIB + 5;
    // The first time, memory has to be allocated, which `stage(false)` does not do.
    assert!(!publisher.loan(bytes as u64).unwrap().stage(false).unwrap());
    assert!(publisher.loan(bytes as u64).unwrap().stage(true).unwrap());
    let registrations = gpu.driver.live("registrations");
    for round in 0..5 {
        let expected = payload(bytes, round);
        // A loan that is dropped gives its memory back, even while copies run.
        let mut dropped = publisher.loan(bytes as u64).unwrap();
        assert!(dropped.stage(false).unwrap());
        dropped
            .begin_streaming_copy()
            .unwrap()
            .arrived(0, bytes as u64);
        drop(dropped);
        let mut loan = publisher.loan(bytes as u64).unwrap();
        let end = Instant::now() + SOON;
        while !loan.stage(false).unwrap() {
            assert!(Instant::now() < end, "the memory does not come back");
        }
        let streaming = loan.begin_streaming_copy().unwrap();
        let filled = loan.filled().unwrap();
        assert_eq!(filled.len(), bytes);
        filled.copy_from_slice(&expected);
        filled[..100].fill(0xee);
        let copies = || gpu.driver.calls("cuMemcpyAsync");
        let waits = gpu.driver.calls("cuStreamSynchronize");
        let before = copies();
        streaming.arrived(MIB as u64, MIB as u64);
        streaming.arrived(0, MIB as u64);
        // The first 100 bytes arrive again, with other content.
        loan.filled().unwrap()[..100].copy_from_slice(&expected[..100]);
        streaming.arrived(0, 100);
        assert_eq!(copies() - before, 3);
        loan.publish().unwrap();
        // Publishing copied the bytes that were not reported.
        assert_eq!(copies() - before, 4);
        assert_eq!(gpu.driver.calls("cuStreamSynchronize"), waits);
        let sample = receive(&subscriber);
        sample.wait_on(Stream(0)).unwrap();
        assert_eq!(sample.domain(), gpu.domain);
        assert!(bytes_of(&sample) == expected, "round {round}");
    }
    assert_eq!(gpu.driver.live("registrations"), registrations);
    drop((subscriber, publisher));
    let end = Instant::now() + SOON;
    while gpu.driver.live("registrations") >= registrations {
        assert!(Instant::now() < end, "memory stays registered");
        std::thread::sleep(Duration::from_millis(5));
    }
}
