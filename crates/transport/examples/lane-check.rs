//! Measures one RDMA lane. `lane-check ROLE ADDRESS [POLL_US]`: between two machines; role `b` listens on its ADDRESS, `a` dials it.
//! `lane-check local`: both ends in this process, over the in-process network. Prints lines of JSON: for small messages back and forth,
//! with lanes that poll for POLL_US or sleep; without POLL_US also for streams of large messages. All messages are in registered memory,
//! as those of a host's pool are.

use rgaps_connection::Security;
use rgaps_transport::machine::{BufferReply, ReceiveBuffer};
use rgaps_transport::*;
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::{Access, Allocation, ChannelConfig, Device, Memory, Verbs};
use std::error::Error;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

const PORT: u16 = 7481;
/// The limit of every wait.
const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 1000;
const STREAM_BYTES: usize = 64 << 10;
/// The first messages of a stream are measured apart: an emulator translates a program's code when it first runs.
const STREAM_FIRST: u64 = 400;
const STREAM_MESSAGES: u64 = 1000;
/// How many messages have memory at once, in each direction.
const SLOTS: usize = 512;

const SMALL: u64 = 1;
const LARGE: u64 = 2;

/// A message's bytes, or its receive buffer.
#[derive(Clone)]
struct Slot {
    memory: Arc<Allocation>,
    at: usize,
    bytes: usize,
    owner: Arc<Here>,
    topic: u64,
}

impl Payload for Slot {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= self.bytes);
        // SAFETY: `Here::slot` took the slot inside the allocation, which `self` keeps, and the assertion keeps the range inside the slot.
        // It is in the half for sent messages, which nobody writes.
        unsafe { std::slice::from_raw_parts(self.memory.start().add(self.at + from), to - from) }
    }
}

impl ReceiveBuffer for Slot {
    fn memory(&mut self) -> &mut [u8] {
        // SAFETY: `Here::slot` took the slot inside the allocation, which `self` keeps, in the half for messages that arrive. It gives
        // out slots in turn, and fewer messages are in flight than there are slots, so no other buffer has this one.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(self.at), self.bytes) }
    }

    fn deliver(self: Box<Self>, sequence: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        self.owner.came(self.topic, sequence);
        Ok(())
    }
}

/// A count that one thread may wait for. The thread that reaches the wanted count wakes it.
struct Count {
    so_far: AtomicU64,
    wanted: AtomicU64,
    waits: Thread,
}

impl Count {
    /// A count that the calling thread may wait for.
    fn new() -> Self {
        Self {
            so_far: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            waits: std::thread::current(),
        }
    }

    fn add(&self) {
        if self.so_far.fetch_add(1, SeqCst) + 1 == self.wanted.load(SeqCst) {
            self.waits.unpark();
        }
    }

    fn until(&self, what: &str, wanted: u64) -> Result<(), Box<dyn Error>> {
        self.wanted.store(wanted, SeqCst);
        let start = Instant::now();
        while self.so_far.load(SeqCst) < wanted {
            if start.elapsed() > LIMIT {
                return Err(format!("waited {LIMIT:?} for {what}").into());
            }
            std::thread::park_timeout(LIMIT);
        }
        Ok(())
    }
}

/// The state of one end.
struct Here {
    is_a: bool,
    /// The first half for messages that are sent, the second for those that arrive.
    memory: Arc<Allocation>,
    next: AtomicU64,
    /// The link, and its flows of small and of large messages.
    link: OnceLock<(Link, [FlowId; 2])>,
    came: Count,
    acknowledged: Count,
    times: Mutex<(Instant, Vec<f64>)>,
    me: std::sync::Weak<Here>,
}

impl Here {
    fn slot(&self, is_sent: bool, topic: u64, bytes: usize) -> Slot {
        let at = self.next.fetch_add(1, SeqCst) as usize % SLOTS;
        let half = if is_sent { 0 } else { SLOTS };
        Slot {
            memory: self.memory.clone(),
            at: (half + at) * STREAM_BYTES,
            bytes,
            owner: self.me.upgrade().expect("it is there until the end"),
            topic,
        }
    }

    fn send(&self, topic: u64, sequence: u64, bytes: usize) -> bool {
        let payload: Arc<dyn Payload> = Arc::new(self.slot(true, topic, bytes));
        let (link, flows) = self.link.get().expect("it was made");
        let flow = flows[usize::from(topic == LARGE)];
        link.change(|link| link.send(flow, sequence, payload, Description::default()))
    }

