//! Model of the slots for held samples: a thread that takes a slot sees all earlier accesses to it.

use crate::check;
use loom::cell::UnsafeCell;
use loom::thread;
use rgaps_sync::spin_hint;
use rgaps_topic::FreeSlots;
use std::sync::Arc;

/// Two samples are dropped on other threads, and the subscriber takes their slots again.
#[test]
fn a_slot_is_written_when_the_last_reader_has_left_it() {
    check(4, || {
        let shared = Arc::new((FreeSlots::new(2), [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let take = |value: u32| loop {
            let Some(slot) = shared.0.first() else {
                spin_hint();
                continue;
            };
            shared.0.take(slot);
            // SAFETY: nobody else has the slot; loom reports it if someone has.
            shared.1[slot as usize].with_mut(|cell| unsafe { *cell = value });
            break slot;
        };
        let drop_elsewhere = |slot: u32, value: u32| {
            let shared = shared.clone();
            thread::spawn(move || {
                // SAFETY: a slot that was taken is only read until it is given back; loom reports it otherwise.
                shared.1[slot as usize].with(|cell| assert_eq!(unsafe { *cell }, value));
                shared.0.give(slot);
            })
        };
        let (first, second) = (take(1), take(2));
        let readers = [drop_elsewhere(first, 1), drop_elsewhere(second, 2)];
        let third = take(3);
        assert!(third == first || third == second);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
