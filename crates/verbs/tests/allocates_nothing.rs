//! A channel allocates no memory to send or receive a frame.

mod pair;

use pair::Pair;
use rgaps_testkit::{allocations, CountingAllocator};
use rgaps_verbs::in_process::Faults;
use rgaps_verbs::*;
use std::io::IoSlice;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const FRAMES: u64 = 2_000;

/// Sends frames of `bytes` bytes from one end to the other, each after a direct write if there is one; without `bytes`,
/// marked writes. Some stall.
fn stream(pair: &Pair, bytes: Option<usize>, direct: Option<&Direct>) {
    let frame = vec![5; bytes.unwrap_or(0)];
    let (mut sent, mut come) = (0, 0);
    let before = allocations::of_this_thread();
    assert!(before > 0, "allocations are counted");
    while come < FRAMES {
        while sent < FRAMES {
            let mut batch = pair.ends[0].batch().unwrap();
            let pushed = match bytes {
                Some(_) => batch.push(&[IoSlice::new(&frame)], direct),
                None => batch.push_marked(direct.expect("it is to be marked"), 7),
            };
            if pushed.unwrap().is_none() {
                break;
            }
            sent += 1;
        }
        let mut each = |arrived: Arrived<'_>| match arrived {
            Arrived::Frame(frame) if Some(frame.len()) == bytes => Ok(()),
            Arrived::Written { mark: 7, .. } if bytes.is_none() => Ok(()),
            _ => Err("it is another".into()),
        };
        let progress = pair.ends[1].progress(&mut each);
        come += progress.unwrap().frames;
        pair.ends[0].progress(&mut |_| Ok(())).unwrap();
    }
    let allocated = allocations::of_this_thread() - before;
    assert_eq!(allocated, 0, "{FRAMES} frames of {bytes:?} bytes");
}

#[test]
fn frames_inline_through_the_ring_and_behind_direct_writes() {
    let few = ChannelConfig {
        ring_bytes: 256 << 10,
        receives: 8,
        sends: 16,
        ..ChannelConfig::default()
    };
    for config in [ChannelConfig::default(), few] {
        let pair = Pair::new(Faults::default(), config);
        let (_, from) = pair.region(0, 1 << 20, Access::LocalRead);
        let (_place, to) = pair.region(1, 1 << 20, Access::RemoteWrite);
        let direct = Direct {
            region: Arc::clone(&from),
            offset: 0,
            bytes: 1 << 20,
            address: to.address(),
            key: to.remote_key().unwrap(),
        };
        stream(&pair, Some(8), None);
        stream(&pair, Some(60 << 10), None);
        stream(&pair, Some(32), Some(&direct));
        stream(&pair, None, Some(&direct));
        let counts = pair.ends[0].counts();
        let stalls = counts.stalls_ring + counts.stalls_receives + counts.stalls_sends;
        assert!(stalls > 0 && counts.directs_sent == 2 * FRAMES);
    }
}
