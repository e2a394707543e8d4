//! Streams of frames in both directions: with delays, with the fewest credits, with direct writes before them.

mod pair;

use pair::{bytes_of, small, Pair};
use rgaps_testkit::Random;
use rgaps_verbs::cursors::Watermark;
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::*;
use std::io::IoSlice;

const WATERMARKS: [Watermark; 4] = [
    Watermark::Zero,
    Watermark::Eighth,
    Watermark::Quarter,
    Watermark::Half,
];

/// Both ends send `frames` frames of random sizes while they receive, one step of either at a time.
fn stream_both_ways(pair: &Pair, seed: u64, frames: u64) {
    let mut random = Random::new(seed);
    let mut sent = [0u64; 2];
    let mut received = [0u64; 2];
    let mut may_send = [true; 2];
    let max = pair.ends[0].frame_bytes_max();
    let size = |end: u64, number: u64| Random::new(seed ^ number << 8 ^ end).below(max + 1);
    for _ in 0..frames * 1000 {
        let end = random.below(2) as usize;
        if random.below(3) > 0 && may_send[end] && sent[end] < frames {
            let frame = bytes_of(sent[end] + 1, size(end as u64, sent[end]));
            let cut = frame.len() / 3;
            let parts = [IoSlice::new(&frame[..cut]), IoSlice::new(&frame[cut..])];
            match pair.ends[end].send(&parts, None).unwrap() {
                Some(number) => {
                    sent[end] += 1;
                    assert_eq!(number, sent[end]);
                }
                None => may_send[end] = false,
            }
        } else {
            let peer = 1 - end as u64;
            let progress = pair.ends[end].progress(&mut rgaps_verbs::frames(|frame| {
                let expected = bytes_of(received[end] + 1, size(peer, received[end]));
                assert!(frame == expected, "frame {} differs", received[end]);
                received[end] += 1;
                Ok(())
            }));
            may_send[end] |= progress.unwrap().room;
        }
        if received == [frames; 2] {
            break;
        }
    }
    assert_eq!(received, [frames; 2], "seed {seed}: it hangs");
    for end in 0..2 {
        pair.receive(end).unwrap();
        pair.receive(1 - end).unwrap();
    }
}

#[test]
fn frames_arrive_in_order_with_any_delay_and_credit() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let ring_bytes = 256 * (1 + random.below(16));
        let receives = 3 + random.below(6) as u32;
        let sends = 5 + random.below(8) as u32;
        let config = ChannelConfig {
            watermark: WATERMARKS[random.below(4) as usize],
            ..small(ring_bytes, receives, sends)
        };
        let faults = Faults {
            seed,
            delay_one_in: random.below(5) as u32,
            ..Faults::default()
        };
        let pair = Pair::new(faults, config);
        stream_both_ways(&pair, seed, 300);
        for end in &pair.ends {
            let counts = end.counts();
            assert!(counts.works_in_flight_most <= sends.into());
            assert!(counts.notices_in_flight_most <= receives.into());
        }
    }
}

#[test]
fn credits_at_their_minimum_stall_and_never_overflow() {
    let faults = Faults {
        seed: 7,
        delay_one_in: 3,
        inline_max: Some(0),
        depth_max: 6,
    };
    let pair = Pair::new(faults, small(256, 100, 100));
    stream_both_ways(&pair, 7, 5_000);
    for end in &pair.ends {
        let counts = end.counts();
        let stalls = counts.stalls_ring + counts.stalls_receives + counts.stalls_sends;
        assert!(stalls > 1_000, "{counts:?}");
        assert!(
            counts.stall_notices > 0 && counts.heads_noticed > 0,
            "{counts:?}"
        );
        assert_eq!(counts.inlined, 0);
    }
}

