//! Tests that a node reports the host memory that it maps and leases to its `HostMemory`.
#![forbid(unsafe_code)]

use rgaps_client::links::{HostMemory, LinksLoan, LinksNodeBuilder, MappedRange, LINKS_CLIENT};
use rgaps_client::{Domain, Node};
use rgaps_pool::{Access, HostMapping, Mapping};
use rgaps_testkit::Daemon;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MESSAGE: u64 = 5 << 20;
const SOON: Duration = Duration::from_secs(120);

/// The start and end address of each range.
type Ranges = Arc<Mutex<Vec<(usize, usize)>>>;

#[derive(Debug, Default)]
struct Known {
    mapped: Ranges,
    leased: Ranges,
    /// The access rights to each mapped range inside `writable_while`. None: the node may not make it writable.
    writable: Mutex<Vec<Option<String>>>,
}

/// A range in a list of ranges. Dropping the entry removes the range.
struct Entry(Ranges, (usize, usize));

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.lock().unwrap().retain(|range| *range != self.1);
    }
}

fn ends(range: &MappedRange) -> (usize, usize) {
    let start = range.start() as usize;
    (start, start + range.bytes())
}

impl HostMemory for Known {
    fn mapped(&self, range: MappedRange) {
        assert!(range.dma_buf().is_none(), "it is a memfd's");
        self.mapped.lock().unwrap().push(ends(&range));
        let meanwhile = range.writable_while(|| rights(ends(&range).0));
        self.writable.lock().unwrap().push(meanwhile);
    }
    fn leased(&self, range: MappedRange) -> Box<dyn Send + Sync> {
        let (new, mut leased) = (ends(&range), self.leased.lock().unwrap());
        let apart = |other: &(usize, usize)| other.1 <= new.0 || new.1 <= other.0;
        assert!(leased.iter().all(apart), "{new:?} is leased twice");
        leased.push(new);
        Box::new(Entry(self.leased.clone(), new))
    }
}

/// The access rights of this process to an address, from the system.
fn rights(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let rights = rest.split(' ').next()?;
        (number(from)..number(to))
            .contains(&address)
            .then_some(rights)
    });
    found.expect("it is mapped").to_owned()
}

fn contain(ranges: &Ranges, address: u64, bytes: u64) -> bool {
    let (from, to) = (address as usize, (address + bytes) as usize);
    let ranges = ranges.lock().unwrap();
    ranges.iter().any(|range| range.0 <= from && to <= range.1)
}

fn sum(ranges: &Ranges) -> u64 {
    let ranges = ranges.lock().unwrap();
    ranges.iter().map(|(from, to)| (to - from) as u64).sum()
}

