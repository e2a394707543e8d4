//! Faults of devices and links, and misbehaving peers: each ends this channel only, and the channel names the reason.

mod pair;

use pair::{small, Pair};
use rgaps_verbs::in_process::Faults;
use rgaps_verbs::*;
use std::io::IoSlice;
use std::sync::Arc;

fn pair() -> Pair {
    Pair::new(Faults::default(), small(4096, 8, 8))
}

fn direct(region: &Arc<Region>, address: u64, key: u32) -> Direct {
    Direct {
        region: Arc::clone(region),
        offset: 0,
        bytes: 64,
        address,
        key,
    }
}

fn status(error: ChannelError) -> Status {
    match error {
        ChannelError::Completion { status, .. } => status,
        other => panic!("{other}"),
    }
}

#[test]
fn every_status_ends_the_channel_and_is_named() {
    for expected in &Status::ALL[1..] {
        let pair = pair();
        pair.network.fail_next(*expected);
        pair.send(0, b"frame").unwrap();
        let error = pair.end_of(0);
        assert!(error.to_string().contains(expected.name()), "{error}");
        assert_eq!(status(error.clone()), *expected);
        // Every later call returns the same error.
        assert_eq!(pair.send(0, b"frame"), Err(error.clone()));
        assert_eq!(pair.ends[0].ended(), Some(error));
    }
}

#[test]
fn a_wrong_key_or_place_is_a_remote_access_error_and_ends_both() {
    let pair = pair();
    let (_, from) = pair.region(0, 64, Access::LocalRead);
    let (_, place) = pair.region(1, 64, Access::RemoteWrite);
    let (_, read_only) = pair.region(1, 64, Access::LocalRead);
    assert_eq!(read_only.remote_key(), None);
    let key = place.remote_key().unwrap();
    for (address, key) in [
        (place.address(), key + 1000),
        (place.address() + 1, key),
        (u64::MAX - 8, key),
    ] {
        let other = self::pair();
        let (_, from) = other.region(0, 64, Access::LocalRead);
        other.ends[0]
            .send(&[], Some(&direct(&from, address, key)))
            .unwrap();
        assert_eq!(status(other.end_of(0)), Status::RemoteAccess);
        let event = ChannelError::Event(DeviceEvent::QueuePairAccess);
        assert_eq!(other.end_of(1), event);
    }
    // A key is invalid once its region was dropped.
    let address = place.address();
    drop(place);
    pair.ends[0]
        .send(&[], Some(&direct(&from, address, key)))
        .unwrap();
    assert_eq!(status(pair.end_of(0)), Status::RemoteAccess);
}

#[test]
fn memory_of_another_domain_is_a_local_protection_error() {
    let pair = pair();
    let (_, foreign) = pair.region(1, 64, Access::LocalRead);
    let (_, place) = pair.region(1, 64, Access::RemoteWrite);
    let key = place.remote_key().unwrap();
    pair.ends[0]
        .send(&[], Some(&direct(&foreign, place.address(), key)))
        .unwrap();
    assert_eq!(status(pair.end_of(0)), Status::LocalProtection);
}

#[test]
fn a_direct_write_outside_of_its_region_is_refused_and_the_channel_goes_on() {
    let pair = pair();
    let (_, region) = pair.region(0, 64, Access::LocalRead);
    for (offset, bytes) in [
        (0, 65),
        (1, 64),
        (64, 0),
        (u64::MAX, 2),
        (0, DIRECT_BYTES_MAX + 1),
    ] {
        let direct = Direct {
            offset,
            bytes,
            ..direct(&region, 0, 0)
        };
        let refused = pair.ends[0].send(&[], Some(&direct));
        assert!(
            matches!(refused, Err(ChannelError::Direct { .. })),
            "{offset} {bytes}"
        );
    }
    assert_eq!(pair.send(0, b"frame"), Ok(Some(1)));
}

#[test]
fn a_link_that_goes_ends_both_and_a_new_channel_stands_when_it_is_back() {
    let pair = pair();
    pair.network.set_link(false);
    pair.devices
        .iter()
        .for_each(|_| pair.send(0, b"frame").map(drop).unwrap());
    assert_eq!(status(pair.end_of(0)), Status::RetryExceeded);
    // An end that only receives learns of it from its device.
    pair.ends[1].woken([false, true, false]).unwrap_err();
    assert_eq!(pair.end_of(1), ChannelError::Event(DeviceEvent::PortDown));
    pair.network.set_link(true);
    let again = [0, 1].map(|end| Channel::new(&pair.devices[end], small(4096, 8, 8)).unwrap());
    again[0].connect(&again[1].address()).unwrap();
    again[1].connect(&again[0].address()).unwrap();
    again[0].send(&[IoSlice::new(b"frame")], None).unwrap();
    assert_eq!(again[1].progress(&mut |_| Ok(())).unwrap().frames, 1);
}

