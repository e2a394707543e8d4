//! Measurements. Of those on Soft-RoCE, only ratios mean something.

use crate::end::*;
use crate::stream::direct;
use anyhow::{ensure, Result};
use rgaps_verbs::cursors::Watermark;
use rgaps_verbs::*;
use serde_json::json;
use std::io::IoSlice;
use std::time::{Duration, Instant};

const ROUNDS: usize = 1000;
const STREAM_FRAMES: u64 = 300;
const STREAM_BYTES: usize = 64 << 10;
const RING_BYTES: usize = 1 << 20;

/// Polls until a frame has arrived.
fn polled(channel: &Channel, each: &mut Each<'_>) -> Result<()> {
    while channel.progress(each)?.frames == 0 {
        std::hint::spin_loop();
    }
    Ok(())
}

pub fn latency(end: &mut End) -> Result<()> {
    for is_polled in [true, false] {
        let channel = end.channel(ChannelConfig::default())?;
        let nothing: &mut Each<'_> = &mut |_| Ok(());
        let mut wait = || match is_polled {
            true => polled(&channel, nothing),
            false => receive(&channel, 1, nothing),
        };
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            if end.role == Role::B {
                wait()?;
            }
            ensure!(channel.send(&[IoSlice::new(&[1; 8])], None)?.is_some());
            if end.role == Role::A {
                wait()?;
                times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
            }
        }
        end.barrier()?;
        if end.role == Role::A {
            times.sort_by(f64::total_cmp);
            let at = |part: f64| times[(times.len() as f64 * part) as usize];
            say_json(json!({
                "latency_8_b_us": {"p50": at(0.5), "p99": at(0.99), "most": at(0.9999)},
                "over_100_ms": times.iter().filter(|us| **us > 1e5).count(),
                "waiting": if is_polled { "polled" } else { "served" }, "sleeps": channel.counts().sleeps,
            }));
        }
    }
    Ok(())
}

pub fn rate(end: &mut End) -> Result<()> {
    let config = ChannelConfig::default();
    for is_direct in [false, true] {
        let channel = end.channel(config)?;
        let (place, memory, region) = end.place(STREAM_BYTES)?;
        let frame = vec![7; STREAM_BYTES];
        memory.write(0, &frame);
        let start = Instant::now();
        if end.role == Role::A {
            let direct = direct(&region, STREAM_BYTES as u64, place);
            let (frame, direct) = match is_direct {
                true => (&frame[..16], Some(&direct)),
                false => (&frame[..], None),
            };
            for _ in 0..STREAM_FRAMES {
                send(&channel, frame, direct, &mut |_| Ok(()))?;
            }
            // b answers when it has all of them.
            receive(&channel, 1, &mut |_| Ok(()))?;
            let mib = ((STREAM_FRAMES as usize * STREAM_BYTES) >> 20) as f64;
            let counts = channel.counts();
            say_json(json!({
                "stream_64_kib_mib_s": mib / start.elapsed().as_secs_f64(), "direct": is_direct,
                "works": counts.works, "doorbells": counts.doorbells, "sleeps": counts.sleeps,
                "stalls": counts.stalls_ring + counts.stalls_sends + counts.stalls_receives,
            }));
        } else {
            receive(&channel, STREAM_FRAMES, &mut |_| Ok(()))?;
            send(&channel, b"all", None, &mut |_| Ok(()))?;
        }
        end.barrier()?;
    }
    Ok(())
}

/// The fewest credits that a channel can have, polled for five seconds: it stalls all the time, and nothing overflows.
pub fn credits(end: &mut End) -> Result<()> {
    let config = ChannelConfig {
        ring_bytes: 256,
        receives: 3,
        sends: 5,
        watermark: Watermark::Half,
        ..ChannelConfig::default()
    };
    let channel = end.channel(config)?;
    let time = Duration::from_secs(5);
    let start = Instant::now();
    let mut came = 0u64;
    let mut sent = 0u64;
    let mut each = frames(|frame: &[u8]| {
        came += 1;
        let is_next = frame == came.to_le_bytes();
        is_next
            .then_some(())
            .ok_or(format!("frame {came} is another"))
    });
    while start.elapsed() < time {
        // Without waiting for room: each try is a stall.
        if channel
            .send(&[IoSlice::new(&(sent + 1).to_le_bytes())], None)?
            .is_some()
        {
            sent += 1;
        }
        channel.progress(&mut each)?;
    }
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_secs(1) {
        channel.progress(&mut each)?;
    }
    end.say(&sent.to_le_bytes())?;
    let peers = u64::from_le_bytes(end.hear()?);
    while channel.counts().frames_received < peers {
        channel.serve(&mut each, LIMIT)?;
    }
    let counts = channel.counts();
    ensure!(channel.ended().is_none());
    ensure!(counts.works_in_flight_most <= 5 && counts.notices_in_flight_most <= 3);
    say_json(json!({
        "minimum_credits": format!("{:?}", end.role), "frames_sent": sent, "frames_received": counts.frames_received,
        "stalls": counts.stalls_ring + counts.stalls_sends + counts.stalls_receives,
        "works_in_flight_most": counts.works_in_flight_most, "notices_in_flight_most": counts.notices_in_flight_most,
        "overflows": 0,
    }));
    end.barrier()
}

fn voluntary_switches() -> i64 {
    // SAFETY: the structure contains only integers, for which zeros are values, and the call fills it in.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nvcsw
    }
}

