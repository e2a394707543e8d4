//! Faults that end a channel on a real device. Each test checks the status or event that the channel names.

use crate::end::*;
use crate::stream::direct;
use anyhow::{ensure, Context, Result};
use rgaps_verbs::raw::{RawCompletion, RawWrite};
use rgaps_verbs::*;
use serde_json::json;
use std::process::Command;
use std::time::Instant;

/// The limit of one wait for something to happen.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

fn report(fault: &str, role: Role, error: &str, since: Instant) {
    let ms = since.elapsed().as_millis() as u64;
    say_json(
        json!({"fault": fault, "role": format!("{role:?}"), "ended_with": error, "after_ms": ms}),
    );
}

fn status(error: &ChannelError) -> Option<Status> {
    match error {
        ChannelError::Completion { status, .. } => Some(*status),
        _ => None,
    }
}

pub fn all(end: &mut End) -> Result<()> {
    type Change = fn(Place) -> Place;
    let changes: [(&str, Change); 3] = [
        ("wrong key", |place| Place {
            key: place.key ^ 0x5a00,
            ..place
        }),
        ("outside of the place", |place| Place {
            address: place.address + 4096,
            ..place
        }),
        ("after the place's end", |place| place),
    ];
    for (fault, change) in changes {
        let channel = end.channel(ChannelConfig::default())?;
        let (place, _, region) = end.place(4096)?;
        let mut kept = Some(region);
        if fault == "after the place's end" && end.role == Role::B {
            kept = None;
        }
        end.barrier()?;
        let start = Instant::now();
        if let (Role::A, Some(region)) = (end.role, &kept) {
            let direct = direct(region, 4096, change(place));
            channel.send(&[], Some(&direct))?;
            let error = end_of(&channel)?;
            report(fault, end.role, &error.to_string(), start);
            ensure!(status(&error) == Some(Status::RemoteAccess), "{error}");
            drained(&channel)?;
        } else {
            // Devices differ: b's may report the refused write, or nothing.
            let ended = channel.serve(
                &mut |_| Err("a frame came".into()),
                std::time::Duration::from_secs(1),
            );
            let ended = ended
                .err()
                .map_or("nothing said".into(), |error| error.to_string());
            ensure!(!ended.contains("a frame came"));
            report(fault, end.role, &ended, start);
        }
        end.barrier()?;
    }
    raw_faults(end)
}

fn drained(channel: &Channel) -> Result<()> {
    channel.close();
    ensure!(channel.counts().not_drained == 0, "it does not drain");
    Ok(())
}

fn first_failure(raw: &Raw) -> Result<Status> {
    within(|| match raw.pair.poll() {
        Ok(Some(RawCompletion::Failed(status))) => Some(status),
        _ => None,
    })
    .context("nothing failed")
}

fn raw_faults(end: &mut End) -> Result<()> {
    // Soft-RoCE reports another status than cards for an unknown local key.
    let nobodys: &[Status] = &[Status::LocalProtection, Status::LocalQueuePair];
    let cases = [
        ("local key of nobody", 0x5a00, 0, 1, nobodys),
        (
            "local bytes outside of the region",
            0,
            8192,
            1,
            &[Status::LocalProtection],
        ),
        (
            "more notices than receives",
            0,
            64,
            3,
            &[Status::ReceiverNotReady],
        ),
    ];
    for (fault, local_change, offset, writes, expected) in cases {
        let raw = end.raw(8, 1, 4096)?;
        let (address, _, _, key) = raw.peer.parts();
        let start = Instant::now();
        if end.role == Role::A {
            let own = raw.pair.local_key(0) ^ local_change;
            for _ in 0..writes {
                let write = RawWrite {
                    offset,
                    bytes: 64,
                    address,
                    key,
                    immediate: Some(0),
                    is_signalled: true,
                };
                raw.pair.write_with(0, &write, own)?;
            }
            let status = first_failure(&raw)?;
            report(fault, end.role, &status.to_string(), start);
            ensure!(expected.contains(&status), "{status}");
        }
        end.barrier()?;
    }
    Ok(())
}

/// Receives until the process is killed: b's second process.
pub fn victim(end: &mut End) -> Result<()> {
    let channel = end.channel(ChannelConfig::default())?;
    loop {
        channel.serve(&mut |_| Ok(()), LIMIT)?;
    }
}

/// A configuration with which a channel detects the peer's death itself, also on Soft-RoCE.
fn giving_up() -> ChannelConfig {
    ChannelConfig {
        retries: 6,
        ..ChannelConfig::default()
    }
}