#[test]
fn a_direct_write_is_there_before_its_frame_and_keeps_its_region() {
    for delay_one_in in [0, 4] {
        let faults = Faults {
            seed: 3,
            delay_one_in,
            ..Faults::default()
        };
        let pair = Pair::new(faults, small(4096, 8, 16));
        let (landing, place) = pair.region(1, 1 << 16, Access::RemoteWrite);
        for number in 1..=200u64 {
            let bytes = 1 + Random::new(number).below(1 << 16);
            let (memory, region) = pair.region(0, 1 << 16, Access::LocalRead);
            let content = bytes_of(number, bytes);
            memory.write(0, &content);
            let direct = Direct {
                region,
                offset: 0,
                bytes,
                address: place.address(),
                key: place.remote_key().unwrap(),
            };
            let sent = pair.ends[0].send(&[IoSlice::new(b"landed")], Some(&direct));
            assert_eq!(sent, Ok(Some(number)));
            // The channel keeps the region until the device is done with it.
            drop(direct);
            assert_eq!(pair.receive(1).unwrap(), [b"landed"]);
            let mut landed = vec![0; content.len()];
            landing.read(0, &mut landed);
            assert!(landed == content, "message {number}");
            pair.receive(0).unwrap();
            assert_eq!(pair.ends[0].completed(), number);
        }
        let counts = pair.ends[0].counts();
        assert_eq!((counts.directs_sent, counts.frames_sent), (200, 200));
        // Two works, one doorbell.
        assert!(counts.works >= 400 && counts.doorbells < 250, "{counts:?}");
    }
}

#[test]
fn a_batch_has_one_doorbell() {
    let pair = Pair::new(Faults::default(), small(1 << 16, 64, 64));
    let mut batch = pair.ends[0].batch().unwrap();
    for number in 0..20u8 {
        assert!(batch
            .push(&[IoSlice::new(&[number])], None)
            .unwrap()
            .is_some());
    }
    drop(batch);
    assert_eq!(pair.ends[0].counts().doorbells, 1);
    let frames = pair.receive(1).unwrap();
    assert_eq!(frames.concat(), (0..20).collect::<Vec<u8>>());
}

#[test]
fn frames_that_no_ring_takes_are_refused_and_the_channel_goes_on() {
    let pair = Pair::new(Faults::default(), small(1024, 8, 8));
    let max = pair.ends[0].frame_bytes_max();
    assert_eq!(max, 256 - HEADER_BYTES);
    let large = vec![1; max as usize + 1];
    assert!(matches!(
        pair.send(0, &large),
        Err(ChannelError::FrameSize(_))
    ));
    assert_eq!(pair.send(0, &large[..max as usize]), Ok(Some(1)));
    assert_eq!(pair.send(0, &[]), Ok(Some(2)));
    let frames = pair.receive(1).unwrap();
    assert_eq!(frames, [large[..max as usize].to_vec(), vec![]]);
}

#[test]
fn who_waits_is_woken_by_a_frame_and_by_the_bell() {
    let pair = Pair::new(Faults::default(), small(4096, 8, 8));
    let limit = std::time::Duration::from_secs(20);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut frames = 0;
            while frames < 100 {
                let progress = pair.ends[1].serve(&mut |_| Ok(()), limit).unwrap();
                frames += progress.frames;
            }
            pair.ends[1].ring();
            pair.ends[1].serve(&mut |_| Ok(()), limit).unwrap()
        });
        let mut sent = 0;
        while sent < 100 {
            match pair.send(0, &[sent]).unwrap() {
                Some(_) => sent += 1,
                None => while !pair.ends[0].serve(&mut |_| Ok(()), limit).unwrap().room {},
            }
        }
        assert_eq!(receiver.join().unwrap().frames, 0);
    });
}