    /// A message has arrived. A small one is answered from the lane's own thread.
    fn came(&self, topic: u64, sequence: u64) {
        if topic != SMALL {
            return self.came.add();
        }
        if self.is_a {
            let mut times = self.times.lock().expect("nobody panics");
            let us = times.0.elapsed().as_secs_f64() * 1e6 / 2.0;
            times.1.push(us);
            times.0 = Instant::now();
            drop(times);
            if sequence + 1 < ROUNDS {
                self.send(SMALL, sequence + 1, 8);
            }
        } else {
            self.send(SMALL, sequence, 8);
        }
        self.came.add();
    }
}

struct Ears(Arc<Here>);

impl FlowReceiver for Ears {
    fn buffer(&self, _: FlowId, _: u64, _: &[u8], bytes: u64) -> BufferReply {
        let topic = if bytes == STREAM_BYTES as u64 {
            LARGE
        } else {
            SMALL
        };
        BufferReply::Buffer(Box::new(self.0.slot(false, topic, bytes as usize)))
    }
}

impl LinkUser for Ears {
    fn flow_event(&self, event: FlowEvent, _: &LinkRuntime) {
        if let FlowEvent::Acknowledged { flow, .. } = event {
            let large = self.0.link.get().map(|(_, flows)| flows[1]);
            if large == Some(flow) {
                self.0.acknowledged.add();
            }
        }
    }
}

