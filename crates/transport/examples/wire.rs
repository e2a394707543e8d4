//! Measures a link on loopback, beside bare TCP with as many connections in the same run:
//! `cargo run --release -p rgaps-transport --example wire -- [size] [lanes] [messages]`. Prints one line of JSON.
//!
//! Large: messages of `size` from memory into memory (buffers are reused, as a pool's are), four in flight. Small: 64 bytes back and
//! forth, answered by the thread that gets them; bare TCP does the same with `read` and `write`.
#![forbid(unsafe_code)]
use rgaps_connection::Security;
use rgaps_transport::machine::{BufferReply, ReceiveBuffer};
use rgaps_transport::{
    Description, Endpoint, EndpointConfig, FlowEvent, FlowId, FlowReceiver, LaneKey, Link,
    LinkConfig, LinkRuntime, LinkUser, Payload, Peer,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const CHUNK: usize = 1 << 20;
const SMALL: usize = 64;

fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let to = listener.accept().unwrap().0;
    for end in [&from, &to] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(LIMIT)).unwrap();
        end.set_write_timeout(Some(LIMIT)).unwrap();
    }
    (from, to)
}

/// Gbit/s of bare TCP: each connection carries its part of each message, from memory into memory.
fn raw_rate(size: usize, lanes: usize, messages: usize) -> f64 {
    let listener = TcpListener::bind(loopback()).unwrap();
    let part = size / lanes;
    // The memory was touched before, as the link's was.
    let pairs: Vec<_> = (0..lanes)
        .map(|_| (pair(&listener), vec![1u8; part], vec![2u8; part]))
        .collect();
    let mut threads = Vec::new();
    let started = Instant::now();
    for ((mut from, mut to), source, mut target) in pairs {
        threads.push(std::thread::spawn(move || {
            for _ in 0..messages {
                source
                    .chunks(CHUNK)
                    .for_each(|chunk| from.write_all(chunk).unwrap());
            }
            from.read_exact(&mut [0]).unwrap();
        }));
        threads.push(std::thread::spawn(move || {
            for _ in 0..messages {
                target
                    .chunks_mut(CHUNK)
                    .for_each(|chunk| to.read_exact(chunk).unwrap());
            }
            to.write_all(&[1]).unwrap();
        }));
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    (part * lanes * messages * 8) as f64 / started.elapsed().as_secs_f64() / 1e9
}

/// Half of a round trip of bare TCP, in microseconds.
fn raw_half_rtt(rounds: usize) -> Vec<f64> {
    let listener = TcpListener::bind(loopback()).unwrap();
    let (mut from, mut to) = pair(&listener);
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; SMALL];
        while to.read_exact(&mut bytes).is_ok() {
            to.write_all(&bytes).unwrap();
        }
    });
    let mut bytes = [7; SMALL];
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let started = Instant::now();
        from.write_all(&bytes).unwrap();
        from.read_exact(&mut bytes).unwrap();
        times.push(started.elapsed().as_secs_f64() * 5e5);
    }
    drop(from);
    echo.join().unwrap();
    times
}

/// A link's user whose receive buffers are reused.
struct Memory {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The link and flow on which it answers.
    link: OnceLock<(Link, FlowId)>,
    on_arrival: OnArrival,
    arrived: Mutex<Sender<u64>>,
    times: Mutex<Vec<Instant>>,
    acknowledged: Mutex<Sender<u64>>,
    answer: Arc<dyn Payload>,
}

/// What a user does with a message, in the lane's thread.
#[derive(Clone, Copy)]
enum OnArrival {
    Tell,
    Answer,
    /// Sends the next one, up to the last.
    Next(u64),
}

impl Memory {
    fn send(&self, sequence: u64) {
        let (link, flow) = self.link.get().unwrap();
        let answer = self.answer.clone();
        assert!(link.change(|link| link.send(*flow, sequence, answer, Description::default())));
    }
}