pub fn switches(end: &mut End) -> Result<()> {
    const MESSAGES: u64 = 10_000;
    let channel = end.channel(ChannelConfig::default())?;
    let before = voluntary_switches();
    let mut left = MESSAGES;
    while left > 0 {
        if end.role == Role::A {
            left -= u64::from(channel.send(&[IoSlice::new(&[1; 64])], None)?.is_some());
            channel.progress(&mut |_| Ok(()))?;
        } else {
            left -= channel.progress(&mut |_| Ok(()))?.frames;
        }
    }
    let switches = voluntary_switches() - before;
    end.barrier()?;
    let per_1000 = 1000.0 * switches as f64 / MESSAGES as f64;
    say_json(
        json!({"role": format!("{:?}", end.role), "voluntary_switches_per_1000_polled": per_1000}),
    );
    Ok(())
}

/// Sends batches of frames and polls, so that somebody can count the system calls. `VERBS_CHECK_FRAMES` is the number of frames.
pub fn posts(end: &mut End) -> Result<()> {
    const BATCH: u64 = 8;
    let frames = std::env::var("VERBS_CHECK_FRAMES").ok();
    let frames: u64 = frames.map_or(Ok(4000), |frames| frames.parse())?;
    let channel = end.channel(ChannelConfig::default())?;
    let (mut sent, mut come) = (0, 0);
    while sent < frames && end.role == Role::A {
        let mut batch = channel.batch()?;
        for _ in 0..BATCH.min(frames - sent) {
            if batch.push(&[IoSlice::new(&[1; 64])], None)?.is_none() {
                break;
            }
            sent += 1;
        }
        drop(batch);
        channel.progress(&mut |_| Ok(()))?;
    }
    while come < frames && end.role == Role::B {
        come += channel.progress(&mut |_| Ok(()))?.frames;
    }
    end.barrier()?;
    let counts = channel.counts();
    say_json(json!({
        "posts": format!("{:?}", end.role), "frames": frames, "works": counts.works, "doorbells": counts.doorbells,
        "sleeps": counts.sleeps,
    }));
    Ok(())
}

/// How long copying a frame of 64 KiB takes, which each end of a ring does once.
pub fn copying() -> Result<()> {
    let (from, to) = (Allocation::new(RING_BYTES), Allocation::new(RING_BYTES));
    let mut frame = vec![1; STREAM_BYTES];
    let mut best = f64::MAX;
    for round in 0..200 {
        let at = (round * STREAM_BYTES) % RING_BYTES;
        let start = Instant::now();
        from.read(at, &mut frame);
        to.write(at, &frame);
        best = best.min(start.elapsed().as_secs_f64() / 2.0);
    }
    say_json(json!({"copy_64_kib_us": best * 1e6}));
    Ok(())
}

/// Compares registering memory for each message, a hidden cost of GVirtuS, with registering it once.
pub fn registration(end: &mut End) -> Result<()> {
    const MESSAGES: u64 = 200;
    for bytes in [64 << 10, 1 << 20] {
        let channel = end.channel(ChannelConfig::default())?;
        let (place, memory, region) = end.place(bytes)?;
        let mut seconds = [0.0; 2];
        for (seconds, is_each) in seconds.iter_mut().zip([false, true]) {
            let messages = MESSAGES / (bytes as u64 >> 16);
            end.barrier()?;
            let start = Instant::now();
            if end.role == Role::B {
                receive(&channel, messages, &mut |_| Ok(()))?;
                continue;
            }
            for _ in 0..messages {
                let region = match is_each {
                    true => Region::new(&end.device, memory.clone(), Access::LocalRead)?,
                    false => region.clone(),
                };
                let direct = direct(&region, bytes as u64, place);
                let number = send(&channel, b"landed", Some(&direct), &mut |_| Ok(()))?;
                flush(&channel, number)?;
            }
            *seconds = start.elapsed().as_secs_f64();
        }
        end.barrier()?;
        let start = Instant::now();
        for _ in 0..MESSAGES {
            Region::new(&end.device, memory.clone(), Access::LocalRead)?;
        }
        let alone = start.elapsed().as_secs_f64() / MESSAGES as f64;
        end.barrier()?;
        if end.role == Role::A {
            say_json(json!({
                "registering_each_time_of_once": seconds[1] / seconds[0], "bytes": bytes,
                "register_and_deregister_us": alone * 1e6,
            }));
        }
    }
    Ok(())
}

/// How fast locked memory is zeroed, to compare with the 50 GB/s of a 400 Gb/s link.
pub fn zeroing() -> Result<()> {
    let bytes = 256 << 20;
    let memory = Allocation::new(bytes);
    // SAFETY: `memory` has `bytes` bytes, and lives until the end of this function.
    let is_locked = unsafe { libc::mlock(memory.start().cast(), bytes) } == 0;
    let mut best = [f64::MAX; 2];
    for (best, piece) in best.iter_mut().zip([64 << 10, bytes]) {
        for _ in 0..5 {
            let start = Instant::now();
            for offset in (0..bytes).step_by(piece) {
                // SAFETY: `piece` divides `bytes`, so the range lies inside `memory`, which nobody else uses.
                unsafe { memory.start().add(offset).write_bytes(0, piece) };
                std::hint::black_box(memory.start());
            }
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let gb_s = best.map(|seconds| bytes as f64 * 1e-9 / seconds);
    say_json(json!({
        "zeroing_gb_s": {"by_64_kib": gb_s[0], "all": gb_s[1]}, "locked": is_locked, "threads": 1,
        "of_a_400_gbit_s_link": gb_s[1] / 50.0,
    }));
    Ok(())
}
