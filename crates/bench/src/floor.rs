//! The floor of a notification: a 64-byte slot in shared memory that the receiver polls, with a futex beside it on which
//! it may sleep.

use crate::board::Board;
use crate::exchange::Wait;
use rgaps_sync::{futex_wait, futex_wake_all, monotonic_ns, spin_hint};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a receiver waits for a hop.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks of a receiver that polls while there are more pollers than cores.
pub const NAP: Duration = Duration::from_micros(100);

/// Sends hop `number` of `writer`. Wakes the receivers that sleep on `bells`, if receivers block.
pub fn send(
    board: &Board,
    writer: usize,
    number: u64,
    sent_ns: u64,
    wait: Wait,
    bells: Range<usize>,
) {
    board.slot(writer).send(number, sent_ns);
    if wait == Wait::Block {
        for bell in bells {
            let bell = board.bell(bell);
            bell.fetch_add(1, Ordering::Release);
            futex_wake_all(bell);
        }
    }
}

/// Waits for hop `number` of `writer`; returns when it was sent.
pub fn receive(
    board: &Board,
    writer: usize,
    number: u64,
    wait: Wait,
    bell: usize,
) -> anyhow::Result<u64> {
    let (slot, bell) = (board.slot(writer), board.bell(bell));
    let mut begun = None;
    let mut looks = 0u32;
    loop {
        let rings = bell.load(Ordering::Acquire);
        if let Some(sent_ns) = slot.receive(number) {
            return Ok(sent_ns);
        }
        match wait {
            Wait::Poll => spin_hint(),
            Wait::Nap => std::thread::sleep(NAP),
            Wait::Block => {
                futex_wait(bell, rings, rgaps_layout::WAIT_SLICE_NS);
            }
        }
        looks = looks.wrapping_add(1);
        if wait != Wait::Poll || looks % 4096 == 0 {
            let now = monotonic_ns();
            let begun = *begun.get_or_insert(now);
            anyhow::ensure!(
                now - begun < LIMIT.as_nanos() as u64,
                "waited in vain for a hop of the floor"
            );
        }
    }
}
