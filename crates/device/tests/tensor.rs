//! Kernels of ours that publish and receive ranges of GPU memory, on the test driver, which interprets them, or with
//! `RGAPS_TEST_GPU=1` on a GPU.

use rgaps_cuda::{Context, CudaStream, DeviceBuffer, Driver, LIBRARY_ENV};
use rgaps_device::{
    DeviceError, DeviceTopic, Geometry, Outcome, TensorPublisher, TensorSubscriber,
};
use rgaps_layout::Domain;
use std::sync::{Arc, OnceLock};

/// More ticks than a message takes on any machine.
const SOON: u64 = 1 << 40;
const SIZES: Geometry = Geometry {
    depth: 4,
    blocks: 6,
    block_bytes: 20000,
};

fn context() -> Arc<Context> {
    static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        if std::env::var_os("RGAPS_TEST_GPU").is_none() {
            std::env::set_var(LIBRARY_ENV, rgaps_test_driver::library());
        }
        Driver::load().unwrap()
    });
    let uuid = driver.devices().unwrap()[0].uuid;
    Context::retain(driver.clone(), uuid).unwrap()
}

fn topic(context: &Context) -> Arc<DeviceTopic> {
    let domain = Domain::Cuda(context.device().uuid);
    Arc::new(DeviceTopic::create(domain, SIZES).unwrap())
}

fn buffer(context: &Arc<Context>, bytes: &[u8]) -> DeviceBuffer {
    // SAFETY: `bytes` is borrowed until this function returns; `copy_of` returns after the copy.
    unsafe {
        DeviceBuffer::copy_of(context.clone(), bytes.as_ptr() as u64, bytes.len() as u64).unwrap()
    }
}

fn payload(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed * 7) as u8).collect()
}

#[test]
fn what_one_kernel_publishes_another_receives() {
    let context = context();
    let topic = topic(&context);
    let publisher = TensorPublisher::new(topic.clone()).unwrap();
    let subscriber = TensorSubscriber::new(topic.clone(), true, true).unwrap();
    let stream = CudaStream::new(context.clone()).unwrap();
    let target = buffer(&context, &[0; 20000]);
    // With all alignments of the last bytes, and with few threads and many.
    for (round, bytes) in [8, 4096, 0, 1, 17, 20000, 12345].into_iter().enumerate() {
        let wanted = payload(round, bytes);
        let source = buffer(&context, &wanted);
        // SAFETY: both buffers live until the stream is synchronized.
        unsafe {
            let length = bytes as u64;
            publisher
                .publish(source.address(), length, SOON, stream.handle())
                .unwrap();
            subscriber
                .receive(target.address(), 20000, SOON, stream.handle())
                .unwrap();
        }
        stream.synchronize().unwrap();
        let calls = round as u64 + 1;
        let wanted_outcome = Outcome {
            calls,
            sequence: calls,
            bytes: bytes as u64,
            ..Outcome::default()
        };
        assert_eq!(subscriber.outcome().unwrap(), wanted_outcome);
        assert_eq!(publisher.outcome().unwrap(), wanted_outcome);
        let mut found = vec![0; bytes];
        target.read_at(0, &mut found).unwrap();
        assert!(found == wanted, "{bytes} bytes");
    }
}

#[test]
fn what_cannot_be_is_an_outcome() {
    let context = context();
    let topic = topic(&context);
    let publisher = TensorPublisher::new(topic.clone()).unwrap();
    let subscriber = TensorSubscriber::new(topic.clone(), true, false).unwrap();
    let stream = CudaStream::new(context.clone()).unwrap();
    let buffer = buffer(&context, &payload(1, 100));
    let receive = |room: u64, ticks: u64| {
        // SAFETY: the buffer has 100 bytes, and lives until the stream is synchronized.
        unsafe {
            subscriber
                .receive(buffer.address(), room, ticks, stream.handle())
                .unwrap()
        };
        stream.synchronize().unwrap();
        subscriber.outcome().unwrap()
    };
    let publish = |bytes: u64| {
        // SAFETY: the buffer has as many bytes, and lives until the stream is synchronized.
        unsafe { publisher.publish(buffer.address(), bytes, 1, stream.handle()) }?;
        stream.synchronize().unwrap();
        publisher.outcome()
    };
    assert_eq!(receive(100, 1).status, -2, "timed out");
    for sequence in 1..=4 {
        assert_eq!(publish(100).unwrap().sequence, sequence);
    }
    assert_eq!(publish(100).unwrap().status, -8, "back-pressured");
    assert!(matches!(publish(20481), Err(DeviceError::Argument(_))));
    let cut = receive(10, 1);
    assert_eq!((cut.status, cut.bytes), (-4, 100), "too large");
    for sequence in 2..=4 {
        assert_eq!(receive(100, 1).sequence, sequence);
    }
    topic.evict(subscriber.seat()).unwrap();
    let outcome = receive(100, SOON);
    assert_eq!((outcome.status, outcome.failed), (-31, 3), "evicted");
}
