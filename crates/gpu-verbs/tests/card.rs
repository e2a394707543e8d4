//! The software card. The tests write the bytes that a kernel would write. They check which works the card carries out, which violations
//! it detects, and how it treats peers that close the connection or send junk.

use rgaps_gpu_verbs::*;
use rgaps_layout::Domain;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit of all waits, long enough for a slow machine.
const LIMIT: Duration = Duration::from_secs(30);
const NO_COMPLETION: u8 = 0xf1;

/// One side: memory, and a queue pair whose bytes the test writes.
struct Side {
    pair: QueuePair,
    registration: Registration,
    memory: Arc<ZeroedMemory>,
}

impl Side {
    fn new() -> Side {
        let card = Card::new(Domain::Host).unwrap();
        let memory = ZeroedMemory::new(Domain::Host, 4096).unwrap();
        let depths = Depths {
            sends_log2: 2,
            receives_log2: 2,
        };
        Side {
            pair: card.queue_pair(depths).unwrap(),
            registration: card.register(&memory, true),
            memory,
        }
    }

    /// Writes an entry: a write of 8 bytes from the start of this side's memory to the peer's.
    fn post(&self, index: u16, peer: &Side) {
        let mut entry = [0u8; 64];
        entry[1..3].copy_from_slice(&index.to_be_bytes());
        entry[3] = 0x08;
        entry[4..7].copy_from_slice(&self.pair.view().number.to_be_bytes()[1..]);
        entry[7] = 3;
        entry[11] = 0x08;
        entry[16..24].copy_from_slice(&peer.memory.address().to_be_bytes());
        entry[24..28].copy_from_slice(&peer.registration.key().to_be_bytes());
        entry[32..36].copy_from_slice(&8u32.to_be_bytes());
        entry[36..40].copy_from_slice(&self.registration.key().to_be_bytes());
        entry[40..48].copy_from_slice(&self.memory.address().to_be_bytes());
        let slot = u64::from(index % 4) * ENTRY_BYTES;
        write(self.pair.view().sends + slot, &entry);
    }

    fn ring(&self, record: u16, doorbell: u16, number: u32) {
        let view = self.pair.view();
        write(view.record + 4, &u32::from(record).to_be_bytes());
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        let mut bell = [0; 8];
        bell[1..3].copy_from_slice(&doorbell.to_be_bytes());
        bell[4..7].copy_from_slice(&number.to_be_bytes()[1..]);
        write(view.doorbell, &bell);
    }

    fn post_and_ring(&self, index: u16, peer: &Side) {
        self.post(index, peer);
        self.ring(index + 1, index + 1, self.pair.view().number);
    }

    fn completion(&self, slot: u64) -> [u8; 64] {
        let at = self.pair.view().completions + slot * ENTRY_BYTES;
        wait(|| read(at + 63, 1)[0] != NO_COMPLETION);
        read(at, 64).try_into().unwrap()
    }

    fn violation(&self) -> String {
        wait(|| !self.pair.counts().violations.is_empty());
        self.pair.counts().violations[0].clone()
    }
}

fn wait(is_so: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "nothing happens");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Writes a queue pair's memory as a kernel does.
fn write(address: u64, bytes: &[u8]) {
    // SAFETY: each caller takes the address from the view of a queue pair that it keeps, and the field has room for these bytes.
    unsafe { (address as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
}

fn read(address: u64, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| {
        // SAFETY: each caller takes the address from the view of a queue pair that it keeps. The card may write the bytes at the same
        // time, but a single byte is never torn.
        unsafe { ((address as usize + at) as *const u8).read_volatile() }
    };
    (0..bytes).map(byte).collect()
}

fn connected() -> (Side, Side) {
    let (mut one, mut other) = (Side::new(), Side::new());
    one.pair
        .connect(&mut other.pair, Behaviour::default())
        .unwrap();
    (one, other)
}

#[test]
fn a_write_is_carried_out_and_completed() {
    let (one, other) = connected();
    one.memory.write(0, b"8 bytes!");
    one.post_and_ring(0, &other);
    let completion = one.completion(0);
    let mut landed = [0; 8];
    other.memory.read(0, &mut landed);
    assert_eq!(&landed, b"8 bytes!");
    assert_eq!(completion[56..60], one.pair.view().number.to_be_bytes());
    assert_eq!(completion[60..], [0, 0, 0, 0], "index 0, opcode 0, round 0");
    let counts = one.pair.counts();
    assert_eq!((counts.works, counts.completions), (1, 1));
    assert!(counts.violations.is_empty(), "{counts:?}");
}

#[test]
fn what_no_kernel_may_do_is_found_out() {
    let (one, other) = connected();
    one.post(0, &other);
    one.ring(0, 1, one.pair.view().number);
    assert!(
        one.violation().contains("doorbell"),
        "the record is behind: {}",
        one.violation()
    );

    let (one, other) = connected();
    one.post(0, &other);
    one.ring(1, 1, 77);
    assert!(
        one.violation().contains("doorbell"),
        "another's: {}",
        one.violation()
    );

    let (one, _other) = connected();
    one.ring(5, 5, one.pair.view().number);
    assert!(
        one.violation().contains("doorbell"),
        "more than there are: {}",
        one.violation()
    );

    let (one, other) = connected();
    one.post(4, &other);
    one.ring(1, 1, one.pair.view().number);
    assert_eq!(one.violation(), "entry 0x0 has the index 0x4");
    assert_eq!(one.completion(0)[55], Syndrome::LocalOperation as u8);
}

#[test]
fn completions_that_are_not_taken_are_not_overwritten() {
    let (one, other) = connected();
    for index in 0..5 {
        one.post_and_ring(index, &other);
        if index < 4 {
            one.completion(u64::from(index));
        }
    }
    assert!(one.violation().contains("overrun"), "{}", one.violation());
    assert_eq!(one.pair.counts().works, 5);
}

fn with_tcp_peer() -> (Side, TcpStream) {
    let mut one = Side::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    one.pair.connect_tcp(near).unwrap();
    let far = listener.accept().unwrap().0;
    far.set_read_timeout(Some(LIMIT)).unwrap();
    (one, far)
}

#[test]
fn a_peer_that_is_gone_is_told() {
    let (one, far) = with_tcp_peer();
    drop(far);
    one.post_and_ring(0, &Side::new());
    assert_eq!(one.completion(0)[55], Syndrome::Unreachable as u8);
}

#[test]
fn junk_of_a_peer_ends_the_connection() {
    // An unknown kind; a length above the limit; a reply without a request.
    let mut too_long = [1; 40];
    too_long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let junk: [&[u8]; 3] = [&[0x7f; 40], &too_long, &[0x80, 0, 0, 0, 0, 0, 0, 0]];
    for bytes in junk {
        let (one, mut far) = with_tcp_peer();
        far.write_all(bytes).unwrap();
        // Post only after the card has read the junk reply, or that could be taken for the reply to this work.
        wait(|| is_closed(&far) || bytes[0] != 0x80);
        one.post_and_ring(0, &Side::new());
        assert_eq!(
            one.completion(0)[55],
            Syndrome::Unreachable as u8,
            "{bytes:02x?}"
        );
    }
}

/// Whether the other end has closed the connection.
fn is_closed(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Ok(0) | Err(_))
}
