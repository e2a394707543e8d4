//! Nodes that start a real daemon, and go on when it dies. This program is also the daemon (`RGAPS_DAEMON` names
//! it) and the other client processes, so it has a `main` of its own instead of the test harness.

use rgaps::{Config, Loan, Node, Publisher, Subscriber};
use rgaps_engine::{state_path, Engine, Reactor, Setup, SystemSources};
use rgaps_session::{DaemonLock, Ready, SessionListener};
use rgaps_testkit::{resume, stop, until};
use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST: u64 = 300_000;

fn main() {
    if std::env::var_os("RGAPSD_CONFIG").is_some() {
        return daemon();
    }
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).map(String::as_str) == Some("subscriber") {
        return subscriber_process(Path::new(&arguments[2]));
    }
    std::env::set_var("RGAPS_DAEMON", std::env::current_exe().unwrap());
    let tests: [(&str, fn()); 5] = [
        (
            "nothing_is_lost_when_the_daemon_is_killed",
            nothing_is_lost_when_the_daemon_is_killed,
        ),
        (
            "a_new_segment_reaches_subscribers_that_the_daemon_does_not_outlive",
            a_new_segment_reaches_subscribers_that_the_daemon_does_not_outlive,
        ),
        (
            "a_client_that_died_with_the_daemon_is_cleaned_up",
            a_client_that_died_with_the_daemon_is_cleaned_up,
        ),
        (
            "a_stopped_daemon_leaves_its_members_running",
            a_stopped_daemon_leaves_its_members_running,
        ),
        (
            "the_daemon_leaves_when_nobody_needs_it",
            the_daemon_leaves_when_nobody_needs_it,
        ),
    ];
    for (name, test) in tests {
        let started = Instant::now();
        test();
        println!(
            "test {name} ... ok ({:.1} s)",
            started.elapsed().as_secs_f64()
        );
    }
}

/// Runs the daemon as `rgapsd` does, without its command line.
fn daemon() {
    let mut ready = Ready::from_env();
    let mut config = Config::load(None).unwrap();
    // The size that these tests rely on, whatever the default is.
    config.pool.host.segment.0 = 64 << 20;
    let socket = config.socket_path();
    let lock = match DaemonLock::take(&DaemonLock::path_for(&socket), "default") {
        Ok(lock) => lock,
        Err(error) => return ready.failed(&error.to_string()),
    };
    let listener = SessionListener::bind(&socket, config.socket_mode.0, &lock).unwrap();
    let setup = Setup {
        sources: Box::new(SystemSources::new(&config)),
        state_file: Some(state_path(&socket)),
        version: "test".to_owned(),
        socket,
        config,
    };
    let engine = Engine::new(setup, Instant::now()).unwrap();
    let never = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let reactor = Reactor::new(engine, listener, never).unwrap();
    ready.ready();
    reactor.run().unwrap();
}

fn config(socket: &Path) -> Config {
    Config {
        socket: Some(socket.to_owned()),
        idle_exit_ms: 300,
        ..Config::default()
    }
}

fn node(socket: &Path, name: &str) -> Node {
    Node::builder(name).config(config(socket)).build().unwrap()
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("r.sock")
    }

    fn node(&self, name: &str) -> Node {
        node(&self.socket(), name)
    }

    fn reader(&self) -> Reader {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["subscriber".as_ref(), self.socket().as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut reader = Reader {
            child,
            stdin,
            stdout,
        };
        assert_eq!(reader.line(), "joined");
        reader
    }
}