/// To a channel, a GPU's memory is a dma-buf whose bytes have addresses for devices.
#[test]
fn memory_of_a_dmabuf_is_written_like_any_other() {
    let pair = Pair::new(Faults::default(), small(4096, 8, 16));
    let dmabuf = std::fs::File::open("/dev/null").unwrap();
    let (from, landing) = (Allocation::new(4096), Allocation::new(4096));
    from.write(100, b"from one GPU to another");
    let region = |end: usize, memory: &std::sync::Arc<Allocation>, access| {
        let (device, fd) = (&pair.devices[end], std::os::fd::AsFd::as_fd(&dmabuf));
        Region::of_dmabuf(device, fd, 0, memory.clone(), access).unwrap()
    };
    let place = region(1, &landing, Access::RemoteWrite);
    let direct = Direct {
        region: region(0, &from, Access::LocalRead),
        offset: 100,
        bytes: 23,
        address: place.address() + 200,
        key: place.remote_key().unwrap(),
    };
    pair.ends[0].send(&[], Some(&direct)).unwrap();
    assert_eq!(pair.receive(1).unwrap().len(), 1);
    let mut landed = [0; 23];
    landing.read(200, &mut landed);
    assert_eq!(&landed, b"from one GPU to another");
}

#[test]
fn what_a_device_registers_is_tried() {
    for (refuse, host, dmabuf) in [
        (None, true, true),
        (Some(("ibv_reg_mr", 12)), false, true),
        (Some(("ibv_reg_dmabuf_mr", 95)), true, false),
    ] {
        let network = SoftwareNetwork::new(Faults::default());
        let device = network.device("one").unwrap();
        refuse.inspect(|(call, errno)| network.refuse(call, *errno));
        let error = refuse.map(|(call, errno)| VerbsError::Call { call, errno });
        let expected = |works: bool| match works {
            true => Ok(()),
            false => Err(error.clone().unwrap()),
        };
        let tried = device.try_host();
        assert_eq!(
            (&tried.writable, &tried.read_only),
            (&expected(host), &expected(host))
        );
        let file = std::fs::File::open("/dev/null").unwrap();
        let tried = device.try_dmabuf(std::os::fd::AsFd::as_fd(&file), 1 << 40, 4096);
        assert_eq!(tried, expected(dmabuf));
        let segment = rustix::fs::memfd_create("segment", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&segment, 4096).unwrap();
        let tried = device.try_segment(std::os::fd::AsFd::as_fd(&segment), 4096);
        let expected = (expected(dmabuf), expected(host));
        assert_eq!((tried.dma_buf, tried.address), expected);
        assert_eq!(device.mtu_bytes(), 4096);
    }
}

/// Bytes of several regions arrive before one frame, also with the shallowest send queue.
#[test]
fn several_direct_writes_are_there_before_their_frame() {
    for sends in [5, 6, 16] {
        let pair = Pair::new(Faults::default(), small(4096, 8, sends));
        let place = Allocation::new(4096);
        let landing = Region::new(&pair.devices[1], place.clone(), Access::RemoteWrite).unwrap();
        let most = pair.ends[0].directs_max().min(3);
        assert_eq!(most, (sends as usize - 4).min(3));
        for round in 0..20u8 {
            let directs: Vec<_> = (0..most as u64)
                .map(|part| {
                    let from = Allocation::new(10);
                    from.write(0, &[round ^ part as u8; 10]);
                    Direct {
                        region: Region::new(&pair.devices[0], from, Access::LocalRead).unwrap(),
                        offset: 0,
                        bytes: 10,
                        address: landing.address() + 10 * part,
                        key: landing.remote_key().unwrap(),
                    }
                })
                .collect();
            let mut batch = pair.ends[0].batch().unwrap();
            let number = batch
                .push_after(&[IoSlice::new(b"there")], &directs)
                .unwrap();
            drop(batch);
            assert_eq!(number, Some(u64::from(round) + 1));
            assert_eq!(pair.receive(1).unwrap(), [b"there"]);
            let mut landed = vec![0; 10 * most];
            place.read(0, &mut landed);
            let expected = (0..most).flat_map(|part| [round ^ part as u8; 10]);
            assert_eq!(landed, expected.collect::<Vec<_>>());
            pair.ends[0].progress(&mut |_| Ok(())).unwrap();
            assert_eq!(pair.ends[0].completed(), u64::from(round) + 1);
        }
    }
}
