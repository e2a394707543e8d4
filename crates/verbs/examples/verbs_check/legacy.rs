//! The ring of RGAPS's first version, to compare with notices: a size before each message and a flag behind it. The
//! receiver polls both in memory, and zeroes the slot when it has read the message.

use crate::end::*;
use anyhow::{ensure, Context, Result};
use rgaps_verbs::raw::{RawCompletion, RawWrite};
use rgaps_verbs::*;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const RING: usize = 1 << 20;
/// Bytes of the size before a message and of the flag behind it.
const FRAMING: usize = 16;
const SIGNAL_EVERY: u32 = 16;
const SENDS: u32 = 64;

/// Both rings run in turns, so that the machine's load affects both; the figures are medians.
const TURNS: usize = 5;

pub fn against_notices(end: &mut End) -> Result<()> {
    for (bytes, messages) in [(64, 1000), (4 << 10, 600), (64 << 10, 80)] {
        let (mut old, mut new, mut ratios) = (vec![], vec![], vec![]);
        for _ in 0..TURNS {
            let us = 1e6 / messages as f64;
            let pair = [
                legacy(end, bytes, messages)?,
                notices(end, bytes, messages)?,
            ]
            .map(|s| s * us);
            old.push(pair[0]);
            new.push(pair[1]);
            ratios.push(pair[0] / pair[1]);
        }
        if end.role == Role::A {
            say_json(json!({
                "legacy_ring_of_notices": median(ratios), "bytes": bytes,
                "legacy_us_per_message": median(old), "notices_us_per_message": median(new),
            }));
        }
    }
    Ok(())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// How many seconds a takes until b has everything.
fn notices(end: &mut End, bytes: usize, messages: u64) -> Result<f64> {
    let channel = end.channel(ChannelConfig::default())?;
    let frame = vec![7; bytes];
    let nothing: &mut Each<'_> = &mut |_| Ok(());
    let start = Instant::now();
    if end.role == Role::A {
        for _ in 0..messages {
            while channel
                .send(&[std::io::IoSlice::new(&frame)], None)?
                .is_none()
            {
                channel.progress(nothing)?;
            }
        }
        while channel.progress(nothing)?.frames == 0 {}
    } else {
        let mut left = messages;
        while left > 0 {
            left -= channel.progress(nothing)?.frames;
        }
        send(&channel, b"all", None, nothing)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    end.barrier()?;
    Ok(seconds)
}

fn word(memory: &Allocation, at: usize) -> &AtomicU64 {
    assert!(at % 8 == 0 && at + 8 <= memory.bytes());
    // SAFETY: the assertion checked that the word lies inside the allocation, at a multiple of 8 from its page. The reference
    // borrows the allocation; devices write whole words.
    unsafe { AtomicU64::from_ptr(memory.start().add(at).cast()) }
}

fn legacy(end: &mut End, bytes: usize, messages: u64) -> Result<f64> {
    let raw = end.raw(SENDS, 0, RING + 64)?;
    let slot = (bytes + FRAMING).next_multiple_of(64);
    let slots = RING / slot;
    let (ring, _, head, key) = raw.peer.parts();
    let start = Instant::now();
    match end.role {
        Role::A => legacy_sender(&raw, bytes, messages, slot, (ring, key))?,
        Role::B => {
            let mut copy = vec![0; bytes];
            for number in 0..messages {
                let at = number as usize % slots * slot;
                wait(|| word(&raw.memory, at).load(Ordering::Acquire) == bytes as u64)?;
                let flag = at + 8 + bytes;
                wait(|| word(&raw.memory, flag).load(Ordering::Acquire) == 1)?;
                raw.memory.read(at + 8, &mut copy);
                // SAFETY: the slot lies inside the ring, and a writes it again only after b's head has freed it, further down.
                unsafe { raw.memory.start().add(at).write_bytes(0, bytes + FRAMING) };
                let read = number + 1;
                if read as usize % (slots / 4).max(1) == 0 || read == messages {
                    word(&raw.memory, RING).store(read, Ordering::Release);
                    let write = RawWrite {
                        offset: RING,
                        bytes: 8,
                        address: head,
                        key,
                        immediate: None,
                        is_signalled: true,
                    };
                    raw.pair.write(0, &write)?;
                    wait(|| matches!(raw.pair.poll(), Ok(Some(RawCompletion::Sent))))?;
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    end.barrier()?;
    Ok(seconds)
}

fn legacy_sender(
    raw: &Raw,
    bytes: usize,
    messages: u64,
    slot: usize,
    (ring, key): (u64, u32),
) -> Result<()> {
    let slots = RING / slot;
    let frame = vec![7; bytes];
    let mut in_flight = 0;
    for number in 0..messages {
        let at = number as usize % slots * slot;
        // The word behind the ring is b's head.
        wait(|| number - word(&raw.memory, RING).load(Ordering::Acquire) < slots as u64)?;
        word(&raw.memory, at).store(bytes as u64, Ordering::Relaxed);
        raw.memory.write(at + 8, &frame);
        word(&raw.memory, at + 8 + bytes).store(1, Ordering::Relaxed);
        let is_signalled = number as u32 % SIGNAL_EVERY == SIGNAL_EVERY - 1;
        let write = RawWrite {
            offset: at,
            bytes: (bytes + FRAMING) as u32,
            address: ring + at as u64,
            key,
            immediate: None,
            is_signalled,
        };
        raw.pair.write(0, &write)?;
        in_flight += 1;
        while in_flight > SENDS - SIGNAL_EVERY {
            match raw.pair.poll()? {
                Some(RawCompletion::Sent) => in_flight -= SIGNAL_EVERY,
                Some(other) => anyhow::bail!("{other:?}"),
                None => {}
            }
        }
    }
    wait(|| word(&raw.memory, RING).load(Ordering::Acquire) == messages)
}

fn wait(is_so: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        for _ in 0..100 {
            std::hint::spin_loop();
        }
        ensure!(start.elapsed() < LIMIT, "waited too long");
    }
    Some(()).context("it is so")
}
