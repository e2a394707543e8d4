//! Measures a link between two hosts over TCP or RDMA. Run `lane listen IP DEVICE tcp|rdma BYTES COUNT [LANES]` on one host, and the
//! same with `dial` and the same IP on the other, which prints a line of JSON. Messages of up to 4096 bytes go back and forth, one at a
//! time; larger ones go in one direction, 16 in flight. `SPIN_US` is how long lanes poll.
use rgaps_connection::Security;
use rgaps_transport::machine::{BufferReply, ReceiveBuffer};
use rgaps_transport::{
    Description, Endpoint, EndpointConfig, FlowEvent, FlowId, FlowReceiver, LaneKey, LaneKind,
    Link, LinkConfig, LinkRuntime, LinkUser, Payload, Peer, Rdma, RdmaMode, Registered,
};
use rgaps_verbs::{Access, Allocation, ChannelConfig, Memory, Verbs};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

const PORT: u16 = 7913;
const LIMIT: Duration = Duration::from_secs(120);
/// Messages up to this size go back and forth.
const SMALL_MAX: usize = 4096;
/// How many large messages are in flight at once.
const AT_ONCE: usize = 16;

/// A message in registered memory.
struct Buffer(Arc<Allocation>);

impl Payload for Buffer {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= self.0.bytes());
        // SAFETY: the assertion keeps the range inside the allocation, which `self` keeps. Only this payload has the allocation, and
        // nobody writes it.
        unsafe { std::slice::from_raw_parts(self.0.start().add(from), to - from) }
    }
}

struct Ends {
    dials: bool,
    small: bool,
    count: u64,
    link: OnceLock<(Link, FlowId)>,
    free: Mutex<Vec<Arc<Allocation>>>,
    payload: Arc<dyn Payload>,
    times: Mutex<Vec<Instant>>,
    done: AtomicU64,
    changed: (Mutex<()>, Condvar),
}

impl Ends {
    fn send(&self, sequence: u64) {
        let (link, flow) = self.link.get().expect("set at the start");
        let (none, payload) = (Description::default(), self.payload.clone());
        let sent = link.change(|link| link.send(*flow, sequence, payload, none));
        assert!(sent);
    }

    fn arrived(&self, sequence: u64) {
        if self.small && self.dials {
            self.times.lock().unwrap().push(Instant::now());
        }
        if self.small && (!self.dials || sequence + 1 < self.count) {
            self.send(sequence + u64::from(self.dials));
        }
        self.tell();
    }

    fn tell(&self) {
        self.done.fetch_add(1, SeqCst);
        drop(self.changed.0.lock().unwrap());
        self.changed.1.notify_all();
    }

    fn wait(&self, count: u64) {
        let until = Instant::now() + LIMIT;
        let mut guard = self.changed.0.lock().unwrap();
        while self.done.load(SeqCst) < count {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited {LIMIT:?} for message {count}");
            guard = self.changed.1.wait_timeout(guard, left).unwrap().0;
        }
    }
}

struct Landing {
    memory: Option<Arc<Allocation>>,
    ends: Arc<Ends>,
}

impl ReceiveBuffer for Landing {
    fn memory(&mut self) -> &mut [u8] {
        let memory = self.memory.as_ref().expect("not delivered");
        // SAFETY: `self` keeps the allocation. `buffer` took it out of `free`, and `deliver` puts it back, so no other buffer has it.
        unsafe { std::slice::from_raw_parts_mut(memory.start(), memory.bytes()) }
    }

    fn deliver(mut self: Box<Self>, sequence: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        self.ends.free.lock().unwrap().extend(self.memory.take());
        self.ends.arrived(sequence);
        Ok(())
    }
}

struct Owning(Arc<Ends>);

impl FlowReceiver for Owning {
    fn buffer(&self, _: FlowId, _: u64, _: &[u8], _: u64) -> BufferReply {
        match self.0.free.lock().unwrap().pop() {
            None => BufferReply::Full,
            memory => BufferReply::Buffer(Box::new(Landing {
                memory,
                ends: Arc::clone(&self.0),
            })),
        }
    }
}

impl LinkUser for Owning {
    fn flow_event(&self, event: FlowEvent, _: &LinkRuntime) {
        if matches!(event, FlowEvent::Acknowledged { .. }) && self.0.dials && !self.0.small {
            self.0.tell();
        }
    }
}

fn rdma(device: &str, spin: Duration) -> Rdma {
    let port = Verbs::ports()
        .into_iter()
        .find(|port| port.device == device);
    let port = port.unwrap_or_else(|| panic!("no device {device}"));
    let opened = Verbs::load().and_then(|verbs| verbs.open(&port));
    Rdma {
        rails: vec![opened.expect("a device that works")],
        trusted_fabric: true,
        channel: ChannelConfig {
            spin,
            ..ChannelConfig::default()
        },
    }
}

