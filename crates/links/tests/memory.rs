//! A host whose daemon can provide no memory for a while: the system has none, or limits the daemon. Messages that have memory
//! still cross and land; reliable topics wait, and lose nothing; best-effort topics report the messages that were left out.
mod support;

use rgaps::{Node, Publisher, RecvError, Sample, Subscriber};
use rustix::process::{prlimit, Pid, Resource, Rlimit};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::{content, noted, ports, receive, until, wait_for_subscribers, Host, LIMIT};

const BYTES: usize = 3 << 20;
/// Messages of a reliable topic: more than the memory that is leased at once has room for, and fewer than may be in flight.
const COUNT: u64 = 7;
/// Messages of the best-effort topic: more than may be in flight.
const MANY: u64 = 20;
const IN_FLIGHT: &str = "in_flight_max = \"24MiB\"";
/// If no message arrives for so long, the test takes it that none will.
const QUIET: Duration = Duration::from_millis(1500);

fn two(pool: &str, within: Vec<String>) -> [Host; 2] {
    let ports = ports(2);
    let links = |at: usize| {
        format!(
            "host = \"host-{}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
             connect = [\"tcp/127.0.0.1:{}\"]\n{IN_FLIGHT}",
            ["a", "b"][at],
            ports[at],
            ports[1 - at],
        )
    };
    let here = Host::start("host-a", &links(0));
    [
        here,
        Host::start_with_pool("host-b", &links(1), pool, within),
    ]
}

fn put(publisher: &Publisher, number: u64, bytes: usize) {
    let mut loan = publisher.loan(bytes as u64).unwrap();
    loan.write(0, &content(number, bytes)).unwrap();
    loan.set_tag(number);
    loan.publish().unwrap();
}

/// Receives messages until none arrives for [`QUIET`], and keeps all samples.
fn take_all(subscriber: &Subscriber) -> Vec<Sample> {
    let mut all = Vec::new();
    loop {
        match subscriber.recv_timeout(QUIET) {
            Ok(sample) => all.push(sample),
            Err(RecvError::TimedOut(_)) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A reliable topic that needs more memory than the other host has.
struct Large {
    publisher: Publisher,
    subscriber: Subscriber,
    held: Vec<Sample>,
}

impl Large {
    fn new(here: &Node, there: &Node, topic: &str) -> Large {
        let subscriber = there.subscriber(topic).reliable().max_held(COUNT as u32);
        let subscriber = subscriber.create().unwrap();
        let publisher = here.publisher(topic).keep_last(4).deadline(LIMIT);
        let publisher = publisher.create().unwrap();
        wait_for_subscribers(&publisher, 1);
        Large {
            publisher,
            subscriber,
            held: Vec::new(),
        }
    }

    fn publish(&self, numbers: Range<u64>) {
        numbers.for_each(|number| put(&self.publisher, number, BYTES));
    }

    /// Holds messages that arrive, until there is no memory for more.
    fn fill(&mut self) {
        self.held.extend(take_all(&self.subscriber));
        assert!(self.held.len() < COUNT as usize, "there is memory");
    }

    /// Checks that all messages arrive, in order and once.
    fn end(self) {
        let Large {
            publisher: _kept,
            subscriber,
            held,
        } = self;
        let left = held.len() as u64..COUNT;
        let rest: Vec<_> = left.map(|_| receive(&subscriber)).collect();
        for (number, sample) in (0..COUNT).zip(held.iter().chain(&rest)) {
            assert_eq!((sample.tag(), sample.missed()), (number, 0));
            assert!(sample.as_slice().unwrap() == content(number, BYTES));
        }
        assert!(subscriber.try_recv().unwrap().is_none(), "it comes twice");
    }
}

/// A topic with a reliable subscriber on its publisher's host, and a best-effort one on the other host.
struct Loose {
    publisher: Publisher,
    near: Subscriber,
    far: Subscriber,
    next: u64,
    /// The tag of the message that should arrive next; `missed`: how many did not arrive.
    expected: u64,
    missed: u64,
    held: Vec<Sample>,
}

impl Loose {
    fn new(here: &Node, there: &Node) -> Loose {
        let near = here.subscriber("loose").reliable().create().unwrap();
        let far = there.subscriber("loose").max_held(2 * MANY as u32);
        let far = far.create().unwrap();
        // The publisher keeps enough that the near subscriber misses nothing.
        let publisher = here.publisher("loose").keep_last(2 * MANY as u32);
        let publisher = publisher.deadline(LIMIT).create().unwrap();
        wait_for_subscribers(&publisher, 2);
        Loose {
            publisher,
            near,
            far,
            next: 0,
            expected: 0,
            missed: 0,
            held: Vec::new(),
        }
    }

    /// Publishes one more message. The near subscriber gets it, whatever happens on the other host.
    fn publish(&mut self) {
        put(&self.publisher, self.next, BYTES);
        let sample = receive(&self.near);
        assert_eq!((sample.tag(), sample.missed()), (self.next, 0));
        self.next += 1;
    }

    fn check(&mut self, sample: &Sample) {
        assert_eq!(sample.tag(), self.expected + sample.missed());
        assert!(sample.as_slice().unwrap() == content(sample.tag(), BYTES));
        self.expected = sample.tag() + 1;
        self.missed += sample.missed();
    }

    /// Publishes until the other host has no memory for more: the subscriber there holds all its samples.
    fn fill(&mut self) {
        (0..MANY).for_each(|_| self.publish());
        for sample in take_all(&self.far) {
            self.check(&sample);
            self.held.push(sample);
        }
    }

    /// Checks that messages arrive again, and that the first of them reports how many were missed, as `rgaps peers` there does.
    fn end(mut self, there: &Node) {
        let filled = self.next;
        until("the newest message", || {
            match self.far.recv_timeout(Duration::from_millis(200)) {
                Ok(sample) => self.check(&sample),
                // The next message that arrives reports how many were missed.
                Err(RecvError::TimedOut(_)) => self.publish(),
                Err(error) => panic!("{error}"),
            }
            self.expected > filled && self.expected == self.next
        });
        assert!(self.missed > 0, "nothing was left out");
        noted(there, "loose", "what was left out", |row| {
            row.missed == self.missed
        });
    }
}

/// Checks that topics that have memory work while `host-b` can get none, that messages of others wait or are left out, and that all
/// topics work when it gets memory again. `take` and `give`: take the memory away, and give it back.
fn goes_without_memory(hosts: &[Host; 2], take: impl FnOnce(), give: impl FnOnce()) {
    let (here, there) = (hosts[0].node("here"), hosts[1].node("there"));
    let small = there.subscriber("small").reliable().create().unwrap();
    let small_out = here.publisher("small").deadline(LIMIT).create().unwrap();
    let local = there.subscriber("local").reliable().create().unwrap();
    let local_out = there.publisher("local").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&small_out, 1);
    let mut next = 0;
    let mut others_go_on = |count| {
        for number in next..next + count {
            for (publisher, subscriber) in [(&small_out, &small), (&local_out, &local)] {
                put(publisher, number, 1000);
                let sample = receive(subscriber);
                assert_eq!((sample.tag(), sample.missed()), (number, 0));
                assert!(sample.as_slice().unwrap() == content(number, 1000));
            }
        }
        next += count;
    };
    others_go_on(3);
    let mut loose = Loose::new(&here, &there);
    loose.publish();
    let first = receive(&loose.far);
    loose.check(&first);
    let mut large = Large::new(&here, &there, "large");
    large.publish(0..1);
    large.held.push(receive(&large.subscriber));
    take();
    large.publish(1..COUNT);
    large.fill();
    others_go_on(20);
    // This topic has no memory on the other host at all.
    let mut late = Large::new(&here, &there, "late");
    late.publish(0..COUNT);
    late.fill();
    assert_eq!(late.held.len(), 0);
    loose.fill();
    others_go_on(20);
    give();
    large.end();
    late.end();
    loose.end(&there);
    others_go_on(3);
    drop((first, small, small_out, local, local_out));
    until("all memory to be given back", || {
        [&here, &there].iter().all(|node| {
            let pools = node.pools().unwrap();
            pools.iter().all(|pool| pool.leased_bytes == 0)
        })
    });
}

#[test]
fn a_daemon_that_may_have_no_memory_for_a_while_loses_nothing() {
    let hosts = two("cap = \"2GiB\"", Vec::new());
    let daemon = Pid::from_raw(hosts[1].daemon.id() as i32);
    // Limits the size of files; pools are memory files.
    let limit = |bytes| {
        let limit = Rlimit {
            current: bytes,
            maximum: None,
        };
        prlimit(daemon, Resource::Fsize, limit).unwrap();
    };
    goes_without_memory(&hosts, || limit(Some(1 << 20)), || limit(None));
}

#[test]
fn a_host_without_memory_for_a_while_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let seen: PathBuf = dir.path().join("meminfo");
    let available = |bytes: u64| {
        let text = format!("MemTotal: 16777216 kB\nMemAvailable: {} kB\n", bytes >> 10);
        std::fs::write(&seen, text).unwrap();
    };
    available(8 << 30);
    // A mount namespace in which the test writes /proc/meminfo.
    let script = "mount --bind \"$0\" /proc/meminfo && exec \"$@\"";
    let seen_by = seen.to_str().unwrap();
    let within = ["unshare", "--mount", "sh", "-c", script, seen_by].map(str::to_owned);
    let tried = Command::new(&within[0])
        .args(&within[1..])
        .arg("true")
        .output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        return println!("left out: mount namespaces are not to be had here");
    }
    // Segments get all their memory when they are created, or are refused.
    let hosts = two("cap = \"2GiB\"\nprefault = true", within.to_vec());
    goes_without_memory(&hosts, || available(1 << 20), || available(8 << 30));
}
