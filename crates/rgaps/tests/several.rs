//! Subscribers that read in another domain than the publisher's. The tests use a test driver with two GPUs, or with
//! `RGAPS_TEST_GPU=1` the GPUs of a real machine. Other tests run those named `alone_...` in processes of their own.

use rgaps::{
    Config, Domain, Late, LoanError, Node, PathKind, PublishError, RecvError, Sample, Stream,
};
use rgaps_cuda::{Context, CudaStream, Driver};
use rgaps_test_driver::TestDriver;
use rgaps_testkit::driver::is_real;
use rgaps_testkit::{content, until, Daemon};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(120);

/// The GPUs. The test driver delays the work of streams, so a test that misses a wait finds the work unfinished.
fn gpus() -> Vec<(Arc<Context>, Domain)> {
    static DRIVER: std::sync::OnceLock<Arc<Driver>> = std::sync::OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        if !rgaps_testkit::driver::is_real() {
            for (name, value) in driver_settings() {
                if std::env::var_os(name).is_none() {
                    std::env::set_var(name, value);
                }
            }
        }
        Driver::load().unwrap()
    });
    let devices = driver.devices().unwrap();
    devices
        .iter()
        .map(|device| {
            let context = Context::retain(driver.clone(), device.uuid).unwrap();
            (context, Domain::Cuda(device.uuid))
        })
        .collect()
}

/// The GPUs; None on a real machine with fewer than two, which it prints.
fn two_gpus() -> Option<Vec<(Arc<Context>, Domain)>> {
    let gpus = gpus();
    if gpus.len() < 2 {
        eprintln!("left out: there are fewer than two GPUs");
        return None;
    }
    Some(gpus)
}