#[test]
fn a_peer_that_is_gone_is_noticed_by_who_sends() {
    let Pair {
        ends: [one, other], ..
    } = pair();
    drop(other);
    one.send(&[IoSlice::new(b"frame")], None).unwrap();
    let error = one.progress(&mut |_| Ok(())).unwrap_err();
    assert_eq!(status(error), Status::RetryExceeded);
}

#[test]
fn a_probe_finds_that_the_peer_is_gone_when_nothing_is_in_flight() {
    let Pair {
        ends: [one, other], ..
    } = pair();
    drop(other);
    assert_eq!(one.progress(&mut |_| Ok(())), Ok(Progress::default()));
    one.probe().unwrap();
    let error = one.progress(&mut |_| Ok(())).unwrap_err();
    assert_eq!(status(error), Status::RetryExceeded);
}

#[test]
fn closed_it_is_drained_and_the_peer_writes_nothing_more() {
    for delay_one_in in [0, 20] {
        let faults = Faults {
            seed: 5,
            delay_one_in,
            ..Faults::default()
        };
        let pair = Pair::new(faults, small(4096, 8, 8));
        let (memory, region) = pair.region(0, 64, Access::LocalRead);
        let (landing, place) = pair.region(1, 64, Access::RemoteWrite);
        memory.write(0, &[7; 64]);
        let key = place.remote_key().unwrap();
        pair.ends[1].close();
        let sent = pair.ends[0].send(&[], Some(&direct(&region, place.address(), key)));
        assert!(sent.is_ok());
        pair.end_of(0);
        let mut landed = [0; 64];
        landing.read(0, &mut landed);
        assert_eq!(landed, [0; 64]);
        pair.ends[0].close();
        for end in &pair.ends {
            assert_eq!(end.counts().not_drained, 0);
            assert!(end.counts().flushed >= 8);
        }
        // The channel has dropped its reference.
        assert_eq!(Arc::strong_count(&region), 1);
        assert_eq!(pair.ends[1].ended(), Some(ChannelError::Closed));
    }
}

#[test]
fn a_receiver_that_refuses_a_frame_ends_the_channel() {
    let pair = pair();
    pair.send(0, b"frame").unwrap();
    let refused = pair.ends[1].progress(&mut |_| Err("not this one".into()));
    assert_eq!(refused, Err(ChannelError::Refused("not this one".into())));
}

#[test]
fn a_head_that_cannot_be_is_a_lie() {
    let pair = pair();
    let credits = u64::from_le_bytes(pair.ends[0].address().encode()[56..64].try_into().unwrap());
    for (at, value) in [(0u64, 1 << 30), (8, 1 << 30)] {
        let pair = self::pair();
        let credits_here =
            u64::from_le_bytes(pair.ends[0].address().encode()[56..64].try_into().unwrap());
        assert!(pair
            .network
            .scribble(credits_here + at, &u64::to_le_bytes(value)));
        let lied = (0..100)
            .find_map(|_| pair.send(0, &[0; 900]).err())
            .unwrap();
        assert!(matches!(lied, ChannelError::Violation(_)), "{lied}");
    }
    assert!(
        !pair.network.scribble(credits + 16, &[0]),
        "no more may be written than that"
    );
}

#[test]
fn a_frame_that_changes_in_the_ring_is_a_lie() {
    for (at, byte) in [(0, 200), (4, 9), (8, 64), (15, 1)] {
        let pair = Pair::new(
            Faults {
                seed: 1,
                ..Faults::default()
            },
            small(4096, 8, 8),
        );
        pair.send(0, &[1; 100]).unwrap();
        let ring = u64::from_le_bytes(pair.ends[1].address().encode()[40..48].try_into().unwrap());
        assert!(pair.network.scribble(ring + at, &[byte]));
        assert!(
            matches!(pair.end_of(1), ChannelError::Violation(_)),
            "byte {at}"
        );
    }
}

#[test]
fn an_end_connects_once_to_an_address_that_can_be() {
    let pair = pair();
    let again = pair.ends[0].connect(&pair.ends[1].address());
    assert!(matches!(again, Err(VerbsError::Address { .. })));
    let alone = Channel::new(&pair.devices[0], small(4096, 8, 8)).unwrap();
    assert!(alone.send(&[], None).is_err());
    let mut bytes = pair.ends[1].address().encode();
    bytes[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(alone
        .connect(&ChannelAddress::decode(&bytes).unwrap())
        .is_err());
}