/// How often this process's threads have slept (voluntary context switches).
fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line?.trim().parse::<u64>().ok()
    };
    tasks.filter_map(of).sum()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, ip, device, transport, bytes, count, ..] = &arguments[..] else {
        panic!("lane listen|dial IP DEVICE tcp|rdma BYTES COUNT [LANES]");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (bytes, count) = (number(bytes) as usize, number(count));
    let lanes = arguments.get(6).map_or(1, number) as usize;
    let spin = std::env::var("SPIN_US").map_or(50, |text| number(&text));
    let spin = Duration::from_micros(spin);
    let (dials, is_rdma) = (role == "dial", transport == "rdma");
    let address = SocketAddr::new(ip.parse().expect("an address"), PORT);
    let incarnation = 1 + u64::from(dials);
    let endpoint = Endpoint::new(EndpointConfig {
        incarnation,
        realm: 1,
        listen: (!dials).then_some(address),
        security: Security::Insecure,
        rdma: is_rdma.then(|| rdma(device, spin)),
    });
    let endpoint = endpoint.expect("an endpoint");
    let memory: Vec<Arc<Allocation>> = (0..=AT_ONCE).map(|_| Allocation::new(bytes)).collect();
    let known = |memory: &Arc<Allocation>| {
        let memory: Arc<dyn Memory> = memory.clone();
        endpoint
            .registrar()
            .register(&memory, Access::RemoteWrite)
            .expect("memory is registered")
    };
    let _registered: Vec<Registered> = memory.iter().filter(|_| is_rdma).map(known).collect();
    let ends = Arc::new(Ends {
        dials,
        small: bytes <= SMALL_MAX,
        count,
        link: OnceLock::new(),
        payload: Arc::new(Buffer(Arc::clone(&memory[AT_ONCE]))),
        free: Mutex::new(memory[..AT_ONCE].to_vec()),
        times: Mutex::default(),
        done: AtomicU64::new(0),
        changed: Default::default(),
    });
    let config = LinkConfig {
        lanes,
        spin,
        rdma: if is_rdma {
            RdmaMode::Require
        } else {
            RdmaMode::No
        },
        ..LinkConfig::default()
    };
    let peer = Peer {
        incarnation: 0,
        key: LaneKey([6; 32]),
        dial: if dials { vec![address] } else { vec![] },
    };
    let owner = Arc::new(Owning(Arc::clone(&ends)));
    let link = endpoint
        .link("peer", config, peer, (owner.clone(), owner))
        .expect("a link");
    let flow = link
        .change(|link| link.open(0, Description::default()))
        .expect("a flow");
    assert!(ends.link.set((link.clone(), flow)).is_ok());
    let is_lane = |lane: &rgaps_transport::LaneStatus| (lane.kind == LaneKind::Rdma) == is_rdma;
    let until = Instant::now() + LIMIT;
    while link
        .status()
        .lanes
        .iter()
        .filter(|lane| is_lane(lane))
        .count()
        < lanes
    {
        assert!(Instant::now() < until, "no lanes: {:?}", link.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = switches();
    if !dials {
        ends.wait(count);
        // Let the last answer leave before the link closes.
        std::thread::sleep(Duration::from_millis(200));
        return;
    }
    let started = Instant::now();
    if ends.small {
        ends.send(0);
        ends.wait(count);
    } else {
        for sequence in 0..count {
            ends.wait((sequence + 1).saturating_sub(AT_ONCE as u64));
            ends.send(sequence);
        }
        ends.wait(count);
    }
    let seconds = started.elapsed().as_secs_f64();
    let switched = (switches() - before) as f64 * 1000.0 / count as f64;
    let times = ends.times.lock().unwrap();
    let mut halves: Vec<f64> = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64() * 5e5)
        .collect();
    halves.sort_by(f64::total_cmp);
    let quantile = |of: f64| {
        let at = (halves.len().max(1) - 1) as f64 * of;
        halves.get(at as usize).copied().unwrap_or(0.0)
    };
    println!(
        "{{\"transport\":\"{transport}\",\"bytes\":{bytes},\"count\":{count},\"lanes\":{lanes},\"spin_us\":{},\"mb_s\":{:.1},\"p50_us\":{:.1},\"p99_us\":{:.1},\"switches_per_1000\":{switched:.1}}}",
        spin.as_micros(),
        (bytes as u64 * count) as f64 / seconds / 1e6,
        quantile(0.5),
        quantile(0.99)
    );
    let channels = link.status().lanes;
    eprintln!(
        "{:?}",
        channels.iter().map(|lane| lane.channel).collect::<Vec<_>>()
    );
}
