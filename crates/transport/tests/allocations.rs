//! Counts the allocations for a message over RDMA lanes: none by the lane and its channel, which `rgaps_verbs` tests alone; none for a
//! small message whose turn it is; for a large one those for the state of its receive buffer.
#[allow(dead_code, reason = "every test program uses a part of it")]
mod lanes {
    pub mod hosts;
    pub mod rdma;
}
use lanes::hosts::{peer, LIMIT};
use lanes::rdma::Fabric;
use rgaps_testkit::{allocations, CountingAllocator};
use rgaps_transport::machine::frame::Description;
use rgaps_transport::machine::{BufferReply, ReceiveBuffer};
use rgaps_transport::{FlowEvent, FlowId, FlowReceiver, Link, LinkConfig, LinkRuntime, LinkUser};
use rgaps_transport::{Payload, Registered};
use rgaps_verbs::in_process::Faults;
use rgaps_verbs::{Access, Allocation, Memory};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Counts allocations of all threads, lanes' included, except the clock's.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::without_threads_named(c"lanes-clock");

const LARGE: usize = 300_000;
/// Messages of each kind. The first half is not counted: it makes what is made once.
const MESSAGES: u64 = 200;
/// Allocations are counted for so many messages together; the least such count is the result.
const TOGETHER: u64 = 10;
/// A small message is copied from the ring straight into its receive buffer.
const SMALL_MOST: f64 = 0.0;
/// For a large message: the state of its receive buffer, its chunks and their bitmaps.
const LARGE_MOST: f64 = 5.0;

/// The receive buffer of the one message in flight.
static LANDING: OnceLock<Arc<Allocation>> = OnceLock::new();

/// Has no size, so boxing it allocates nothing.
struct Here;

impl ReceiveBuffer for Here {
    fn memory(&mut self) -> &mut [u8] {
        let memory = LANDING.get().expect("it is there before the link");
        // SAFETY: the static keeps the allocation for ever, and `BYTES` is at most its size. `per_message` sends the next message only
        // after the last one is acknowledged, so no other buffer has these bytes.
        unsafe { std::slice::from_raw_parts_mut(memory.start(), BYTES.load(SeqCst) as usize) }
    }

    fn deliver(
        self: Box<Self>,
        _sequence: u64,
        _description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        Ok(())
    }
}

/// The length of the message in flight.
static BYTES: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Counts {
    acknowledged: AtomicU64,
}

impl FlowReceiver for Counts {
    fn buffer(&self, _: FlowId, _: u64, _: &[u8], _: u64) -> BufferReply {
        BufferReply::Buffer(Box::new(Here))
    }
}

impl LinkUser for Counts {
    fn flow_event(&self, event: FlowEvent, _: &LinkRuntime) {
        if let FlowEvent::Acknowledged { .. } = event {
            self.acknowledged.fetch_add(1, SeqCst);
        }
    }
}

/// A message in registered memory.
struct Known(Arc<Allocation>, usize, #[allow(dead_code)] Registered);

impl Payload for Known {
    fn bytes(&self) -> usize {
        self.1
    }
    fn slice(&self, from: usize, to: usize) -> &[u8] {
        // SAFETY: lanes pass bounds within `bytes`, the allocation's length; `self` keeps it, and nobody writes it.
        unsafe { std::slice::from_raw_parts(self.0.start().add(from), to - from) }
    }
}

/// Sends messages one at a time. Returns the allocations for each.
fn per_message(
    link: &Link,
    user: &Counts,
    flow: FlowId,
    payload: &Arc<dyn Payload>,
    sequence: &mut u64,
) -> f64 {
    BYTES.store(payload.bytes() as u64, SeqCst);
    let mut least = u64::MAX;
    let mut before = 0;
    let description = Description::new(&[1; 8]).unwrap();
    for message in 0..MESSAGES {
        if message % TOGETHER == 0 {
            let all = allocations::of_all_threads();
            if message > MESSAGES / 2 {
                least = least.min(all - before);
            }
            before = all;
        }
        let (payload, description) = (Arc::clone(payload), description.clone());
        let sent = link.change(|link| link.send(flow, *sequence, payload, description));
        assert!(sent);
        *sequence += 1;
        let until = Instant::now() + LIMIT;
        while user.acknowledged.load(SeqCst) < *sequence {
            assert!(Instant::now() < until, "waited {LIMIT:?}");
            std::thread::yield_now();
        }
    }
    least as f64 / TOGETHER as f64
}

#[test]
fn of_messages_small_and_large() {
    let fabric = Fabric::new(Faults::default());
    let (a, b) = (fabric.endpoint(1), fabric.endpoint(2));
    let landing: Arc<dyn Memory> = LANDING.get_or_init(|| Allocation::new(LARGE)).clone();
    let _landing = b
        .registrar()
        .register(&landing, Access::RemoteWrite)
        .unwrap();
    let payload = |bytes| {
        let memory = Allocation::new(bytes);
        let known: Arc<dyn Memory> = memory.clone();
        let registered = a.registrar().register(&known, Access::LocalRead).unwrap();
        Arc::new(Known(memory, bytes, registered)) as Arc<dyn Payload>
    };
    let (small, large) = (payload(100), payload(LARGE));
    let config = LinkConfig {
        lanes: 2,
        // No ALIVE frames.
        beat_ms: 60_000,
        quiet_ms: 120_000,
        ..LinkConfig::default()
    };
    let user = Arc::new(Counts::default());
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let to_b = a.link("b", config, peer(2, &dial), (user.clone(), user.clone()));
    let to_b = to_b.unwrap();
    let other = Arc::new(Counts::default());
    let to_a = b.link("a", config, peer(1, &[]), (other.clone(), other));
    let _to_a = to_a.unwrap();
    let until = Instant::now() + LIMIT;
    while to_b.status().counts.rdma_opened < 2 {
        assert!(Instant::now() < until, "waited {LIMIT:?} for lanes");
        std::thread::sleep(Duration::from_millis(2));
    }
    let flow = to_b.change(|link| link.open(0, Description::default()));
    let flow = flow.unwrap();
    let mut sequence = 0;
    let of_small = per_message(&to_b, &user, flow, &small, &mut sequence);
    let of_large = per_message(&to_b, &user, flow, &large, &mut sequence);
    let counts = to_b.status().counts;
    assert_eq!(counts.channels.direct_bytes_sent, MESSAGES * LARGE as u64);
    println!("allocations for a message: small {of_small}, large {of_large}");
    assert!(allocations::of_all_threads() > 0, "allocations are counted");
    // Allocations at the end of one message may be counted with the next ones.
    assert!(of_small < SMALL_MOST + 0.5, "{of_small}");
    assert!(of_large < LARGE_MOST + 0.5, "{of_large}");
}