fn driver_settings() -> [(&'static str, PathBuf); 3] {
    [
        ("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library()),
        ("RGAPS_TEST_DRIVER_DEVICES", "2".into()),
        ("RGAPS_TEST_DRIVER_DELAY_US", "2000".into()),
    ]
}

/// The driver that this process has loaded.
fn driver() -> TestDriver {
    TestDriver::loaded(&rgaps_test_driver::library())
}

/// Names the daemon's socket to a test that runs in a process of its own.
const SOCKET: &str = "RGAPS_TEST_SEVERAL_SOCKET";
/// Set where a test has started this program to run other tests again.
const AGAIN: &str = "RGAPS_TEST_SEVERAL_AGAIN";

/// A process that runs this program again. Dropping `Alone` kills the process.
struct Alone {
    child: Child,
    lines: Receiver<String>,
}

impl Alone {
    fn start(arguments: &[&str], settings: &[(&str, &str)]) -> Alone {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(arguments).args(["--nocapture"]);
        command.env("RGAPS_DAEMON", rgaps_testkit::programs::rgapsd());
        if !is_real() {
            command.envs(driver_settings());
        }
        command.envs(settings.iter().copied());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = to.send(line);
            }
        });
        Alone { child, lines }
    }

    /// Runs one of this program's ignored tests, with this process's daemon.
    fn part(name: &str, daemon: &Daemon) -> Alone {
        let socket = daemon.socket();
        let settings = [(SOCKET, socket.to_str().unwrap())];
        Alone::start(&["--exact", name, "--ignored"], &settings)
    }

    /// Waits until the process prints a line that contains `wanted`.
    fn says(&self, wanted: &str) {
        let end = Instant::now() + 3 * SOON;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(wanted) => return,
                Ok(_) => {}
                Err(error) => panic!("it does not say '{wanted}': {error}"),
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process ends successfully.
    fn passes(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let said: Vec<String> = self.lines.iter().collect();
                assert!(status.success(), "{}", said.join("\n"));
                return;
            }
            assert!(Instant::now() < end, "a process takes too long");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The node of a test that another test started in a process of its own.
fn node_alone() -> Node {
    let socket = PathBuf::from(std::env::var_os(SOCKET).expect("another test starts this one"));
    let file = socket.with_file_name("rgaps.toml");
    let mut config = Config::load(Some(&file)).unwrap();
    config.socket = Some(socket);
    config.autostart = false;
    Node::builder("alone").config(config).build().unwrap()
}

/// Waits until a publisher's loans, messages and replicas use exactly `bytes`.
fn uses(publisher: &rgaps::Publisher, bytes: u64) {
    let mut used = 0;
    let what = || {
        publisher.trim(u64::MAX).unwrap();
        used = publisher.used_bytes();
        used == bytes
    };
    until(&format!("{bytes} bytes in use"), what);
}

fn node(settings: &str) -> (Daemon, Node) {
    let daemon = Daemon::start_with(&format!("[pool.cuda]\ncap = \"1GiB\"\n{settings}"));
    let node = daemon.node("test");
    (daemon, node)
}

fn bytes_of(sample: &Sample) -> Vec<u8> {
    let mut bytes = vec![0; sample.len() as usize];
    sample.read(0, &mut bytes).unwrap();
    bytes
}

fn payload(bytes: usize, seed: usize) -> Vec<u8> {
    content(seed as u64, bytes)
}

/// Publishes messages of many sizes in `from`, and reads each in all domains of `to`.
fn travels(settings: &str, from: Domain, to: &[Domain]) {
    let (_daemon, node) = node(settings);
    let subscribers: Vec<_> = to
        .iter()
        .map(|domain| {
            node.subscriber("t")
                .reliable()
                .domain(*domain)
                .create()
                .unwrap()
        })
        .collect();
    let publisher = node
        .publisher("t")
        .domain(from)
        .keep_last(4)
        .create()
        .unwrap();
    for (seed, bytes) in [0, 1, 4096, (3 << 20) + 5, 9 << 20, 77]
        .into_iter()
        .enumerate()
    {
        let sent = payload(bytes, seed);
        publisher.put(&sent).unwrap();
        for (subscriber, domain) in subscribers.iter().zip(to) {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!(sample.domain(), *domain);
            assert_eq!(sample.len(), bytes as u64);
            assert!(
                bytes_of(&sample) == sent,
                "{bytes} bytes from {from} to {domain}"
            );
        }
    }
}

#[test]
fn messages_travel_between_all_domains() {
    let gpus = gpus();
    let mut domains: Vec<Domain> = gpus.iter().map(|(_, domain)| *domain).collect();
    domains.push(Domain::Host);
    for settings in ["", "peer = \"copy\"\n", "peer = \"map\"\n"] {
        for from in &domains {
            travels(settings, *from, &domains);
        }
    }
}

#[test]
fn a_copy_is_made_behind_the_work_that_writes_the_message() {
    let gpus = gpus();
    let (context, home) = &gpus[0];
    let (_daemon, node) = node("peer = \"copy\"\n");
    let away: Vec<_> = gpus[1..]
        .iter()
        .map(|(_, domain)| *domain)
        .chain([Domain::Host])
        .map(|domain| node.subscriber("w").domain(domain).create().unwrap())
        .collect();
    let publisher = node.publisher("w").domain(*home).create().unwrap();
    let stream = CudaStream::new(context.clone()).unwrap();
    for value in 1..20u8 {
        let loan = publisher.loan(1 << 20).unwrap();
        // SAFETY: we hold the loan, so nobody else uses its bytes; `publish_on` orders readers and copies behind this work.
        unsafe { stream.fill(loan.address(), value, loan.len()).unwrap() };
        loan.publish_on(stream.handle()).unwrap();
        for subscriber in &away {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert!(bytes_of(&sample).iter().all(|byte| *byte == value));
        }
    }
}

#[test]
fn history_reaches_a_late_joiner_in_another_domain() {
    let gpus = gpus();
    let (_daemon, node) = node("");
    let publisher = node
        .publisher("late")
        .domain(gpus[0].1)
        .keep_last(3)
        .transient_local()
        .create()
        .unwrap();
    for seed in 0..3 {
        publisher.put(&payload(5000, seed)).unwrap();
    }
    for domain in gpus.iter().map(|(_, domain)| *domain).chain([Domain::Host]) {
        let subscriber = node
            .subscriber("late")
            .late(Late::AllKept)
            .domain(domain)
            .create()
            .unwrap();
        for seed in 0..3 {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!(sample.domain(), domain);
            assert!(bytes_of(&sample) == payload(5000, seed));
        }
    }
}

/// How a topic's only subscriber in a domain gets its messages, as `rgaps topic info` words it.
fn path(node: &Node, topic: &str, domain: Domain) -> String {
    let info = node.topic(topic).unwrap();
    let mut rows = info.subscribers.iter();
    let row = rows.find(|row| row.domain.or(info.row.domain) == Some(domain));
    row.expect("the subscriber is listed").path.clone()
}

/// Publishes a small and a large message in `from`, reads them in `to`, and expects `reason` in the path's description.
fn goes(settings: &str, from: Domain, to: Domain, reason: &str) {
    let (_daemon, node) = node(settings);
    let subscriber = node.subscriber("p").domain(to).create().unwrap();
    let publisher = node.publisher("p").domain(from).create().unwrap();
    for bytes in [1000, 5 << 20] {
        publisher.put(&payload(bytes, 1)).unwrap();
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert!(bytes_of(&sample) == payload(bytes, 1));
    }
    let said = path(&node, "p", to);
    assert!(said.contains(reason), "from {from} to {to}: '{said}'");
}

#[test]
fn a_path_is_named_with_its_reason() {
    let gpus = gpus();
    let one = gpus[0].1;
    for domain in [one, Domain::Host] {
        goes("", domain, domain, "zero copy");
    }
    goes("", Domain::Host, one, "the messages are on the host");
    goes("", one, Domain::Host, "the CPU cannot map");
    let driver = gpus[0].0.driver();
    match gpus.get(1).map(|(_, two)| *two) {
        None => eprintln!("there is one GPU: nothing between two is looked at"),
        Some(two) if driver.reaches(gpus[0].0.device(), uuid_of(two)).unwrap() => {
            goes("peer = \"map\"\n", one, two, "the GPUs have peer access");
            goes("peer = \"copy\"\n", one, two, "over the peer connection");
        }
        Some(two) => goes("", one, two, "the GPUs have no peer access"),
    }
    // A late joiner's path is unknown before its first message; then the reason is that the subscriber copies itself.
    let (_daemon, node) = node("");
    let publisher = node
        .publisher("q")
        .domain(one)
        .keep_last(1)
        .transient_local()
        .create()
        .unwrap();
    publisher.put(&payload(1000, 2)).unwrap();
    let late = node.subscriber("q").late(Late::Latest);
    let late = late.domain(Domain::Host).create().unwrap();
    assert!(path(&node, "q", Domain::Host).contains("known with the first message"));
    late.recv_timeout(SOON).unwrap();
    assert!(path(&node, "q", Domain::Host).contains("copied by the subscriber"));
}

/// Expects that the daemon refused a member because its path is too slow, with all `words` in the message.
fn too_slow<T: std::fmt::Debug>(joined: Result<T, rgaps::OpenError>, words: &[&str]) {
    match joined.unwrap_err() {
        rgaps::OpenError::Client(rgaps::ClientError::Refused(refusal)) => {
            assert_eq!(refusal.code, rgaps::RefusalCode::PathTooSlow, "{refusal}");
            for word in words {
                assert!(refusal.message.contains(word), "{word}: {refusal}");
            }
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_path_that_is_slower_than_required_is_refused_to_whoever_comes_later() {
    let Some(gpus) = two_gpus() else { return };
    let (_daemon, node) = node("");
    let (one, two) = (gpus[0].1, gpus[1].1);
    let words = &[
        "publisher requires",
        "zero_copy",
        "this one is pinned",
        "read in",
    ];
    // The publisher requires, and the subscriber comes later.
    let publisher = node.publisher("a").domain(Domain::Host);
    let publisher = publisher.require(PathKind::ZeroCopy).create().unwrap();
    let here = node.subscriber("a").domain(Domain::Host).create().unwrap();
    too_slow(node.subscriber("a").domain(one).create(), words);
    publisher.put(&[7; 100]).unwrap();
    assert_eq!(bytes_of(&here.recv_timeout(SOON).unwrap()), [7; 100]);
    // And the other way round.
    let _there = node.subscriber("b").domain(one).create().unwrap();
    let late = || node.publisher("b").domain(Domain::Host);
    too_slow(late().require(PathKind::Peer).create(), &["peer", "pinned"]);
    let _late = late().require(PathKind::Pinned).create().unwrap();
    // The subscriber requires, and comes after the publisher.
    let _publisher = node.publisher("c").domain(one).create().unwrap();
    let reader = |domain| node.subscriber("c").domain(domain);
    let words = &["subscriber requires", "peer", "this one is pinned"];
    too_slow(reader(Domain::Host).require(PathKind::Peer).create(), words);
    let _same = reader(one).require(PathKind::ZeroCopy).create().unwrap();
    let reader = |path| reader(two).require(path).create();
    too_slow(reader(PathKind::ZeroCopy), &["zero_copy"]);
    let reaches = gpus[1].0.driver().reaches(gpus[1].0.device(), uuid_of(one));
    match reaches.unwrap() {
        true => drop(reader(PathKind::Peer).unwrap()),
        false => too_slow(reader(PathKind::Peer), &["no peer access"]),
    }
    let _pinned = reader(PathKind::Pinned).unwrap();
    // The subscriber requires, and the publisher comes later.
    let _reader = node.subscriber("d").domain(Domain::Host);
    let _reader = _reader.require(PathKind::ZeroCopy).create().unwrap();
    too_slow(
        node.publisher("d").domain(one).create(),
        &["subscriber requires", "pinned"],
    );
    node.publisher("d").domain(Domain::Host).create().unwrap();
}

fn uuid_of(domain: Domain) -> rgaps::GpuUuid {
    match domain {
        Domain::Cuda(uuid) => uuid,
        Domain::Host => panic!("not a GPU"),
    }
}

/// The allocated blocks of 512 bytes of the daemon's host pools.
fn pool_pages(daemon: &Daemon) -> u64 {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.id())).unwrap();
    let paths = descriptors.map(|entry| entry.unwrap().path());
    let pools = paths.filter(|path| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().contains("memfd:rgaps-pool")
    });
    let pages = pools.filter_map(|path| std::fs::metadata(path).ok());
    pages
        .map(|meta| std::os::unix::fs::MetadataExt::blocks(&meta))
        .sum()
}

#[test]
fn pages_that_a_gpus_driver_knows_are_not_given_back_to_the_system() {
    let gpus = gpus();
    for registered in [false, true] {
        let (daemon, node) = node("");
        let away = match registered {
            true => Some(node.subscriber("pin").domain(gpus[0].1).create().unwrap()),
            false => None,
        };
        let publisher = node
            .publisher("pin")
            .domain(Domain::Host)
            .keep_last(1)
            .create()
            .unwrap();
        let round = |seed: usize| {
            publisher.put(&payload(16 << 20, seed)).unwrap();
            if let Some(away) = &away {
                let sample = away.recv_timeout(SOON).unwrap();
                assert!(bytes_of(&sample) == payload(16 << 20, seed));
            }
        };
        (0..2).for_each(round);
        let full = pool_pages(&daemon);
        assert!(full >= 16 << 11, "{full} blocks of 512 bytes");
        // A small message takes the place of the large one, and its memory goes back to the daemon.
        publisher.put(&payload(100, 2)).unwrap();
        if let Some(away) = &away {
            away.recv_timeout(SOON).unwrap();
        }
        let mut leased = u64::MAX;
        until("memory goes back to the daemon", || {
            publisher.trim(0).unwrap();
            leased = publisher.leased_bytes();
            leased <= 4 << 20
        });
        let left = pool_pages(&daemon);
        let given_back = left < full / 2;
        assert_eq!(given_back, !registered, "{left} of {full} blocks are left");
        // The pages that the driver registered are still those that all processes map.
        (3..5).for_each(round);
    }
}

/// Subscribers on an integrated GPU read the host's messages where they are.
#[test]
fn integrated_gpus_skip_staging() {
    if is_real() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    let alone = |name: &str, settings: &[(&str, &str)]| {
        Alone::start(&["--exact", name, "--ignored"], settings).passes(6 * SOON);
    };
    let second = ("RGAPS_TEST_DRIVER_INTEGRATED", "1");
    alone("alone_an_integrated_gpu_reads", &[second]);
    // Where the driver cannot register read-only memory, or fails to, the subscriber gets copies.
    for (name, value) in [
        ("RGAPS_TEST_DRIVER_LACK", "readonly"),
        ("RGAPS_TEST_DRIVER_LACK", "register"),
        (
            "RGAPS_TEST_DRIVER_FAIL",
            "cuMemHostRegister:2+:CUDA_ERROR_OUT_OF_MEMORY",
        ),
    ] {
        alone(
            "alone_an_integrated_gpu_has_copies",
            &[second, (name, value)],
        );
    }
    // These tests also pass where both GPUs are integrated.
    for name in [
        "messages_travel_between_all_domains",
        "history_reaches_a_late_joiner_in_another_domain",
        "messages_travel_while_the_daemon_is_away_and_after",
        "a_copy_is_made_behind_the_work_that_writes_the_message",
    ] {
        let all = ("RGAPS_TEST_DRIVER_INTEGRATED", "0,1");
        Alone::start(&["--exact", name], &[(AGAIN, "1"), all]).passes(6 * SOON);
    }
}

#[test]
#[ignore = "a part of `integrated_gpus_skip_staging`"]
fn alone_an_integrated_gpu_reads() {
    let gpus = gpus();
    let (context, integrated) = &gpus[1];
    let (_daemon, node) = node("[pool.host]\nsegment = \"8MiB\"\n");
    let away = node.subscriber("i").reliable().domain(*integrated);
    let away = away.create().unwrap();
    let publisher = node.publisher("i").domain(Domain::Host).keep_last(1);
    let publisher = publisher.deadline(SOON).create().unwrap();
    let stream = CudaStream::new(context.clone()).unwrap();
    // Through several segments of the pool, each of which is registered.
    for (seed, bytes) in [100usize, 3 << 20, 9 << 20, 5 << 20]
        .into_iter()
        .enumerate()
    {
        publisher.put(&payload(bytes, seed)).unwrap();
        let sample = away.recv_timeout(SOON).unwrap();
        assert_eq!((sample.domain(), sample.len()), (*integrated, bytes as u64));
        // Work of the GPU reads the message in place, behind the work that is already queued.
        let target = rgaps_cuda::PinnedBuffer::new(context.clone(), 16 << 20).unwrap();
        sample.wait_on(stream.handle()).unwrap();
        // SAFETY: the sample is held and the buffer lives until the stream's work has finished.
        unsafe {
            let copied = stream.copy(target.address(), sample.address(), sample.len());
            copied.unwrap();
        }
        stream.synchronize().unwrap();
        // SAFETY: the buffer has 16 MiB, more than `bytes`, and `synchronize` has waited for all work on it.
        let read = unsafe { std::slice::from_raw_parts(target.address() as *const u8, bytes) };
        assert!(read == payload(bytes, seed));
        drop(sample);
    }
    // The publisher made no copy, and leased no memory for one.
    let alone = node.publisher("alone").domain(Domain::Host).keep_last(1);
    let alone = alone.create().unwrap();
    alone.put(&payload(5 << 20, 3)).unwrap();
    uses(&publisher, alone.used_bytes());
    let said = path(&node, "i", *integrated);
    assert!(said.contains("integrated"), "'{said}'");
    let gpu_pool = node.pools().unwrap();
    let gpu_pool = gpu_pool.iter().find(|pool| pool.domain == *integrated);
    assert!(gpu_pool.is_none_or(|pool| pool.leased_bytes == 0));
    // A reader on the other GPU gets its copy all the same.
    let far = node.subscriber("i").reliable().domain(gpus[0].1);
    let far = far.create().unwrap();
    publisher.put(&payload(1 << 20, 9)).unwrap();
    for subscriber in [&away, &far] {
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert!(bytes_of(&sample) == payload(1 << 20, 9));
    }
    // Nobody writes a block that was released on a stream before the stream's work has finished.
    let sample = away.recv_timeout(Duration::ZERO).err();
    assert!(matches!(sample, Some(RecvError::TimedOut(_))));
    publisher.put(&payload(1 << 20, 10)).unwrap();
    far.recv_timeout(SOON).unwrap();
    let sample = away.recv_timeout(SOON).unwrap();
    let (at, driver) = (sample.address(), driver());
    let overlaps = |sample: &Sample| sample.address().abs_diff(at) < 1 << 20;
    let held = driver.hold(stream.handle().0);
    let target = rgaps_cuda::PinnedBuffer::new(context.clone(), 1 << 20).unwrap();
    // SAFETY: the buffer outlives the work. The fill stands for work that reads the sample.
    unsafe { stream.fill(target.address(), 1, 1 << 20).unwrap() };
    sample.release_on(stream.handle());
    for seed in 0..8 {
        publisher.put(&payload(1 << 20, 20 + seed)).unwrap();
        let sample = away.recv_timeout(SOON).unwrap();
        assert!(!overlaps(&sample), "its reader has not passed");
        far.recv_timeout(SOON).unwrap();
    }
    drop(held);
    until("its memory is used again", || {
        // Takes all free blocks, so the released one is among them.
        let free = std::iter::from_fn(|| publisher.try_loan(1 << 20).ok().flatten());
        let free: Vec<_> = free.collect();
        free.into_iter().any(|loan| {
            loan.publish().unwrap();
            far.recv_timeout(SOON).unwrap();
            overlaps(&away.recv_timeout(SOON).unwrap())
        })
    });
}

#[test]
#[ignore = "a part of `integrated_gpus_skip_staging`"]
fn alone_an_integrated_gpu_has_copies() {
    let gpus = gpus();
    let (_daemon, node) = node("");
    let away = node.subscriber("i").domain(gpus[1].1).create().unwrap();
    let publisher = node.publisher("i").domain(Domain::Host).create().unwrap();
    for seed in 0..3 {
        publisher.put(&payload(1 << 20, seed)).unwrap();
        let sample = away.recv_timeout(SOON).unwrap();
        assert_eq!(sample.domain(), gpus[1].1);
        assert!(bytes_of(&sample) == payload(1 << 20, seed));
    }
    let said = path(&node, "i", gpus[1].1);
    assert!(said.contains("copied"), "'{said}'");
}

/// Runs the other tests again where all GPUs are peers and where none are, with other delays.
#[test]
fn again_with_other_drivers() {
    if is_real() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    for (peers, seed) in [("all", "1"), ("none", "2")] {
        let settings = [
            (AGAIN, "1"),
            ("RGAPS_TEST_DRIVER_PEERS", peers),
            ("RGAPS_TEST_DRIVER_SEED", seed),
            ("RGAPS_TEST_DRIVER_DELAY_US", "3000"),
        ];
        Alone::start(&["--test-threads=2"], &settings).passes(12 * SOON);
    }
}

#[test]
fn a_domain_has_one_copy_however_many_read_there() {
    let Some(gpus) = two_gpus() else { return };
    let (_daemon, node) = node("peer = \"copy\"\n");
    let publisher = node
        .publisher("one")
        .domain(gpus[0].1)
        .keep_last(1)
        .create()
        .unwrap();
    publisher.put(&payload(1 << 20, 0)).unwrap();
    let one = publisher.used_bytes();
    assert!(one >= 1 << 20);
    let away: Vec<_> = (0..3)
        .map(|_| node.subscriber("one").domain(gpus[1].1).create().unwrap())
        .collect();
    publisher.put(&payload(1 << 20, 1)).unwrap();
    let samples: Vec<Sample> = away
        .iter()
        .map(|subscriber| subscriber.recv_timeout(SOON).unwrap())
        .collect();
    for sample in &samples {
        assert_eq!(sample.address(), samples[0].address());
        assert!(bytes_of(sample) == payload(1 << 20, 1));
    }
    uses(&publisher, 2 * one);
    // The copy is freed once its message has left the ring and its readers have released it.
    drop(samples);
    drop(away);
    publisher.put(&payload(1 << 20, 2)).unwrap();
    uses(&publisher, one);
    // The pool in which the copy was made counts it, once.
    for pool in node.pools().unwrap() {
        let expected = match pool.domain == gpus[1].1 {
            true => (1, 1 << 20),
            false => (0, 0),
        };
        assert_eq!((pool.copied_messages, pool.copied_bytes), expected);
    }
}

#[test]
fn a_subscriber_that_does_not_match_gets_no_copies_in_its_domain() {
    let there = gpus()[0].1;
    let (_daemon, node) = node("peer = \"copy\"\n");
    let away = || node.subscriber("typed").domain(there).reliable();
    let stranger = away().type_name("image").create().unwrap();
    let publisher = node.publisher("typed").keep_last(1).create().unwrap();
    let here = node.subscriber("typed").create().unwrap();
    let copied = || {
        let pools = node.pools().unwrap();
        let copied = pools.iter().map(|pool| pool.copied_messages);
        copied.sum::<u64>()
    };
    let replicas = || {
        let publishers = node.topic("typed").unwrap().publishers;
        publishers[0].uses.replicas.blocks
    };
    let publish = |seed| {
        publisher.put(&payload(1 << 20, seed)).unwrap();
        assert!(bytes_of(&here.recv_timeout(SOON).unwrap()) == payload(1 << 20, seed));
    };
    assert_eq!((publisher.subscribers(), publisher.mismatched()), (1, 1));
    (0..3).for_each(publish);
    assert_eq!((copied(), replicas()), (0, 0));
    // A subscriber that matches gets copies until it leaves.
    let reader = away().create().unwrap();
    publish(3);
    let sample = reader.recv_timeout(SOON).unwrap();
    assert_eq!(sample.domain(), there);
    assert!(bytes_of(&sample) == payload(1 << 20, 3));
    assert_eq!((copied(), replicas()), (1, 1));
    drop((sample, reader));
    publish(4);
    assert_eq!(copied(), 1);
    assert!(matches!(stranger.try_recv(), Ok(None)));
}

#[test]
fn a_publish_that_fails_keeps_the_loan_and_no_copy() {
    let Some(gpus) = two_gpus() else { return };
    let (_daemon, node) = node("peer = \"copy\"\n");
    let publisher = node
        .publisher("fails")
        .domain(gpus[0].1)
        .keep_last(1)
        .create()
        .unwrap();
    let away = node.subscriber("fails").domain(gpus[1].1).create().unwrap();
    let loan = publisher.loan(1 << 20).unwrap();
    let one = publisher.used_bytes();
    let unpublished = loan.publish_on(Stream(0x10)).unwrap_err();
    uses(&publisher, one);
    let mut loan = unpublished.loan.unwrap();
    loan.write(0, &payload(1 << 20, 5)).unwrap();
    loan.publish().unwrap();
    let sample = away.recv_timeout(SOON).unwrap();
    assert!(bytes_of(&sample) == payload(1 << 20, 5));
    uses(&publisher, 2 * one);
}

#[test]
fn without_memory_for_a_copy_nothing_is_published_and_nothing_lost() {
    let gpus = gpus();
    let (_daemon, node) =
        node("peer = \"copy\"\n[pool.host]\ncap = \"8MiB\"\nsegment = \"8MiB\"\n");
    let publisher = node
        .publisher("short")
        .domain(gpus[0].1)
        .keep_last(1)
        .loan_timeout(Duration::from_millis(50))
        .create()
        .unwrap();
    let host = node
        .subscriber("short")
        .reliable()
        .domain(Domain::Host)
        .create()
        .unwrap();
    publisher.put(&payload(6 << 20, 0)).unwrap();
    let held = host.recv_timeout(SOON).unwrap();
    let mut loan = publisher.loan(6 << 20).unwrap();
    loan.write(0, &payload(6 << 20, 1)).unwrap();
    let unpublished = loan.publish().unwrap_err();
    let PublishError::Replica(error) = &unpublished.error else {
        panic!("another error: {unpublished}");
    };
    assert!(
        matches!(**error, LoanError::PoolFull { domain: "host", .. }),
        "{unpublished}"
    );
    assert!(bytes_of(&held) == payload(6 << 20, 0));
    drop(held);
    unpublished.loan.unwrap().publish().unwrap();
    let sample = host.recv_timeout(SOON).unwrap();
    assert_eq!((sample.sequence(), sample.missed()), (1, 0));
    assert!(bytes_of(&sample) == payload(6 << 20, 1));
}

#[test]
fn messages_travel_while_the_daemon_is_away_and_after() {
    let Some(gpus) = two_gpus() else { return };
    let (mut daemon, node) = node("peer = \"copy\"\n");
    let away: Vec<_> = [gpus[1].1, Domain::Host]
        .into_iter()
        .map(|domain| node.subscriber("away").domain(domain).create().unwrap())
        .collect();
    let publisher = node.publisher("away").domain(gpus[0].1).create().unwrap();
    let travel = |seed: usize, bytes: usize| {
        let sent = payload(bytes, seed);
        let mut put = publisher.put(&sent);
        // Leasing more memory has to wait for a daemon.
        until("a message is published", || {
            if put.is_err() {
                put = publisher.put(&sent);
            }
            put.is_ok()
        });
        for subscriber in &away {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert!(bytes_of(&sample) == sent, "message {seed}");
        }
    };
    (0..3).for_each(|seed| travel(seed, 100_000));
    daemon.kill();
    (3..6).for_each(|seed| travel(seed, 100_000));
    daemon.restart();
    (6..9).for_each(|seed| travel(seed, 12 << 20));
}

#[test]
fn copies_of_a_publisher_that_dies_are_aborted() {
    if is_real() {
        return;
    }
    let gpus = gpus();
    let (daemon, node) = node("peer = \"copy\"\n");
    let domains = [gpus[0].1, gpus[1].1, Domain::Host];
    let subscribers =
        domains.map(|domain| node.subscriber("dies").domain(domain).create().unwrap());
    let mut publisher = Alone::part("alone_a_publisher_dies", &daemon);
    for subscriber in &subscribers {
        let sample = subscriber.recv_timeout(3 * SOON).unwrap();
        assert!(bytes_of(&sample) == payload(1 << 20, 0));
    }
    publisher.says("queued");
    let unfinished: Vec<Sample> = subscribers
        .iter()
        .map(|subscriber| subscriber.recv_timeout(SOON).unwrap())
        .collect();
    for (sample, domain) in unfinished.iter().zip(domains) {
        assert_eq!(sample.domain(), domain);
        assert!(!sample.is_ready().unwrap(), "what was held is done");
    }
    publisher.kill();
    for sample in &unfinished {
        let ended = sample.synchronize(SOON);
        assert!(matches!(ended, Err(RecvError::Aborted { .. })), "{ended:?}");
    }
    drop(unfinished);
    let next = node.publisher("dies").domain(gpus[0].1).create().unwrap();
    next.put(&payload(1 << 20, 9)).unwrap();
    for subscriber in &subscribers {
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert!(bytes_of(&sample) == payload(1 << 20, 9));
    }
}

#[test]
#[ignore = "a part of `copies_of_a_publisher_that_dies_are_aborted`"]
fn alone_a_publisher_dies() {
    let gpus = gpus();
    let (context, home) = &gpus[0];
    let publisher = node_alone()
        .publisher("dies")
        .domain(*home)
        .create()
        .unwrap();
    assert!(publisher.wait_for_subscribers(3, SOON).unwrap());
    publisher.put(&payload(1 << 20, 0)).unwrap();
    let (stream, driver) = (CudaStream::new(context.clone()).unwrap(), driver());
    let loan = publisher.loan(1 << 20).unwrap();
    let _held = driver.hold(stream.handle().0);
    // SAFETY: we hold the loan, so nobody else uses its bytes; `publish_on` orders readers and copies behind this work.
    unsafe { stream.fill(loan.address(), 1, loan.len()).unwrap() };
    loan.publish_on(stream.handle()).unwrap();
    println!("queued");
    std::thread::sleep(2 * SOON);
}

#[test]
fn a_subscriber_of_another_domain_that_dies_keeps_nothing() {
    let Some(gpus) = two_gpus() else { return };
    let (daemon, node) = node("peer = \"copy\"\n");
    let publisher = node
        .publisher("leaves")
        .domain(gpus[0].1)
        .keep_last(1)
        .create()
        .unwrap();
    publisher.put(&payload(1 << 20, 0)).unwrap();
    let one = publisher.used_bytes();
    let mut subscriber = Alone::part("alone_a_subscriber_dies", &daemon);
    assert!(publisher.wait_for_subscribers(1, 3 * SOON).unwrap());
    publisher.put(&payload(1 << 20, 1)).unwrap();
    subscriber.says("holds it with 1 context");
    publisher.put(&payload(1 << 20, 2)).unwrap();
    // The message in the ring, its copy, and the copy that the subscriber holds.
    uses(&publisher, 3 * one);
    subscriber.kill();
    until("the daemon takes it out", || publisher.subscribers() == 0);
    publisher.put(&payload(1 << 20, 3)).unwrap();
    uses(&publisher, one);
}

#[test]
#[ignore = "a part of `a_subscriber_of_another_domain_that_dies_keeps_nothing`"]
fn alone_a_subscriber_dies() {
    let devices = Driver::load().unwrap().devices().unwrap();
    let subscriber = node_alone()
        .subscriber("leaves")
        .domain(Domain::Cuda(devices[1].uuid))
        .create()
        .unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert!(bytes_of(&sample) == payload(1 << 20, 1));
    // The subscriber has opened the GPU on which it reads, but not the publisher's.
    let contexts = match is_real() {
        true => 1,
        false => driver().live("contexts"),
    };
    println!("holds it with {contexts} context");
    std::thread::sleep(2 * SOON);
}

#[test]
fn a_gpu_that_only_copies_may_be_lost() {
    if is_real() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    Alone::start(
        &["--exact", "alone_a_copying_gpu_is_lost", "--ignored"],
        &[],
    )
    .passes(6 * SOON);
}

/// A GPU copies host messages to its own memory. Its context is lost, and subscribers on the host go on.
#[test]
#[ignore = "a part of `a_gpu_that_only_copies_may_be_lost`"]
fn alone_a_copying_gpu_is_lost() {
    let gpus = gpus();
    let (_daemon, node) = node("");
    let host = node.subscriber("lost").create().unwrap();
    let away = node.subscriber("lost").domain(gpus[1].1).create().unwrap();
    let publisher = node
        .publisher("lost")
        .domain(Domain::Host)
        .create()
        .unwrap();
    publisher.put(&payload(1 << 20, 0)).unwrap();
    assert!(bytes_of(&away.recv_timeout(SOON).unwrap()) == payload(1 << 20, 0));
    // The copy of this message is queued when the context is lost.
    publisher.put(&payload(1 << 20, 1)).unwrap();
    driver().lose_context(1);
    publisher.put(&payload(1 << 20, 2)).unwrap();
    for seed in 0..3 {
        let sample = host.recv_timeout(SOON).unwrap();
        assert_eq!(sample.sequence(), seed as u64);
        assert!(bytes_of(&sample) == payload(1 << 20, seed));
    }
    // Closing waits for no work that will never finish.
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        drop(publisher);
        drop(away);
        let _ = done.send(());
    });
    is_done.recv_timeout(SOON).expect("they leave");
}
