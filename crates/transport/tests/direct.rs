//! Messages from and to memory that the CPU does not reach (GPUDirect), on an in-process network. Cards read and write registered memory
//! themselves, decided for each direction alone. All other bytes are copied, also those of a message whose RDMA lane broke.
#[allow(dead_code, reason = "every test program uses a part of it")]
mod lanes {
    pub mod cards;
    pub mod finish;
    pub mod hosts;
    pub mod rdma;
}
use lanes::cards::{Cards, Ways};
use lanes::finish::{config, finish};
use lanes::hosts::*;
use lanes::rdma::Fabric;
use rgaps_transport::machine::frame::RdmaMode;
use rgaps_transport::{Endpoint, LinkConfig};
use rgaps_transport::{Payload, RdmaError, Registered};
use rgaps_verbs::in_process::Faults;
use rgaps_verbs::{Access, Allocation, Status};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

const FLOW: Flow = Flow {
    topic: 1,
    incarnation: 11,
};
const LARGE: usize = 300_001;

/// An end, and counts of how its messages were carried.
struct End {
    endpoint: Endpoint,
    host: Arc<Host>,
    ways: Arc<Ways>,
}

#[derive(Clone, Copy, PartialEq)]
enum Memory {
    OnCard,
    Registered,
    Heap,
}

fn end(fabric: &Fabric, incarnation: u64, memory: Memory) -> End {
    let endpoint = fabric.endpoint(incarnation);
    let ways = Arc::<Ways>::default();
    let host = match memory {
        Memory::Heap => Host::new(),
        Memory::Registered => fabric.host(&endpoint),
        Memory::OnCard => {
            let cards = Cards::new(&endpoint.registrar(), &ways).unwrap();
            Host::with(Arc::new(cards))
        }
    };
    End {
        endpoint,
        host,
        ways,
    }
}

fn join(a: &End, b: &End, config: LinkConfig) -> (Link, Link) {
    let dial: Vec<_> = b.endpoint.local_addr().into_iter().collect();
    (
        link(&a.endpoint, config, peer(2, &dial), &a.host),
        link(&b.endpoint, config, peer(1, &[]), &b.host),
    )
}

fn wait_lanes(link: &Link, rdma: bool) {
    until("4 lanes", || {
        let lanes = link.status().lanes;
        lanes.len() == 4 && lanes.iter().all(|lane| lane.channel.is_some() == rdma)
    });
}

/// Sends eight messages of `bytes` from `a` to `b`. Returns the messages that were copied for the CPU, the bytes that landed on the host,
/// and those that cards wrote.
fn carry(from: Memory, to: Memory, bytes: usize, mode: RdmaMode) -> (u64, u64, u64) {
    let fabric = Fabric::new(Faults::default());
    let (a, b) = (end(&fabric, 1, from), end(&fabric, 2, to));
    let config = LinkConfig {
        rdma: mode,
        ..config()
    };
    let (to_b, to_a) = join(&a, &b, config);
    wait_lanes(&to_b, mode != RdmaMode::No);
    to_b.open(FLOW, 0);
    (0..8).for_each(|sequence| send(&to_b, &a.host, FLOW, sequence, bytes));
    finish(&to_b, &a.host, &b.host, &[FLOW], 8);
    let by_host = b.host.seen.lock().unwrap().landed + b.ways.by_host.load(SeqCst);
    let directly = b.ways.directly.load(SeqCst);
    let fetched = a.ways.fetched.load(SeqCst);
    assert_eq!(b.ways.fetched.load(SeqCst), 0);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
    (fetched, by_host, directly)
}

#[test]
fn cards_read_and_write_what_the_cpu_does_not_reach_per_direction() {
    use Memory::*;
    let all = 8 * LARGE as u64;
    let large = |from, to| carry(from, to, LARGE, RdmaMode::Prefer);
    assert_eq!(large(OnCard, OnCard), (0, 0, all));
    assert_eq!(large(OnCard, Registered), (0, all, 0));
    assert_eq!(large(Registered, OnCard), (0, 0, all));
    // The peer's memory is not registered, or the sender's is not: each message is copied once.
    assert_eq!(large(OnCard, Heap), (8, all, 0));
    assert_eq!(large(Heap, OnCard), (0, all, 0));
    // Small messages travel with their frame.
    assert_eq!(carry(OnCard, OnCard, 900, RdmaMode::Prefer), (8, 0, 0));
    // Over TCP, grants name no addresses.
    assert_eq!(carry(OnCard, OnCard, LARGE, RdmaMode::No), (8, all, 0));
}

