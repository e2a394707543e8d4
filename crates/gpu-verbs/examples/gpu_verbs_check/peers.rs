//! Two processes, also of two hosts: one's kernel sends messages to the other's through proxies over TCP.

use crate::jobs::{Buffer, Jobs, Task};
use crate::side::{Side, Sizes};
use crate::{kernels, Options};
use anyhow::{Context, Result};
use rgaps_gpu_verbs::Depths;
use rgaps_layout::Domain;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const DEPTHS: Depths = Depths {
    sends_log2: 6,
    receives_log2: 4,
};

/// The end that waits for the other, and receives.
pub fn receive(jobs: &Jobs, options: &Options) -> Result<()> {
    let address = options.text("listen").context("--listen is missing")?;
    let listener = TcpListener::bind(address)?;
    eprintln!("listening at {}", listener.local_addr()?);
    let (control, lane) = (listener.accept()?.0, listener.accept()?.0);
    exchange(jobs, options, Task::Receive, control, lane)
}

/// The end that connects, and sends.
pub fn send(jobs: &Jobs, options: &Options) -> Result<()> {
    let address = options.text("peer").context("--peer is missing")?;
    let (control, lane) = (TcpStream::connect(address)?, TcpStream::connect(address)?);
    exchange(jobs, options, Task::Send, control, lane)
}

fn exchange(
    jobs: &Jobs,
    options: &Options,
    task: Task,
    mut control: TcpStream,
    lane: TcpStream,
) -> Result<()> {
    let messages = options.number("messages", 2000)?;
    let sizes = Sizes {
        slots: 16,
        slot_bytes: options.number("bytes", 4096)?.next_multiple_of(8) as u32,
        ticks_max: options.number("limit-s", 20)? * 1_000_000_000,
    };
    let mut side = Side::new(kernels(jobs)?, Domain::Host, DEPTHS, sizes)?;
    let remote = swap(&mut control, side.buffer())?;
    side.pair.connect_tcp(lane)?;
    jobs.run(&[side.job(task, messages, remote)], 1)?;
    side.check(
        if task == Task::Send {
            "sender"
        } else {
            "receiver"
        },
        messages,
    )?;
    // The peer's last works want replies, so nobody leaves before the other is done.
    swap(&mut control, Buffer::default())?;
    let board = side.board();
    let report = json!({
        "back_end": "proxy",
        "kernels": if jobs.is_cuda { "cuda" } else { "host" },
        "messages": board.messages,
        "lost": messages - board.messages,
        "corrupt": board.corrupt,
    });
    println!("{report}");
    Ok(())
}

/// Gives the peer where this side's memory is, and gets where the peer's is.
fn swap(stream: &mut TcpStream, mine: Buffer) -> Result<Buffer> {
    let mut words = [0; 16];
    words[..8].copy_from_slice(&mine.address.to_le_bytes());
    words[8..12].copy_from_slice(&mine.key.to_le_bytes());
    stream.write_all(&words)?;
    stream.read_exact(&mut words)?;
    Ok(Buffer {
        address: u64::from_le_bytes(words[..8].try_into()?),
        key: u32::from_le_bytes(words[8..12].try_into()?),
        padding: 0,
    })
}
