//! Messages in GPU memory, over the test driver, or on a real GPU with `RGAPS_TEST_GPU=1`.

mod support;

use rgaps::{DType, Domain};
use rgaps_cuda::Driver;
use rgaps_recording::{Options, Recording, Replay, ReplayOptions};
use rgaps_testkit::{driver, Daemon};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use support::{record, SOON};

const MESSAGES: u8 = 40;
const SHAPE: [u64; 3] = [64, 48, 3];

fn image(seed: u8) -> Vec<u8> {
    let bytes = SHAPE.iter().product::<u64>() as usize;
    (0..bytes)
        .map(|at| (at as u8).wrapping_mul(31) ^ seed)
        .collect()
}

#[test]
fn messages_of_a_gpu_are_recorded_and_replayed_on_it() {
    if !driver::is_real() {
        // Delays copies, so that a missing wait shows.
        driver::use_test_driver(&[("DELAY_US", "3000")]);
    }
    let uuid = Driver::load().unwrap().devices().unwrap()[0].uuid;
    let gpu = Domain::Cuda(uuid);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    {
        let daemon = Daemon::start_with("[pool.cuda]\ncap = \"1GiB\"\n");
        let node = daemon.node("test");
        let publisher = node.publisher("image").domain(gpu).keep_last(64);
        let publisher = publisher.create().unwrap();
        let recorder = record(&node, Options::new(["image"], &file), 1);
        for seed in 0..MESSAGES {
            let mut loan = publisher.loan_tensor(DType::U8, &SHAPE).unwrap();
            loan.write(0, &image(seed)).unwrap();
            loan.publish().unwrap();
        }
        let (counts, _) = recorder.stop();
        assert_eq!((counts.recorded, counts.dropped), (u64::from(MESSAGES), 0));
    }
    let recording = Arc::new(Recording::open(&file).unwrap());
    for (seed, message) in recording.messages().enumerate() {
        assert_eq!(message.unwrap().data()[..], image(seed as u8)[..]);
    }
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"1GiB\"\n");
    let node = daemon.node("replay");
    let subscriber = node.subscriber("image").reliable().create().unwrap();
    let options = ReplayOptions {
        rate: 1e6,
        domain: Some(gpu),
        wait_subscribers: 1,
        ..ReplayOptions::default()
    };
    let replay = Replay::new(&node, vec![recording], options).unwrap();
    let receiving = std::thread::spawn(move || {
        for seed in 0..MESSAGES {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!(sample.domain(), gpu);
            let mut bytes = vec![0; sample.len() as usize];
            sample.read(0, &mut bytes).unwrap();
            assert!(bytes == image(seed), "message {seed}");
        }
    });
    let replayed = replay.run(&AtomicBool::new(false)).unwrap();
    assert_eq!(replayed.replayed, u64::from(MESSAGES));
    receiving.join().unwrap();
}
