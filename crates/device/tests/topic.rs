//! The host's part of device topics, in host memory and on the test driver. What kernels do there, tests/device runs.

use rgaps_cuda::{Driver, LIBRARY_ENV};
use rgaps_device::{DeviceError, DeviceTopic, Geometry, Role};
use rgaps_layout::{Domain, DEVICE_PUBLISHER_ENDPOINT, MAX_DEVICE_SUBSCRIBERS};
use rgaps_pool::PoolError;
use std::os::fd::OwnedFd;
use std::sync::Once;

const SIZES: Geometry = Geometry {
    depth: 4,
    blocks: 6,
    block_bytes: 1000,
};

/// The domains of host memory and of the test driver's GPU.
fn domains() -> [Domain; 2] {
    static LOADED: Once = Once::new();
    // Set before any thread of these tests reads the environment.
    LOADED.call_once(|| std::env::set_var(LIBRARY_ENV, rgaps_test_driver::library()));
    let devices = Driver::load().unwrap().devices().unwrap();
    [Domain::Host, Domain::Cuda(devices[0].uuid)]
}

fn descriptors(topic: &DeviceTopic) -> [OwnedFd; 3] {
    topic
        .descriptors()
        .map(|fd| fd.try_clone_to_owned().unwrap())
}

#[test]
fn a_topic_is_opened_by_its_descriptors() {
    for domain in domains() {
        let made = DeviceTopic::create(domain, SIZES).unwrap();
        let opened = DeviceTopic::open(domain, descriptors(&made), Role::Subscriber).unwrap();
        assert_eq!(
            opened.geometry(),
            Geometry {
                block_bytes: 1024,
                ..SIZES
            }
        );
        assert_eq!(opened.geometry(), made.geometry());
        let (here, there) = (made.view(), opened.view());
        assert_ne!(here.slots, there.slots);
        assert_eq!(here.blocks_at - here.slots, there.blocks_at - there.slots);
        assert_eq!(here.holders - here.seats, there.holders - there.seats);
        assert_eq!(opened.newest_sequence().unwrap(), 0);
        // Each sees the seats that the other takes.
        let seat = opened.take_seat().unwrap();
        assert!(!made.seat(seat).unwrap().joined);
        assert_ne!(made.take_seat().unwrap(), seat);
    }
}

#[test]
fn seats_are_given_once() {
    let [domain, _] = domains();
    let topic = DeviceTopic::create(domain, SIZES).unwrap();
    let seats: Vec<u32> = (0..MAX_DEVICE_SUBSCRIBERS)
        .map(|_| topic.take_seat().unwrap())
        .collect();
    assert_eq!(seats, (0..MAX_DEVICE_SUBSCRIBERS).collect::<Vec<_>>());
    assert!(matches!(topic.take_seat(), Err(DeviceError::NoSeat(_))));
    topic.evict(3).unwrap();
    assert!(
        matches!(topic.take_seat(), Err(DeviceError::NoSeat(_))),
        "the evicted has its seat until it leaves"
    );
    topic.leave_seat(3).unwrap();
    assert_eq!(topic.take_seat().unwrap(), 3);
}

#[test]
fn endpoints_are_checked() {
    let [domain, _] = domains();
    let topic = DeviceTopic::create(domain, SIZES).unwrap();
    topic.stop(DEVICE_PUBLISHER_ENDPOINT).unwrap();
    topic.resume(DEVICE_PUBLISHER_ENDPOINT).unwrap();
    for outcome in [
        topic.stop(DEVICE_PUBLISHER_ENDPOINT + 1),
        topic.evict(MAX_DEVICE_SUBSCRIBERS),
        topic.leave_seat(99),
        topic.seat(99).map(|_| ()),
    ] {
        assert!(
            matches!(outcome, Err(DeviceError::Argument(_))),
            "{outcome:?}"
        );
    }
}

#[test]
fn other_descriptors_are_refused() {
    for domain in domains() {
        let topic = DeviceTopic::create(domain, SIZES).unwrap();
        let untrusted = |fds: [OwnedFd; 3]| {
            let refused = DeviceTopic::open(domain, fds, Role::Publisher).err();
            assert!(
                matches!(refused, Some(DeviceError::Pool(PoolError::Untrusted(_)))),
                "{refused:?}"
            );
        };
        let [control, ring, words] = descriptors(&topic);
        untrusted([ring, control, words]);
        let [control, _, words] = descriptors(&topic);
        untrusted([control.try_clone().unwrap(), control, words]);
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let [_, ring, words] = descriptors(&topic);
        untrusted([file, ring, words]);
        // A control segment that its maker did not finish.
        let empty =
            rgaps_pool::create_sealed_memfd("empty", rgaps_layout::DEVICE_CONTROL_BYTES).unwrap();
        let [_, ring, words] = descriptors(&topic);
        untrusted([empty, ring, words]);
    }
}
