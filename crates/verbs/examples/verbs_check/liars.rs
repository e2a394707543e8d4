//! Misbehaving peers: a violates the protocol by raw writes; b's channel names the violation and ends.

use crate::end::*;
use anyhow::{ensure, Result};
use rgaps_verbs::raw::{RawCompletion, RawWrite, NOTICES};
use rgaps_verbs::*;
use serde_json::json;

/// A write of a into b's ring: how many bytes, the header's length, number and cursor, the offset, the immediate data.
struct Claim {
    what: &'static str,
    bytes: u32,
    says: u32,
    number: u32,
    cursor: u64,
    offset: u64,
    immediate: u32,
    times: u32,
}

const HONEST: Claim = Claim {
    what: "",
    bytes: 80,
    says: 64,
    number: 0,
    cursor: 0,
    offset: 0,
    immediate: 0,
    times: 1,
};

fn claims() -> Vec<Claim> {
    vec![
        Claim {
            what: "immediate without a meaning",
            immediate: 1 << 28,
            ..HONEST
        },
        Claim {
            what: "another slot",
            immediate: 5,
            ..HONEST
        },
        Claim {
            what: "a slot outside of the ring",
            immediate: (1 << 28) - 1,
            ..HONEST
        },
        Claim {
            what: "a length that is not the frame's",
            says: 65,
            ..HONEST
        },
        Claim {
            what: "a length that is huge",
            says: u32::MAX,
            ..HONEST
        },
        Claim {
            what: "an empty write",
            bytes: 0,
            ..HONEST
        },
        Claim {
            what: "a number that is not the next",
            number: 7,
            ..HONEST
        },
        Claim {
            what: "a cursor further on",
            cursor: 4096,
            ..HONEST
        },
        Claim {
            what: "a frame larger than a quarter",
            bytes: 2048,
            says: 2032,
            ..HONEST
        },
        Claim {
            what: "two stalls at once",
            immediate: NOTICES[0],
            bytes: 16,
            times: 3,
            ..HONEST
        },
        Claim {
            what: "a head that nobody asked for",
            immediate: NOTICES[1],
            bytes: 16,
            ..HONEST
        },
    ]
}

pub fn all(end: &mut End) -> Result<()> {
    for claim in claims() {
        match end.role {
            Role::A => lie(end, &claim)?,
            Role::B => hear_lie(end, claim.what)?,
        }
        end.barrier()?;
    }
    Ok(())
}

fn hear_lie(end: &mut End, what: &str) -> Result<()> {
    let config = ChannelConfig {
        ring_bytes: 4096,
        ..ChannelConfig::default()
    };
    let channel = end.channel(config)?;
    let error = end_of(&channel)?;
    say_json(json!({"liar": what, "ended_with": error.to_string()}));
    ensure!(matches!(error, ChannelError::Violation(_)), "{error}");
    channel.close();
    ensure!(channel.counts().not_drained == 0);
    Ok(())
}

fn lie(end: &mut End, claim: &Claim) -> Result<()> {
    let raw = end.raw(8, 8, 4096 + 64)?;
    let (ring, _, _, key) = raw.peer.parts();
    let mut header = [0; 16];
    header[..4].copy_from_slice(&claim.says.to_le_bytes());
    header[4..8].copy_from_slice(&claim.number.to_le_bytes());
    header[8..].copy_from_slice(&claim.cursor.to_le_bytes());
    raw.memory.write(0, &header);
    for _ in 0..claim.times {
        let write = RawWrite {
            offset: 0,
            bytes: claim.bytes,
            address: ring + claim.offset,
            key,
            immediate: Some(claim.immediate),
            is_signalled: true,
        };
        raw.pair.write(0, &write)?;
    }
    // All writes have completed, or failed since b's channel had ended.
    let mut seen = 0;
    within(|| {
        seen += u32::from(matches!(
            raw.pair.poll(),
            Ok(Some(RawCompletion::Sent | RawCompletion::Failed(_)))
        ));
        (seen == claim.times).then_some(())
    });
    ensure!(
        seen == claim.times,
        "{}: {seen} of {} went out",
        claim.what,
        claim.times
    );
    Ok(())
}
