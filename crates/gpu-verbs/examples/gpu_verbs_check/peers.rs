//! `send` and `receive`: two processes on one or two hosts, whose proxies use TCP or RDMA verbs. A kernel of one sends messages
//! to a kernel of the other. With `--topics yes` one kernel publishes in a device topic, and the other receives from one.

use crate::jobs::{Board, Jobs, Task};
use crate::links::LinkSide;
use crate::side::{Side, Sizes, LIMIT_S};
use crate::{kernels, Options};
use anyhow::{Context, Result};
use rgaps_gpu_verbs::{Buffer, Depths, VerbsCarrier};
use rgaps_layout::Domain;
use rgaps_verbs::{Access, Device, Verbs};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

const DEPTHS: Depths = Depths {
    sends_log2: 6,
    receives_log2: 4,
};
const SLOTS: u32 = 16;

/// The connection over which both ends exchange buffers, and the carrier's.
struct Connections {
    control: TcpStream,
    carrier: TcpStream,
}

/// Runs the end that listens and receives.
pub fn receive(jobs: &Jobs, options: &Options) -> Result<()> {
    let address = options.text("listen").context("--listen is missing")?;
    let listener = TcpListener::bind(address)?;
    eprintln!("listening at {}", listener.local_addr()?);
    let (control, carrier) = (listener.accept()?.0, listener.accept()?.0);
    run(
        jobs,
        options,
        Task::Receive,
        Connections { control, carrier },
    )
}

/// Runs the end that connects and sends.
pub fn send(jobs: &Jobs, options: &Options) -> Result<()> {
    let address = options.text("peer").context("--peer is missing")?;
    let (control, carrier) = (TcpStream::connect(address)?, TcpStream::connect(address)?);
    run(jobs, options, Task::Send, Connections { control, carrier })
}

fn run(jobs: &Jobs, options: &Options, task: Task, connections: Connections) -> Result<()> {
    let device = options.text("device").map(open).transpose()?;
    let messages = options.number("messages", 2000)?;
    let sizes = Sizes {
        slots: SLOTS,
        slot_bytes: options.number("bytes", 4096)?.next_multiple_of(8) as u32,
        ticks_max: options.number("limit-s", LIMIT_S)? * 1_000_000_000,
    };
    let carried = match options.text("topics") {
        Some(_) => topics(jobs, task, messages, sizes, device.as_ref(), connections)?,
        None => works(jobs, task, messages, sizes, device.as_ref(), connections)?,
    };
    let report = json!({
        "back_end": "proxy",
        "carrier": device.map_or("tcp".to_owned(), |_| "verbs".to_owned()),
        "kernels": if jobs.is_cuda { "cuda" } else { "host" },
        "topics": options.text("topics").is_some(),
        "messages": carried.messages,
        "lost": messages - carried.messages,
        "corrupt": carried.corrupt,
    });
    println!("{report}");
    Ok(())
}

/// Opens an RDMA device by its name.
fn open(name: &str) -> Result<Arc<Device>> {
    let port = Verbs::ports().into_iter().find(|port| port.device == name);
    let port = port.with_context(|| format!("there is no RDMA device {name}"))?;
    Ok(Verbs::load()?.open(&port)?)
}

/// Runs this end without topics: its kernel posts works, and immediates.
fn works(
    jobs: &Jobs,
    task: Task,
    messages: u64,
    sizes: Sizes,
    device: Option<&Arc<Device>>,
    connections: Connections,
) -> Result<Board> {
    let Connections {
        mut control,
        carrier,
    } = connections;
    let mut side = Side::new(kernels(jobs)?, Domain::Host, DEPTHS, sizes)?;
    let remote = match device {
        None => {
            side.pair.connect_tcp(carrier)?;
            swap(&mut control, side.buffer())?
        }
        Some(device) => {
            let mut carrier = VerbsCarrier::new(device, DEPTHS)?;
            let (address, key) = carrier.register(&side.registration, Access::RemoteWrite)?;
            let mine = Buffer {
                address,
                key: key.context("memory that the peer may write has a key")?,
                padding: 0,
            };
            let remote = swap(&mut control, mine)?;
            carrier.meet(&mut control)?;
            side.pair.connect_verbs(carrier)?;
            remote
        }
    };
    jobs.run(&[side.job(task, messages, remote)], 1)?;
    side.check(&format!("{task:?}"), messages)?;
    // Each side's card must answer the peer's last works, so both wait for each other before they end.
    swap(&mut control, Buffer::default())?;
    Ok(side.board())
}

/// Runs this end with device topics and a link between them.
fn topics(
    jobs: &Jobs,
    task: Task,
    messages: u64,
    sizes: Sizes,
    device: Option<&Arc<Device>>,
    connections: Connections,
) -> Result<Board> {
    let Connections {
        mut control,
        carrier,
    } = connections;
    let side = LinkSide::new(kernels(jobs)?, task, sizes, device, carrier)?;
    jobs.run(&side.jobs(messages), 1)?;
    let found = side.check(messages)?;
    swap(&mut control, Buffer::default())?;
    Ok(found)
}

/// Exchanges buffers with the peer.
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