struct Buffer {
    bytes: Option<Vec<u8>>,
    owner: Arc<Memory>,
}

struct Owning(Arc<Memory>);

impl ReceiveBuffer for Buffer {
    fn memory(&mut self) -> &mut [u8] {
        self.bytes.as_deref_mut().unwrap()
    }

    fn deliver(mut self: Box<Self>, sequence: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        let bytes = self.bytes.take().unwrap();
        self.owner.free.lock().unwrap().push(bytes);
        match self.owner.on_arrival {
            OnArrival::Tell => self.owner.arrived.lock().unwrap().send(sequence).unwrap(),
            OnArrival::Answer => self.owner.send(sequence),
            OnArrival::Next(last) => {
                self.owner.times.lock().unwrap().push(Instant::now());
                match sequence == last {
                    true => self.owner.arrived.lock().unwrap().send(sequence).unwrap(),
                    false => self.owner.send(sequence + 1),
                }
            }
        }
        Ok(())
    }
}

impl FlowReceiver for Owning {
    fn buffer(&self, _: FlowId, _: u64, _: &[u8], bytes: u64) -> BufferReply {
        let mut free = self.0.free.lock().unwrap();
        let found = free.iter().position(|buffer| buffer.len() as u64 == bytes);
        match found {
            Some(at) => BufferReply::Buffer(Box::new(Buffer {
                bytes: Some(free.swap_remove(at)),
                owner: Arc::clone(&self.0),
            })),
            None => BufferReply::Full,
        }
    }
}

impl LinkUser for Owning {
    fn flow_event(&self, event: FlowEvent, _: &LinkRuntime) {
        if let FlowEvent::Acknowledged { sequence, .. } = event {
            let _ = self.0.acknowledged.lock().unwrap().send(sequence);
        }
    }
}

struct End {
    _endpoint: Endpoint,
    link: Link,
    flow: FlowId,
    memory: Arc<Memory>,
    arrived: Receiver<u64>,
    acknowledged: Receiver<u64>,
}

fn ends(lanes: usize, buffers: &[usize], at_a: OnArrival, at_b: OnArrival) -> (End, End) {
    let endpoint = |incarnation| {
        Endpoint::new(EndpointConfig {
            incarnation,
            realm: 1,
            listen: Some(loopback()),
            security: Security::Loopback,
            rdma: None,
        })
        .unwrap()
    };
    let (a, b) = (endpoint(1), endpoint(2));
    let address = b.local_addr().unwrap();
    let end = |endpoint: Endpoint, to, dial: Vec<SocketAddr>, on_arrival| {
        let (tell, arrived) = channel();
        let (tell_acknowledged, acknowledged) = channel();
        let free = buffers.iter().map(|bytes| vec![1; *bytes]).collect();
        let memory = Arc::new(Memory {
            free: Arc::new(Mutex::new(free)),
            link: OnceLock::new(),
            on_arrival,
            arrived: Mutex::new(tell),
            times: Mutex::default(),
            acknowledged: Mutex::new(tell_acknowledged),
            answer: Arc::new(vec![3; SMALL]),
        });
        let config = LinkConfig {
            lanes,
            ..LinkConfig::default()
        };
        let peer = Peer {
            incarnation: to,
            key: LaneKey([5; 32]),
            dial,
        };
        let owner = Arc::new(Owning(Arc::clone(&memory)));
        let link = endpoint
            .link("peer", config, peer, (owner.clone(), owner))
            .unwrap();
        let flow = link
            .change(|link| link.open(0, Description::default()))
            .unwrap();
        assert!(memory.link.set((link.clone(), flow)).is_ok());
        End {
            _endpoint: endpoint,
            link,
            flow,
            memory,
            arrived,
            acknowledged,
        }
    };
    (end(a, 2, vec![address], at_a), end(b, 1, vec![], at_b))
}

