//! Clients that write nonsense where they may write, while honest members work.

use rgaps_hostile::daemon;
use rgaps_hostile::honest::{Expect, Pair};
use rgaps_testkit::{seed, until, Daemon};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long nonsense is written.
const WHILE: Duration = Duration::from_millis(1500);

/// A scribbler's process, at work.
fn scribbler(daemon: &Daemon, topic: &str, target: &str, seed: u64) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hostile-scribbler"))
        .arg(daemon.socket())
        .args([topic, target, &seed.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the scribbler");
    let mut line = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), "scribbling");
    child
}

fn scribbled(target: &str) {
    let seed = seed();
    let mut daemon = daemon::start();
    let config = daemon.config();
    let bystanders = Pair::start(&config, "honest", Expect::Perfection, seed);
    let victims = Pair::start(&config, "scribbled", Expect::Survival, seed ^ 1);
    bystanders.goes_on(10);
    victims.goes_on(10);

    let mut liar = scribbler(&daemon, "scribbled", target, seed);
    let until = Instant::now() + WHILE;
    while Instant::now() < until {
        bystanders.goes_on(1);
        victims.assert_alive();
        daemon.assert_well();
        // Listings read what is scribbled over.
        let node = daemon.node("looks");
        node.topics().expect("topics");
        let _ = node.topic("scribbled");
        std::thread::sleep(Duration::from_millis(20));
    }
    liar.kill().expect("SIGKILL");
    liar.wait().expect("its end");

    bystanders.goes_on(20);
    let (published, received, errors) = bystanders.end();
    assert_eq!((received, errors), (published, 0));
    let (published, received, errors) = victims.end();
    eprintln!("{target}: {published} published, {received} received, {errors} errors");
    daemon.assert_well();
    after_all_have_gone(&mut daemon, seed);
}

/// The scribbled topic goes with its members, and the daemon goes on with others.
fn after_all_have_gone(daemon: &mut Daemon, seed: u64) {
    let node = daemon.node("looks");
    until("the members to be gone", || {
        node.clients().expect("clients").len() == 1
    });
    let again = Pair::start(&daemon.config(), "again", Expect::Perfection, seed);
    again.goes_on(20);
    let (published, received, errors) = again.end();
    assert_eq!((received, errors), (published, 0));
    // What was scribbled over may keep its slots and memory out of use, but not for ever: a
    // topic of that name works again, at the latest when nobody is in it.
    until("the topic to be gone", || node.topic("scribbled").is_err());
    let afresh = Pair::start(&daemon.config(), "scribbled", Expect::Perfection, seed);
    afresh.goes_on(20);
    let (published, received, errors) = afresh.end();
    assert_eq!((received, errors), (published, 0));
    daemon.assert_well();
}

#[test]
fn a_scribbled_topic() {
    scribbled("topic");
}

#[test]
fn scribbled_rings() {
    scribbled("rings");
}

#[test]
fn scribbled_blocks() {
    scribbled("blocks");
}

#[test]
fn scribbled_holds_that_are_let_go_of() {
    scribbled("deferred_releases");
}

#[test]
fn scribbled_timelines() {
    scribbled("timelines");
}

#[test]
fn scribbled_doorbells() {
    scribbled("doorbells");
}

#[test]
fn everything_scribbled() {
    scribbled("all");
}

#[test]
fn a_daemon_adopts_a_scribbled_zone() {
    let seed = seed();
    let mut daemon = daemon::start();
    let config = daemon.config();
    let bystanders = Pair::start(&config, "honest", Expect::Perfection, seed);
    let victims = Pair::start(&config, "scribbled", Expect::Survival, seed ^ 1);
    bystanders.goes_on(10);
    let mut liar = scribbler(&daemon, "scribbled", "all", seed);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(200));
        daemon.kill();
        bystanders.goes_on(10);
        daemon.restart();
        bystanders.goes_on(10);
        victims.assert_alive();
    }
    liar.kill().expect("SIGKILL");
    liar.wait().expect("its end");
    let (published, received, errors) = bystanders.end();
    assert_eq!((received, errors), (published, 0));
    victims.end();
    daemon.assert_well();
    after_all_have_gone(&mut daemon, seed);
}