fn until(what: &str, is: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    while !is() {
        if start.elapsed() > LIMIT {
            return Err(format!("waited {LIMIT:?} for {what}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The voluntary context switches of all threads.
fn voluntary_switches() -> Result<u64, Box<dyn Error>> {
    let mut all = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        // A thread may have ended.
        let Ok(status) = std::fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all += line.ok_or("no such line")?.trim().parse::<u64>()?;
    }
    Ok(all)
}

fn measure(here: &Arc<Here>, polls: Duration) -> Result<(), Box<dyn Error>> {
    latency(here, polls)?;
    if !polls.is_zero() {
        return Ok(());
    }
    stream(here, 0..STREAM_FIRST, "lane_first_64_kib_mib_s")?;
    let counted = STREAM_FIRST..STREAM_FIRST + STREAM_MESSAGES;
    stream(here, counted, "lane_stream_64_kib_mib_s")
}

fn latency(here: &Arc<Here>, polls: Duration) -> Result<(), Box<dyn Error>> {
    let switches = voluntary_switches()?;
    here.times.lock().expect("nobody panics").0 = Instant::now();
    here.send(SMALL, 0, 8);
    here.came.until("the small ones", ROUNDS)?;
    let switches = voluntary_switches()? - switches;
    let mut times = here.times.lock().expect("nobody panics").1.clone();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[(times.len() as f64 * part) as usize];
    println!(
        "{{\"waiting\": \"{}\", \"lane_latency_8_b_us\": {{\"p50\": {}, \"p99\": {}}}, \"voluntary_switches_per_1000\": {}}}",
        if polls.is_zero() { "slept" } else { "polled" },
        at(0.5),
        at(0.99),
        switches * 1000 / ROUNDS
    );
    Ok(())
}

fn stream(here: &Here, messages: Range<u64>, figure: &str) -> Result<(), Box<dyn Error>> {
    let (link, _) = here.link.get().expect("it was made");
    let before = link.status().counts.channels;
    let start = Instant::now();
    for sequence in messages.clone() {
        // Send no more messages than have memory.
        let acknowledged = here.acknowledged.so_far.load(SeqCst);
        if sequence - acknowledged >= SLOTS as u64 / 2 {
            let wanted = sequence - SLOTS as u64 / 4;
            here.acknowledged.until("places", wanted)?;
        }
        if !here.send(LARGE, sequence, STREAM_BYTES) {
            return Err("the link is full".into());
        }
    }
    let all = messages.end;
    here.acknowledged.until("the large ones", all)?;
    let mib = ((messages.end - messages.start) as usize * STREAM_BYTES) as f64 / f64::from(1 << 20);
    let mib_s = mib / start.elapsed().as_secs_f64();
    let counts = link.status().counts.channels;
    println!(
        "{{\"{figure}\": {mib_s}, \"direct_bytes\": {}, \"ring_bytes\": {}, \"works\": {}, \"doorbells\": {}}}",
        counts.direct_bytes_sent - before.direct_bytes_sent,
        counts.bytes_sent - before.bytes_sent,
        counts.works - before.works,
        counts.doorbells - before.doorbells
    );
    Ok(())
}

/// Makes one end with its link: `a` dials, `b` listens.
fn end(
    is_a: bool,
    device: Arc<Device>,
    listen: Option<SocketAddr>,
    dial: Option<SocketAddr>,
    polls: Duration,
) -> Result<(Arc<Here>, Endpoint, Registered), Box<dyn Error>> {
    let incarnation = if is_a { 1 } else { 2 };
    let endpoint = Endpoint::new(EndpointConfig {
        incarnation,
        realm: 1,
        listen,
        security: Security::Insecure,
        rdma: Some(Rdma {
            rails: vec![device],
            trusted_fabric: true,
            channel: ChannelConfig {
                spin: polls,
                ..ChannelConfig::default()
            },
        }),
    })?;
    let memory = Allocation::new(2 * SLOTS * STREAM_BYTES);
    let known: Arc<dyn Memory> = memory.clone();
    let registered = endpoint.registrar().register(&known, Access::RemoteWrite)?;
    let here = Arc::new_cyclic(|me| Here {
        is_a,
        memory,
        next: AtomicU64::new(0),
        link: OnceLock::new(),
        came: Count::new(),
        acknowledged: Count::new(),
        times: Mutex::new((Instant::now(), Vec::new())),
        me: me.clone(),
    });
    let config = LinkConfig {
        lanes: 1,
        rdma: RdmaMode::Require,
        ..LinkConfig::default()
    };
    let peer = Peer {
        incarnation: 0,
        key: LaneKey([7; 32]),
        dial: dial.into_iter().collect(),
    };
    let ears = Arc::new(Ears(here.clone()));
    let link = endpoint.link("peer", config, peer, (ears.clone(), ears))?;
    let open = || {
        let flow = link.change(|link| link.open(0, Description::default()));
        flow.ok_or("no flow")
    };
    let flows = [open()?, open()?];
    here.link.get_or_init(|| (link, flows));
    Ok((here, endpoint, registered))
}

fn lanes(here: &Here) -> usize {
    here.link
        .get()
        .map_or(0, |(link, _)| link.status().lanes.len())
}

fn local() -> Result<(), Box<dyn Error>> {
    let network = SoftwareNetwork::new(Faults::default());
    let listen = Some("127.0.0.1:0".parse()?);
    let polls = Duration::ZERO;
    let b = end(false, network.device("b")?, listen, None, polls)?;
    let a = end(true, network.device("a")?, None, b.1.local_addr(), polls)?;
    until("a lane", || lanes(&a.0) > 0 && lanes(&b.0) > 0)?;
    measure(&a.0, polls)
}

fn between_machines(role: &str, address: &str, polls: Duration) -> Result<(), Box<dyn Error>> {
    let is_a = role == "a";
    let address = SocketAddr::new(address.parse()?, PORT);
    let verbs = Verbs::load()?;
    let ports = Verbs::ports();
    let port = ports
        .iter()
        .find(|port| port.is_up && port.address.is_some());
    let device = verbs.open(port.ok_or("no port can be used")?)?;
    let (listen, dial) = (
        Some(address).filter(|_| !is_a),
        Some(address).filter(|_| is_a),
    );
    let (here, _endpoint, _registered) = end(is_a, device, listen, dial, polls)?;
    until("a lane", || lanes(&here) > 0)?;
    if is_a {
        return measure(&here, polls);
    }
    let streams = if polls.is_zero() {
        STREAM_FIRST + STREAM_MESSAGES
    } else {
        0
    };
    here.came.until("all messages", ROUNDS + streams)?;
    until("their end", || lanes(&here) == 0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["local"] => local()?,
        [role @ ("a" | "b"), address] => between_machines(role, address, Duration::ZERO)?,
        [role @ ("a" | "b"), address, us] => {
            between_machines(role, address, Duration::from_micros(us.parse()?))?
        }
        _ => return Err("lane-check a|b ADDRESS [POLL_US], or lane-check local".into()),
    }
    // Everything is printed: end at once, without closing the link.
    std::process::exit(0);
}
