//! Checks every byte of streams in both directions, and of direct writes.

use crate::end::*;
use anyhow::{ensure, Result};
use rgaps_verbs::*;
use serde_json::json;
use std::time::Instant;

/// Frames of both ends together.
const MESSAGES: u64 = 10_000;
const DIRECTS: u64 = 24;
const DIRECT_MOST: u64 = 64 << 20;

pub fn conformance(end: &mut End) -> Result<()> {
    frames_both_ways(end)?;
    directs(end)
}

fn frames_both_ways(end: &mut End) -> Result<()> {
    let config = ChannelConfig {
        ring_bytes: 256 << 10,
        ..ChannelConfig::default()
    };
    let channel = end.channel(config)?;
    let most = channel.frame_bytes_max();
    let salt = |role| match role {
        Role::A => 1 << 40,
        Role::B => 2 << 40,
    };
    let (mine, peers) = match end.role {
        Role::A => (salt(Role::A), salt(Role::B)),
        Role::B => (salt(Role::B), salt(Role::A)),
    };
    let start = Instant::now();
    let (mut came, mut bytes) = (0, 0);
    let mut each = frames(|frame: &[u8]| {
        let number = peers + came;
        let is_right = frame.len() as u64 == any_size(number, most) && is_filled(number, frame);
        came += 1;
        bytes += frame.len() as u64;
        is_right
            .then_some(())
            .ok_or(format!("frame {came} differs"))
    });
    let mut frame = vec![];
    for number in mine..mine + MESSAGES / 2 {
        frame.resize(any_size(number, most) as usize, 0);
        fill(number, &mut frame);
        send(&channel, &frame, None, &mut each)?;
    }
    while channel.counts().frames_received < MESSAGES / 2 {
        channel.serve(&mut each, LIMIT)?;
        ensure!(start.elapsed() < LIMIT, "frames are missing");
    }
    drop(each);
    end.barrier()?;
    let counts = channel.counts();
    ensure!(counts.works_in_flight_most <= u64::from(config.sends));
    ensure!(counts.notices_in_flight_most <= u64::from(config.receives));
    say_json(json!({
        "conformance": "frames both ways", "role": format!("{:?}", end.role), "frames": came, "bytes": bytes,
        "mb_s_both_ways": 2e-6 * bytes as f64 / start.elapsed().as_secs_f64(),
        "works": counts.works, "doorbells": counts.doorbells, "stalls_ring": counts.stalls_ring,
        "heads_returned": counts.heads_returned, "heads_noticed": counts.heads_noticed,
    }));
    Ok(())
}

fn size_of_direct(number: u64) -> u64 {
    match number {
        0 => DIRECT_MOST,
        1 => 1,
        _ => any_size(number, DIRECT_MOST / 8),
    }
}

/// Direct writes of a into b's memory. b checks the bytes when the frame has arrived, and answers.
fn directs(end: &mut End) -> Result<()> {
    let channel = end.channel(ChannelConfig::default())?;
    let (place, memory, region) = end.place(DIRECT_MOST as usize)?;
    let mut bytes = vec![];
    let mut total = 0;
    let start = Instant::now();
    for number in 0..DIRECTS {
        bytes.resize(size_of_direct(number) as usize, 0);
        total += bytes.len();
        if end.role == Role::A {
            fill(number, &mut bytes);
            memory.write(0, &bytes);
            let direct = direct(&region, bytes.len() as u64, place);
            send(&channel, &number.to_le_bytes(), Some(&direct), &mut |_| {
                Ok(())
            })?;
            receive(&channel, 1, &mut |_| Ok(()))?;
            ensure!(
                channel.completed() == number + 1,
                "its own answer overtook it"
            );
        } else {
            receive(&channel, 1, &mut |_| Ok(()))?;
            memory.read(0, &mut bytes);
            ensure!(is_filled(number, &bytes), "direct write {number} differs");
            send(&channel, b"ok", None, &mut |_| Ok(()))?;
        }
    }
    end.barrier()?;
    if end.role == Role::A {
        let rate = 1e-6 * total as f64 / start.elapsed().as_secs_f64();
        say_json(
            json!({"conformance": "direct writes", "messages": DIRECTS, "bytes": total, "mb_s": rate}),
        );
    }
    Ok(())
}

pub fn direct(region: &std::sync::Arc<Region>, bytes: u64, place: Place) -> Direct {
    Direct {
        region: std::sync::Arc::clone(region),
        offset: 0,
        bytes,
        address: place.address,
        key: place.key,
    }
}