/// Gbit/s of a link, and bytes on the wire for each byte of messages.
fn link_rate(size: usize, lanes: usize, messages: usize) -> (f64, f64) {
    let (a, b) = ends(lanes, &[size; 4], OnArrival::Tell, OnArrival::Tell);
    let payload: Arc<dyn Payload> = Arc::new(vec![1u8; size]);
    let wait = |on: &Receiver<u64>| on.recv_timeout(LIMIT).expect("a message within the limit");
    let send = |sequence| {
        let description = Description::default();
        let sent = a
            .link
            .change(|link| link.send(a.flow, sequence, payload.clone(), description));
        assert!(sent);
    };
    // Warm up: lanes open, and memory is touched.
    (0..4).for_each(&send);
    (0..4).for_each(|_| {
        wait(&a.acknowledged);
    });
    let until = Instant::now() + LIMIT;
    while a.link.status().lanes.len() < lanes {
        assert!(Instant::now() < until, "the lanes are not open");
        std::thread::sleep(Duration::from_millis(1));
    }
    let carried = |a: &End| {
        a.link
            .status()
            .lanes
            .iter()
            .map(|lane| lane.bytes_out)
            .sum::<u64>()
    };
    let before = carried(&a);
    let started = Instant::now();
    for sequence in 0..messages as u64 {
        send(sequence + 4);
        if sequence >= 3 {
            wait(&a.acknowledged);
        }
    }
    (0..3).for_each(|_| {
        wait(&a.acknowledged);
    });
    let seconds = started.elapsed().as_secs_f64();
    let wire = (carried(&a) - before) as f64 / (size * messages) as f64;
    drop(b);
    ((size * messages * 8) as f64 / seconds / 1e9, wire)
}

/// Half of a round trip of a link, in microseconds: both ends answer in the thread that got the message.
fn link_half_rtt(rounds: usize) -> Vec<f64> {
    let (a, b) = ends(
        1,
        &[SMALL; 64],
        OnArrival::Next(rounds as u64 + 100),
        OnArrival::Answer,
    );
    a.memory.send(0);
    a.arrived
        .recv_timeout(LIMIT)
        .expect("all rounds within the limit");
    drop(b);
    let times = a.memory.times.lock().unwrap();
    let pairs = times.windows(2).skip(100);
    pairs
        .map(|pair| (pair[1] - pair[0]).as_secs_f64() * 5e5)
        .collect()
}

fn quantile(times: &mut [f64], of: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * of) as usize]
}

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|arg| arg.parse().expect("a number"))
        .collect();
    let argument = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let (size, lanes) = (argument(0, 64 << 20), argument(1, 4));
    let messages = argument(2, 40).max(4);
    let (mut raw, mut link, mut wire) = (0.0f64, 0.0f64, 0.0f64);
    let (mut raw_us, mut link_us) = (Vec::new(), Vec::new());
    // Alternate, so that changes of the machine's speed affect both; the best rate of each counts.
    for _ in 0..5 {
        raw = raw.max(raw_rate(size, lanes, messages));
        let (rate, on_wire) = link_rate(size, lanes, messages);
        (link, wire) = (link.max(rate), wire.max(on_wire));
        raw_us.append(&mut raw_half_rtt(2000));
        link_us.append(&mut link_half_rtt(2000));
    }
    let (floor, p50, p99) = (
        quantile(&mut raw_us, 0.5),
        quantile(&mut link_us, 0.5),
        quantile(&mut link_us, 0.99),
    );
    println!(
        "{{\"size\":{size},\"lanes\":{lanes},\"raw_tcp_gbit_s\":{raw:.1},\"gbit_s\":{link:.1},\"of_raw\":{:.3},\"wire_of_payload\":{wire:.5},\"raw_tcp_half_rtt_us\":{floor:.2},\"p50_us\":{p50:.2},\"p99_us\":{p99:.2},\"of_floor\":{:.2}}}",
        link / raw, p50 / floor
    );
}