#[test]
fn memory_that_cards_refuse_is_not_used_by_them_and_the_reason_is_said() {
    let fabric = Fabric::new(Faults::default());
    fabric.network.refuse("ibv_reg_dmabuf_mr", 95);
    let endpoint = fabric.endpoint(1);
    let refused = Cards::new(&endpoint.registrar(), &Arc::default());
    let error = refused.err().expect("it is refused");
    let said = error.to_string();
    assert!(matches!(error, RdmaError::Register { .. }), "{said}");
    for part in ["nic1.0", "ibv_reg_dmabuf_mr", "not supported"] {
        assert!(said.contains(part), "{said}");
    }
}

/// While messages are in flight, works fail; then the network is down, and half-sent messages continue over TCP.
fn breaks(seed: u64) -> (u64, u64, u64) {
    let fabric = Fabric::new(Faults {
        seed,
        delay_one_in: 1 + (seed % 3) as u32,
        ..Faults::default()
    });
    let (a, b) = (
        end(&fabric, 1, Memory::OnCard),
        end(&fabric, 2, Memory::OnCard),
    );
    let config = LinkConfig {
        rdma_again_ms: 30,
        ..config()
    };
    let (to_b, to_a) = join(&a, &b, config);
    wait_lanes(&to_b, true);
    to_b.open(FLOW, 0);
    for sequence in 0..24 {
        send(&to_b, &a.host, FLOW, sequence, LARGE);
        match sequence {
            8 => fabric.network.set_link(false),
            16 => fabric.network.set_link(true),
            _ if (sequence + seed) % 3 == 0 => fabric.network.fail_next(Status::RetryExceeded),
            _ => {}
        }
        let waits = (seed.wrapping_mul(0x9e37_79b9) >> 7 ^ sequence) % 3;
        std::thread::sleep(Duration::from_millis(waits));
    }
    // `deliver` compares every byte.
    finish(&to_b, &a.host, &b.host, &[FLOW], 24);
    let failed = to_b.status().counts.rdma_failed;
    let ways = &b.ways;
    let landed = (
        ways.by_host.load(SeqCst),
        ways.directly.load(SeqCst),
        failed,
    );
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
    landed
}

#[test]
fn what_breaks_on_the_way_goes_on_through_the_host_and_nothing_is_lost() {
    let (mut host, mut directly, mut failed) = (0, 0, 0);
    for seed in 0..6 {
        let found = breaks(seed);
        (host, directly, failed) = (host + found.0, directly + found.1, failed + found.2);
    }
    assert!(
        host > 0 && directly > 0 && failed > 0,
        "{host} bytes by the host, {directly} directly, {failed} failures"
    );
}

/// Memory that is registered in two parts, as segments of a pool are; the message spans both.
struct Halves {
    memory: Arc<Allocation>,
    _registered: [Registered; 2],
}

struct Half {
    memory: Arc<Allocation>,
    from: usize,
    bytes: usize,
}

// SAFETY: the bytes are a part of an allocation, which `memory` keeps valid at its address as long as this value lives. It is registered
// for reading only, so no device writes it.
unsafe impl rgaps_verbs::Memory for Half {
    fn start(&self) -> *mut u8 {
        self.memory.start().wrapping_add(self.from)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
}

const SEAM: usize = 150_003;

impl Halves {
    fn new(endpoint: &Endpoint) -> Halves {
        let memory = Allocation::new(LARGE);
        let half = |from, bytes| {
            let memory = memory.clone();
            let half: Arc<dyn rgaps_verbs::Memory> = Arc::new(Half {
                memory,
                from,
                bytes,
            });
            endpoint
                .registrar()
                .register(&half, Access::LocalRead)
                .unwrap()
        };
        let _registered = [half(0, SEAM), half(SEAM, LARGE - SEAM)];
        Halves {
            memory,
            _registered,
        }
    }
}

/// The whole memory as a message, which the CPU must not read.
struct Whole(Arc<Allocation>);

impl Payload for Whole {
    fn bytes(&self) -> usize {
        LARGE
    }
    fn slice(&self, from: usize, to: usize) -> &[u8] {
        panic!("{from}..{to} is read by the CPU")
    }
    fn direct(&self) -> Option<u64> {
        Some(rgaps_verbs::Memory::start(&*self.0) as u64)
    }
}

#[test]
fn a_chunk_that_lies_in_two_registered_regions_is_read_from_both() {
    let fabric = Fabric::new(Faults::default());
    let (a, b) = (
        end(&fabric, 1, Memory::Heap),
        end(&fabric, 2, Memory::OnCard),
    );
    let (to_b, to_a) = join(&a, &b, config());
    wait_lanes(&to_b, true);
    to_b.open(FLOW, 0);
    let halves = Halves::new(&a.endpoint);
    halves.memory.write(0, &content(FLOW, 0, LARGE));
    let payload: Arc<dyn Payload> = Arc::new(Whole(halves.memory.clone()));
    let sent = to_b.offer(FLOW, 0, &payload);
    assert!(sent);
    finish(&to_b, &a.host, &b.host, &[FLOW], 1);
    assert_eq!(b.ways.directly.load(SeqCst), LARGE as u64);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}
