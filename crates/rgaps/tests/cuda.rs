//! The CUDA domain, over the test driver, or on a real GPU with `RGAPS_TEST_GPU=1`.

use rgaps::{DType, Domain, Header, Node, PartSpec, Stream};
use rgaps_cuda::{Context, CudaStream, Driver};
use rgaps_testkit::Daemon;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);

struct Gpu {
    context: Arc<Context>,
    domain: Domain,
}

/// The first GPU. The test driver delays the work of streams, so a test that misses a wait finds the work unfinished.
fn gpu() -> Gpu {
    static DRIVER: std::sync::OnceLock<Arc<Driver>> = std::sync::OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        if !rgaps_testkit::driver::is_real() {
            rgaps_testkit::driver::use_test_driver(&[("DELAY_US", "3000")]);
        }
        Driver::load().unwrap()
    });
    let uuid = driver.devices().unwrap()[0].uuid;
    let context = Context::retain(driver.clone(), uuid).unwrap();
    Gpu {
        context,
        domain: Domain::Cuda(uuid),
    }
}

fn node() -> (Daemon, Node) {
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"1GiB\"\n");
    let node = daemon.node("test");
    (daemon, node)
}

fn bytes_of(sample: &rgaps::Sample) -> Vec<u8> {
    let mut bytes = vec![0; sample.len() as usize];
    sample.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn messages_in_gpu_memory_arrive_intact() {
    let gpu = gpu();
    let (_daemon, node) = node();
    let subscriber = node.subscriber("gpu").reliable().create().unwrap();
    let publisher = node
        .publisher("gpu")
        .domain(gpu.domain)
        .keep_last(2)
        .create()
        .unwrap();
    for bytes in [0usize, 1, 4096, (3 << 20) + 5] {
        let payload: Vec<u8> = (0..bytes).map(|at| (at * 31 + bytes) as u8).collect();
        publisher.put(&payload).unwrap();
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert_eq!(sample.domain(), gpu.domain);
        assert!(sample.as_slice().is_err(), "no host bytes");
        assert!(bytes_of(&sample) == payload, "{bytes} bytes");
    }
}

#[test]
fn publishing_on_a_stream_waits_for_its_work() {
    let gpu = gpu();
    let (_daemon, node) = node();
    let subscriber = node.subscriber("stream").create().unwrap();
    let publisher = node
        .publisher("stream")
        .domain(gpu.domain)
        .create()
        .unwrap();
    let stream = CudaStream::new(gpu.context.clone()).unwrap();
    for value in 1..20u8 {
        let loan = publisher.loan(8 << 20).unwrap();
        // SAFETY: we hold the loan, so nobody else uses its bytes; `publish_on` orders readers behind this work.
        unsafe { stream.fill(loan.address(), value, loan.len()).unwrap() };
        loan.publish_on(stream.handle()).unwrap();
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert!(bytes_of(&sample).iter().all(|byte| *byte == value));
        sample.release_on(stream.handle());
    }
}

#[test]
fn a_released_block_is_not_reused_under_its_readers_work() {
    let gpu = gpu();
    let (_daemon, node) = node();
    let subscriber = node.subscriber("release").create().unwrap();
    let publisher = node
        .publisher("release")
        .domain(gpu.domain)
        .keep_last(1)
        .create()
        .unwrap();
    let stream = CudaStream::new(gpu.context.clone()).unwrap();
    let copies = node
        .publisher("copies")
        .domain(gpu.domain)
        .create()
        .unwrap();
    for value in 1..10u8 {
        publisher.put(&vec![value; 1 << 20]).unwrap();
        let sample = subscriber.recv_timeout(SOON).unwrap();
        let copy = copies.loan(sample.len()).unwrap();
        // SAFETY: `copy` and `sample` hold both ranges, and `publish_on` and `release_on` keep them until the stream's work
        // has finished.
        unsafe {
            stream
                .copy(copy.address(), sample.address(), sample.len())
                .unwrap()
        };
        sample.release_on(stream.handle());
        // The publisher would reuse the block here if it did not wait for the stream's work.
        publisher.put(&vec![0xff; 1 << 20]).unwrap();
        drop(subscriber.recv_timeout(SOON).unwrap());
        let listener = node.subscriber("copies").create().unwrap();
        copy.publish_on(stream.handle()).unwrap();
        let copied = bytes_of(&listener.recv_timeout(SOON).unwrap());
        assert!(
            copied.iter().all(|byte| *byte == value),
            "{value} became {}",
            copied[0]
        );
    }
}

#[test]
fn a_stream_that_is_none_is_an_error_and_keeps_the_loan() {
    let gpu = gpu();
    let (_daemon, node) = node();
    let publisher = node.publisher("bad").domain(gpu.domain).create().unwrap();
    let unpublished = publisher
        .loan(64)
        .unwrap()
        .publish_on(Stream(0x10))
        .unwrap_err();
    assert!(
        unpublished.error.to_string().contains("CUDA_ERROR"),
        "{unpublished}"
    );
    unpublished.loan.unwrap().publish().unwrap();
}

#[test]
fn a_gpu_that_is_not_there_and_a_domain_that_differs_are_clear_errors() {
    let gpu = gpu();
    let (_daemon, node) = node();
    let nowhere = Domain::Cuda(rgaps::GpuUuid([7; 16]));
    let error = node
        .publisher("gone")
        .domain(nowhere)
        .create()
        .unwrap_err()
        .to_string();
    assert!(error.contains("GPU-07070707"), "{error}");
    let _publisher = node.publisher("there").domain(gpu.domain).create().unwrap();
    let error = node
        .publisher("there")
        .domain(Domain::Host)
        .create()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("there") && error.contains("cuda:GPU-"),
        "{error}"
    );
}

#[test]
fn parts_and_headers_of_a_message_on_a_gpu_arrive_there_and_as_a_copy_on_the_host() {
    let gpu = gpu();
    let (_daemon, node) = node();
    let there = node.subscriber("gpu").create().unwrap();
    let publisher = node.publisher("gpu").domain(gpu.domain).create().unwrap();
    let copied = node
        .subscriber("gpu")
        .domain(Domain::Host)
        .create()
        .unwrap();
    assert!(publisher.wait_for_subscribers(2, SOON).unwrap());
    let specs = [
        PartSpec {
            name: "a",
            dtype: DType::U8,
            shape: &[3],
        },
        PartSpec {
            name: "b",
            dtype: DType::U8,
            shape: &[4],
        },
    ];
    let mut loan = publisher.loan_parts(&specs).unwrap();
    let at = loan.part("b").unwrap().offset();
    loan.write(0, b"one").unwrap();
    loan.write(at, b"four").unwrap();
    assert!(loan.part_mut("a").is_err());
    loan.set_header(&Header::default().frame_id("gpu")).unwrap();
    loan.publish_on(Stream(0)).unwrap();
    let sample = there.recv_timeout(SOON).unwrap();
    assert_eq!(sample.domain(), gpu.domain);
    let part = sample.part("b").unwrap();
    let mut bytes = [0; 4];
    sample.read(part.offset(), &mut bytes).unwrap();
    assert_eq!(&bytes, b"four");
    let sample = copied.recv_timeout(SOON).unwrap();
    assert_eq!(sample.domain(), Domain::Host);
    assert_eq!(sample.part_slice("a").unwrap(), b"one");
    assert_eq!(sample.part_slice("b").unwrap(), b"four");
    let header = sample.header().unwrap().unwrap();
    assert_eq!(header.frame_id.as_deref(), Some("gpu"));
}