/// Sends until the channel ends. Without credit, and with nothing in flight, only a probe finds out.
fn until_error(channel: &Channel) -> Result<ChannelError> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let sent = channel.send(&[std::io::IoSlice::new(&[1; 512])], None);
        let tried = match sent {
            Ok(Some(_)) => channel.progress(&mut |_| Ok(())).map(drop),
            Ok(None) => channel.serve(&mut |_| Ok(()), PAUSE).and_then(|progress| {
                if progress.any {
                    Ok(())
                } else {
                    channel.probe()
                }
            }),
            Err(error) => Err(error),
        };
        if let Err(error) = tried {
            return Ok(error);
        }
    }
    anyhow::bail!("it goes on")
}

/// The port on which the victim listens.
const VICTIM_PORT: u16 = 7472;

pub fn killed(end: &mut End) -> Result<()> {
    if end.role == Role::B {
        let program = std::env::current_exe()?;
        let mut victim = Command::new(program)
            .args(["b", &end.address, "victim"])
            .env("VERBS_CHECK_PORT", VICTIM_PORT.to_string())
            .spawn()?;
        end.hear::<1>()?;
        victim.kill()?;
        victim.wait()?;
        return end.barrier();
    }
    let mut other = End::meet_at(Role::A, &end.address.clone(), VICTIM_PORT)?;
    let channel = other.channel(giving_up())?;
    for _ in 0..100 {
        send(&channel, &[1; 32 << 10], None, &mut |_| Ok(()))?;
    }
    end.say(b"k")?;
    let since = Instant::now();
    let error = until_error(&channel)?;
    report("peer killed", end.role, &error.to_string(), since);
    ensure!(status(&error).is_some(), "{error}");
    ensure!(within(|| other.has_ended().ok().filter(|ended| *ended)).is_some());
    drained(&channel)?;
    end.barrier()
}

fn ip_link(up: bool) -> Result<()> {
    let interface = Verbs::ports()
        .into_iter()
        .find_map(|port| port.address?.interface);
    let interface = interface.unwrap_or_else(|| "eth0".into());
    let state = if up { "up" } else { "down" };
    let done = Command::new("ip")
        .args(["link", "set", &interface, state])
        .status()?;
    ensure!(done.success(), "ip link set {interface} {state}");
    Ok(())
}

fn link_is_back() -> Result<()> {
    within(|| {
        Verbs::ports()
            .iter()
            .any(|port| port.is_up && port.address.is_some())
            .then_some(())
    })
    .context("the link does not come back")
}

/// a takes its link down while nothing is sent: its device reports that by itself, and b's channel, which has nothing in
/// flight, goes on.
pub fn event(end: &mut End) -> Result<()> {
    let channel = end.channel(ChannelConfig::default())?;
    if end.role == Role::A {
        let start = Instant::now();
        ip_link(false)?;
        let error = loop {
            ensure!(start.elapsed() < LIMIT, "the device tells nothing");
            if let Err(error) = channel.serve(&mut |_| Ok(()), PAUSE) {
                break error.to_string();
            }
        };
        ensure!(error.contains("IBV_EVENT_PORT_ERR"), "{error}");
        report("port down, idle", end.role, &error, start);
        drained(&channel)?;
        ip_link(true)?;
        link_is_back()?;
        return end.barrier();
    }
    end.barrier()?;
    ensure!(!channel.progress(&mut |_| Ok(()))?.any, "something came");
    Ok(())
}

/// a takes its link down, and up again when both have noticed.
pub fn link(end: &mut End) -> Result<()> {
    let channel = end.channel(giving_up())?;
    if end.role == Role::A {
        std::thread::sleep(std::time::Duration::from_millis(300));
        ip_link(false)?;
    }
    let start_a = Instant::now();
    let error = until_error(&channel)?;
    report("link down", end.role, &error.to_string(), start_a);
    drained(&channel)?;
    if end.role == Role::A {
        // The peer notices by itself.
        std::thread::sleep(std::time::Duration::from_secs(2));
        ip_link(true)?;
    }
    link_is_back()?;
    end.barrier()?;
    let again = end.channel(ChannelConfig::default())?;
    let number = send(&again, b"back", None, &mut |_| Ok(()))?;
    ensure!(number == 1);
    while again.counts().frames_received == 0 {
        again.serve(&mut |_| Ok(()), LIMIT)?;
    }
    report("link up again", end.role, "a new channel stands", start_a);
    end.barrier()
}