#[test]
fn what_is_leased_and_read_is_told_until_it_is_given_back() {
    let daemon = Daemon::start();
    let known = Arc::new(Known::default());
    let node = Node::builder("tells").config(daemon.config());
    let node = node.host_memory(known.clone()).build().unwrap();
    let publisher = node.publisher("t").create().unwrap();
    let subscriber = node.subscriber("t").create().unwrap();
    let mut loan = publisher.loan(MESSAGE).unwrap();
    assert!(contain(&known.leased, loan.address(), MESSAGE));
    loan.write(MESSAGE - 1, &[7]).unwrap();
    loan.publish().unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert!(contain(&known.mapped, sample.address(), MESSAGE));
    assert!(!contain(&known.leased, sample.address(), MESSAGE));
    assert_eq!(sum(&known.leased), publisher.leased_bytes());

    // The publisher gives back a part of a range that it leased at once. The block in use stays reported.
    let others: Vec<_> = (0..4).map(|_| publisher.loan(MESSAGE).unwrap()).collect();
    let kept = publisher.loan(MESSAGE).unwrap();
    drop(others);
    assert!(publisher.trim(0).unwrap() > 0);
    assert!(contain(&known.leased, kept.address(), MESSAGE));
    assert_eq!(sum(&known.leased), publisher.leased_bytes());

    drop((kept, sample));
    drop(publisher);
    let begun = Instant::now();
    while sum(&known.leased) > 0 {
        assert!(begun.elapsed() < SOON, "its ranges are given back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Keeps all ranges that the node reports.
#[derive(Debug, Default)]
struct Kept {
    mapped: Mutex<Vec<MappedRange>>,
    leased: Mutex<Vec<MappedRange>>,
}

impl HostMemory for Kept {
    fn mapped(&self, range: MappedRange) {
        self.mapped.lock().unwrap().push(range);
    }
    fn leased(&self, range: MappedRange) -> Box<dyn Send + Sync> {
        self.leased.lock().unwrap().push(range);
        Box::new(())
    }
}

/// The byte at `address`, read through the dma-buf of the reported range that contains it.
fn through_dma_buf(ranges: &Mutex<Vec<MappedRange>>, address: u64) -> u8 {
    let ranges = ranges.lock().unwrap();
    let (range, at) = ranges
        .iter()
        .find_map(|range| Some((range, (address as usize).checked_sub(ends(range).0)?)))
        .filter(|(range, at)| *at < range.bytes())
        .expect("the range was told of");
    let (fd, offset) = range.dma_buf().expect("it is a dma-buf's");
    let mut file = File::from(fd.try_clone().unwrap());
    let segment = file.seek(SeekFrom::End(0)).unwrap();
    let map = HostMapping::new(segment, Access::ReadOnly).unwrap();
    map.extend(fd.as_fd(), segment).unwrap();
    let mut byte = [0];
    map.read(offset + at as u64, &mut byte).unwrap();
    byte[0]
}

#[test]
fn what_lies_in_a_dma_buf_comes_with_it() {
    let devices = [
        ("dmaplane", "/dev/dmaplane-pool"),
        ("udmabuf", "/dev/udmabuf"),
    ];
    let is_here = |of: &&(&str, &str)| Path::new(of.1).exists();
    let Some((provider, _)) = devices.iter().find(is_here) else {
        println!("left out: no device here gives dma-bufs");
        return;
    };
    let config = format!("[pool.host]\nprovider = \"{provider}\"\nsegment = \"8MiB\"\n");
    let daemon = Daemon::start_with(&config);
    let kept = Arc::new(Kept::default());
    let node = Node::builder("tells").config(daemon.config());
    let node = node.host_memory(kept.clone()).build().unwrap();
    let publisher = node.publisher("t").create().unwrap();
    let subscriber = node.subscriber("t").create().unwrap();
    // The two messages lie in different segments.
    for number in [1, 2] {
        let mut loan = publisher.loan(MESSAGE).unwrap();
        loan.write(MESSAGE - 1, &[number]).unwrap();
        let last = loan.address() + MESSAGE - 1;
        assert_eq!(through_dma_buf(&kept.leased, last), number);
        loan.publish().unwrap();
        let sample = subscriber.recv_timeout(SOON).unwrap();
        let last = sample.address() + MESSAGE - 1;
        assert_eq!(through_dma_buf(&kept.mapped, last), number);
    }
}

#[test]
fn memory_that_is_copied_to_a_gpu_from_is_told_until_its_publisher_ends() {
    rgaps_testkit::driver::use_test_driver(&[]);
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"1GiB\"\n");
    let known = Arc::new(Known::default());
    let node = Node::builder("tells").config(daemon.config());
    let node = node.host_memory(known.clone()).build().unwrap();
    let gpu = rgaps_cuda::Driver::load().unwrap().devices().unwrap()[0].uuid;
    let publisher = node.publisher("up").domain(Domain::Cuda(gpu));
    let publisher = publisher.create().unwrap();
    let mut loan = publisher.loan(MESSAGE).unwrap();
    assert_eq!(
        sum(&known.leased),
        0,
        "the CPU does not reach a GPU's memory"
    );
    assert!(loan.stage(true).unwrap());
    let filled = loan.filled().unwrap().as_ptr() as u64;
    assert!(contain(&known.leased, filled, MESSAGE));
    drop(loan);
    assert!(contain(&known.leased, filled, MESSAGE), "it is used again");
    drop((publisher, node));
    let begun = Instant::now();
    while sum(&known.leased) > 0 {
        assert!(begun.elapsed() < SOON, "its memory is given back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The access rights inside `writable_while` to each segment that a node of this name reads; None: it cannot write.
fn mapped_by(name: &str) -> Vec<Option<String>> {
    let daemon = Daemon::start();
    let known = Arc::new(Known::default());
    let reader = Node::builder(name).config(daemon.config());
    let reader = reader.host_memory(known.clone()).build().unwrap();
    let writer = Node::builder("writes").config(daemon.config());
    let writer = writer.build().unwrap();
    let publisher = writer.publisher("t").create().unwrap();
    let subscriber = reader.subscriber("t").create().unwrap();
    let mut loan = publisher.loan(9).unwrap();
    loan.write(0, &[1; 9]).unwrap();
    loan.publish().unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    // Another thread maps segments by itself: waits until it is not in the middle of a report.
    let begun = Instant::now();
    let mapped = loop {
        let mapped = known.mapped.lock().unwrap();
        if known.writable.lock().unwrap().len() == mapped.len() {
            break mapped;
        }
        drop(mapped);
        assert!(begun.elapsed() < SOON, "what is mapped is told of");
        std::thread::sleep(Duration::from_millis(1));
    };
    for (from, _) in mapped.iter() {
        assert_eq!(rights(*from), "r--s", "a reader cannot write");
    }
    drop(mapped);
    assert!(contain(&known.mapped, sample.address(), 9));
    let said = std::mem::take(&mut *known.writable.lock().unwrap());
    assert!(!said.is_empty());
    said
}

#[test]
fn only_links_can_write_what_others_publish_and_only_while_cards_get_to_know_it() {
    for said in mapped_by(LINKS_CLIENT) {
        assert_eq!(said.as_deref(), Some("rw-s"));
    }
}

#[test]
fn who_only_reads_gets_nothing_that_it_can_write() {
    for said in mapped_by("rgaps-other") {
        assert_eq!(said, None);
    }
}