/// Another process with a reliable subscriber of "t".
struct Reader {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Reader {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

fn reliable(node: &Node) -> (Publisher, impl Fn() -> Subscriber + '_) {
    let publisher = node
        .publisher("t")
        .keep_last(16)
        .deadline(PATIENCE)
        .loan_timeout(PATIENCE)
        .create()
        .unwrap();
    (publisher, || {
        node.subscriber("t").reliable().create().unwrap()
    })
}

/// Receives until a message of no bytes arrives, then prints how many messages it received, missed and found corrupt.
fn subscriber_process(socket: &Path) {
    let node = node(socket, "reader");
    let subscriber = node.subscriber("t").reliable().create().unwrap();
    println!("joined");
    let (mut received, mut corrupt) = (0u64, 0u64);
    loop {
        let sample = subscriber.recv_timeout(PATIENCE).unwrap();
        if sample.is_empty() {
            break;
        }
        corrupt += u64::from(!is_whole(sample.as_slice().unwrap(), received));
        received += 1;
    }
    println!(
        "{received} received, {} missed, {corrupt} corrupt",
        subscriber.missed()
    );
    std::io::stdout().flush().unwrap();
    // Stays in the topic until the test writes a line.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn length_of(number: u64) -> u64 {
    16 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % LONGEST
}

fn publish(publisher: &Publisher, number: u64) {
    publish_in(publisher.loan(length_of(number)).unwrap(), number);
}

fn publish_in(mut loan: Loan, number: u64) {
    let bytes = loan.as_mut_slice().unwrap();
    bytes.fill(number as u8);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    loan.publish().unwrap();
}

fn is_whole(bytes: &[u8], number: u64) -> bool {
    bytes.len() as u64 == length_of(number)
        && bytes[..8] == number.to_le_bytes()
        && bytes[8..] == vec![number as u8; bytes.len() - 8]
}

fn is_running(pid: u32) -> bool {
    // A dead process that nobody has reaped still has a number, but no command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Sends SIGKILL, and waits until the process has ended.
fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    until("the death", || !is_running(pid));
}

fn nothing_is_lost_when_the_daemon_is_killed() {
    let place = Place::new();
    let node = place.node("writer");
    let (publisher, subscribe) = reliable(&node);
    let own = subscribe();
    let mut reader = place.reader();
    let mut daemons = vec![node.status().unwrap().pid];
    let mut number = 0;
    let burst = |number: &mut u64, count: u64| {
        for _ in 0..count {
            publish(&publisher, *number);
            let sample = own.recv_timeout(PATIENCE).unwrap();
            assert!(is_whole(sample.as_slice().unwrap(), *number));
            *number += 1;
        }
    };
    for _ in 0..4 {
        burst(&mut number, 100);
        kill(*daemons.last().unwrap());
        // No daemon runs meanwhile, or the next one takes over.
        burst(&mut number, 300);
        let pid = node.status().unwrap().pid;
        assert!(!daemons.contains(&pid), "another daemon serves");
        daemons.push(pid);
        // The next daemon knows all members, and lets new ones join.
        let info = node.topic("t").unwrap();
        assert_eq!((info.publishers.len(), info.subscribers.len()), (1, 2));
        let late = subscribe();
        publish(&publisher, number);
        for subscriber in [&own, &late] {
            let sample = subscriber.recv_timeout(PATIENCE).unwrap();
            assert!(is_whole(sample.as_slice().unwrap(), number));
        }
        number += 1;
    }
    publisher.loan(0).unwrap().publish().unwrap();
    assert_eq!(
        reader.line(),
        format!("{number} received, 0 missed, 0 corrupt")
    );
    writeln!(reader.stdin).unwrap();
    assert!(reader.child.wait().unwrap().success());
    until("the reader's leaving", || {
        node.topic("t").unwrap().subscribers.len() == 1
    });
}

/// The test stops the subscriber's process while the pool grows and the daemon ends. No other daemon starts.
fn a_new_segment_reaches_subscribers_that_the_daemon_does_not_outlive() {
    let place = Place::new();
    let node = place.node("writer");
    let (publisher, _) = reliable(&node);
    let mut reader = place.reader();
    publish(&publisher, 0);
    let daemon = node.status().unwrap().pid;
    stop(reader.child.id());
    let pool = || node.pools().unwrap().remove(0);
    let before = pool();
    // Part of the first segment is in use, so a loan of a whole segment needs another one.
    let mut loan = publisher.loan(before.segment_bytes).unwrap();
    assert!(pool().segments > before.segments, "the pool grows");
    loan.truncate(length_of(1));
    publish_in(loan, 1);
    node.stop_daemon().unwrap();
    until("its end", || !is_running(daemon));
    resume(reader.child.id());
    publisher.loan(0).unwrap().publish().unwrap();
    assert_eq!(reader.line(), "2 received, 0 missed, 0 corrupt");
    assert!(!place.socket().exists(), "there is no daemon to ask");
    writeln!(reader.stdin).unwrap();
    assert!(reader.child.wait().unwrap().success());
}

fn a_client_that_died_with_the_daemon_is_cleaned_up() {
    let place = Place::new();
    let node = place.node("writer");
    let (publisher, _) = reliable(&node);
    let mut reader = place.reader();
    for number in 0..8 {
        publish(&publisher, number);
    }
    let pid = node.status().unwrap().pid;
    // The stopped daemon cannot clean up after the reader: only its successor can.
    stop(pid);
    kill(reader.child.id());
    kill(pid);
    reader.child.wait().unwrap();
    until("its successor's notice of the death", || {
        node.topic("t").unwrap().subscribers.is_empty()
    });
    // The dead reader does not back-pressure the publisher.
    for number in 0..100 {
        publish(&publisher, number);
    }
}

fn a_stopped_daemon_leaves_its_members_running() {
    let place = Place::new();
    let node = place.node("both");
    let (publisher, subscribe) = reliable(&node);
    let subscriber = subscribe();
    // Leases enough memory for all messages: without a daemon the publisher gets no more.
    drop(publisher.loan(LONGEST + 16).unwrap());
    publish(&publisher, 0);
    let pid = node.status().unwrap().pid;
    node.stop_daemon().unwrap();
    until("its end", || !is_running(pid));
    publish(&publisher, 1);
    for number in 0..2 {
        assert!(is_whole(
            subscriber
                .recv_timeout(PATIENCE)
                .unwrap()
                .as_slice()
                .unwrap(),
            number
        ));
    }
    let error = node.subscriber("u").create().err().unwrap().to_string();
    assert!(error.contains("rgaps up"), "{error}");
    assert!(!place.socket().exists(), "and none was started");
    // Another node starts a daemon. The first node finds it, and can create subscribers again.
    let other = place.node("other");
    until("the new daemon", || node.subscriber("u").create().is_ok());
    assert_ne!(other.status().unwrap().pid, pid);
    publish(&publisher, 2);
    assert!(is_whole(
        subscriber
            .recv_timeout(PATIENCE)
            .unwrap()
            .as_slice()
            .unwrap(),
        2
    ));
    // The first node has handed over the topic and the pools. The new daemon leases memory, and lets both nodes join.
    until("the topic", || other.topic("t").is_ok());
    let mut loan = publisher.loan(200 << 20).unwrap();
    loan.truncate(length_of(3));
    publish_in(loan, 3);
    let sample = subscriber.recv_timeout(PATIENCE).unwrap();
    assert!(is_whole(sample.as_slice().unwrap(), 3));
    let late = other.subscriber("t").reliable().create().unwrap();
    publish(&publisher, 4);
    assert!(is_whole(
        late.recv_timeout(PATIENCE).unwrap().as_slice().unwrap(),
        4
    ));
}

fn the_daemon_leaves_when_nobody_needs_it() {
    let place = Place::new();
    let node = place.node("brief");
    let pid = node.status().unwrap().pid;
    // A second daemon becomes idle later than the first, and has ended. So the first would have ended too, were it idle.
    let idle = Place::new().node("briefer").status().unwrap().pid;
    until("the end of an idle daemon", || !is_running(idle));
    assert!(is_running(pid), "while it is needed it stays");
    drop(node);
    until("its end", || !is_running(pid));
    assert!(!place.socket().exists());
    assert_ne!(place.node("again").status().unwrap().pid, pid);
}
