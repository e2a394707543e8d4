//! Commands that read more slowly than publishers publish: which messages they read, and whether publishers wait for them.

mod support;

use rgaps::{Node, Publisher, SlowReaderPolicy};
use rgaps_client::links::LinksLoan;
use rgaps_sync::monotonic_ns;
use serde_json::{json, Value};
use std::process::Child;
use std::time::Duration;
use support::{finish, until, Realm, Run};

const SENT: u64 = 20;

/// A publisher in this process whose history holds all messages of a test.
fn publisher(node: &Node) -> Publisher {
    node.publisher("t").keep_last(64).create().unwrap()
}

/// Stops a process: it reads nothing until it is continued.
fn stop(child: &Child) {
    rgaps_testkit::stop(child.id());
    let status = format!("/proc/{}/status", child.id());
    until("a process to stop", || {
        std::fs::read_to_string(&status)
            .unwrap()
            .contains("State:\tT")
    });
}

/// The output of commands that were stopped while messages 0 to 19 were published.
fn after_a_burst(realm: &Realm, commands: &[&[&str]]) -> Vec<String> {
    let runs = runs_after_a_burst(realm, commands).into_iter();
    runs.map(|run| run.ok()).collect()
}

fn runs_after_a_burst(realm: &Realm, commands: &[&[&str]]) -> Vec<Run> {
    realm.run(&["up"]).ok();
    let node = realm.node("camera");
    let readers: Vec<Child> = commands
        .iter()
        .map(|command| realm.spawn(&[&["topic"], *command, &["--timeout", "60"]].concat()))
        .collect();
    realm.wait_for_subscribers("t", readers.len() as u64);
    readers.iter().for_each(stop);
    let publisher = publisher(&node);
    for number in 0..SENT {
        publisher.put(&[b'a' + number as u8]).unwrap();
    }
    for reader in &readers {
        rgaps_testkit::resume(reader.id());
    }
    readers.into_iter().map(finish).collect()
}

fn documents(out: &str) -> Vec<Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The messages that `echo --json` printed: each number, and how many were missed before it.
fn messages(out: &str) -> Vec<(u64, u64)> {
    let number = |value: &Value| value.as_u64().unwrap();
    documents(out)
        .iter()
        .map(|message| (number(&message["sequence"]), number(&message["missed"])))
        .collect()
}

/// Issue 17: `echo` of a fast topic must not print the oldest messages of the history.
#[test]
fn echo_prints_the_newest_message_unless_every_message_is_asked_for() {
    let realm = Realm::new();
    let echo = ["echo", "t", "--json", "--count"];
    let every = [
        &["--all"][..],
        &["--reliable"],
        &["--late", "all"],
        &["--late", "latest"],
    ];
    let every = every.map(|option| [&echo[..], &["20"], option].concat());
    let newest = [&echo[..], &["1"]].concat();
    let newest_3 = [&echo[..], &["3", "--depth", "3"]].concat();
    let raw = ["echo", "t", "--count", "20", "--format", "raw"];
    let mut commands: Vec<&[&str]> = every.iter().map(Vec::as_slice).collect();
    commands.extend([&newest[..], &newest_3, &raw]);
    let out = after_a_burst(&realm, &commands);
    let all: Vec<_> = (0..SENT).map(|number| (number, 0)).collect();
    for (out, command) in out.iter().zip(&every) {
        assert_eq!(messages(out), all, "{command:?}");
    }
    assert_eq!(messages(&out[4]), [(19, 19)]);
    assert_eq!(messages(&out[5]), [(17, 17), (18, 0), (19, 0)]);
    assert_eq!(out[6], "abcdefghijklmnopqrst");
}

/// Issue 17: `echo` of the newest message must not print a line about missed messages before each.
#[test]
fn echo_of_the_newest_says_at_its_end_how_many_it_missed() {
    let realm = Realm::new();
    let newest = ["echo", "t", "--count", "1"];
    let newest_3 = ["echo", "t", "--count", "3", "--depth", "3"];
    let runs = runs_after_a_burst(&realm, &[&newest, &newest_3]);
    let [newest, newest_3] = runs.as_slice() else {
        panic!("two commands")
    };
    assert!(newest.stdout.ends_with("t\n"), "{}", newest.stdout);
    assert!(!newest.stdout.contains("missed"), "{}", newest.stdout);
    let said =
        "rgaps: missed 19 messages, since echo prints the newest one; --all prints every message";
    assert!(newest.stderr.contains(said), "{}", newest.stderr);
    assert!(newest_3.stdout.starts_with("--- 17 messages missed ---\n"));
    assert!(!newest_3.stderr.contains("missed"));
}

/// `delay` must not count the time that messages wait in the history.
#[test]
fn delay_is_of_the_newest_message_and_hz_and_bw_count_every_message() {
    let realm = Realm::new();
    let json = ["t", "--json", "--count"];
    let commands = [
        [&["delay"][..], &json, &["1"]].concat(),
        [&["delay"][..], &json, &["20", "--all"]].concat(),
        [&["delay"][..], &json, &["5", "--depth", "5"]].concat(),
        [&["hz"][..], &json, &["20"]].concat(),
        [&["bw"][..], &json, &["20"]].concat(),
    ];
    let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
    let out = after_a_burst(&realm, &commands);
    let counts: Vec<_> = out
        .iter()
        .map(|out| documents(out).pop().unwrap())
        .map(|last| (last["messages"].as_u64(), last["missed"].as_u64()))
        .collect();
    let expected = [(1, 19), (20, 0), (5, 15), (20, 0), (20, 0)];
    assert_eq!(
        counts,
        expected.map(|(messages, missed)| (Some(messages), Some(missed)))
    );
}

#[test]
fn a_depth_is_at_least_1_and_not_together_with_all() {
    let realm = Realm::new();
    for command in ["echo", "delay"] {
        realm
            .run(&["topic", command, "t", "--depth", "0"])
            .fails_with(2);
        realm
            .run(&["topic", command, "t", "--depth", "2", "--all"])
            .fails_with(2);
    }
}

/// A clock that was set back gives messages from the future: `echo` and `delay` must show a negative delay, not 0.
#[test]
fn a_negative_delay_is_shown_as_negative() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("future");
    let end = ["--count", "1", "--timeout", "60"];
    let commands = [
        &["topic", "echo", "t", "--json"][..],
        &["topic", "echo", "t", "--format", "summary"],
        &["topic", "delay", "t", "--json"],
    ];
    let readers = commands.map(|command| realm.spawn(&[command, &end].concat()));
    realm.wait_for_subscribers("t", 3);
    let publisher = publisher(&node);
    let mut loan = publisher.loan(1).unwrap();
    loan.write(0, b"x").unwrap();
    let hour = Duration::from_secs(3600).as_nanos() as u64;
    loan.set_publish_ns(monotonic_ns() + hour);
    loan.publish().unwrap();
    let [echo, text, delay] = readers.map(|reader| finish(reader).ok());
    // The message is an hour in the future, and the readers took less.
    let is_negative = |value: &Value| (-3.6e9..0.0).contains(&value.as_f64().unwrap());
    assert!(is_negative(&documents(&echo)[0]["delay_us"]), "{echo}");
    assert!(text.contains(", -"), "{text}");
    let delay = documents(&delay).pop().unwrap();
    for field in ["min_us", "p50_us", "p99_us", "max_us"] {
        assert!(is_negative(&delay[field]), "{delay}");
    }
}

/// Without the option, one reliable subscriber that does not read ends the command.
#[test]
fn pub_lets_a_slow_reader_go_after_its_time() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("reader");
    let slow = node.subscriber("t").reliable().create().unwrap();
    let publish = [
        "topic",
        "pub",
        "t",
        "--text",
        "x",
        "--count",
        "20",
        "--keep-last",
        "4",
    ];
    let fails = [&publish[..], &["--timeout", "0.1"]].concat();
    let error = realm.run(&fails).fails_with(5);
    assert!(error.contains("did not make room"), "{error}");
    while slow.try_recv().unwrap().is_some() {}

    let goes_on = [&publish[..], &["--slow-reader", "0.1"]].concat();
    let report = realm.json(&goes_on);
    assert_eq!(
        (&report["messages"], &report["drops"]),
        (&json!(20), &json!(1))
    );
    let sample = slow.recv_timeout(support::LIMIT).unwrap();
    assert_eq!((sample.sequence(), sample.missed()), (16, 16));
    drop(sample);
    while slow.try_recv().unwrap().is_some() {}
    let text = realm.run(&goes_on).ok();
    assert!(text.contains("continued 1 time without"), "{text}");
    realm
        .run(&[&goes_on[..], &["--best-effort"]].concat())
        .fails_with(2);
}

/// The text of `topic info` must say it, not only the JSON.
#[test]
fn info_says_who_goes_on_without_whom() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("both");
    let slow = node.subscriber("t").reliable().create().unwrap();
    let publisher = node
        .publisher("t")
        .keep_last(2)
        .deadline(Duration::ZERO)
        .slow_reader(SlowReaderPolicy::Drop)
        .create()
        .unwrap();
    let info = || realm.run(&["topic", "info", "t"]).ok();
    let quiet = info();
    assert!(!quiet.contains("continued"), "{quiet}");
    let publish = || {
        let _ = publisher.put(b"x").unwrap();
    };
    (0..5).for_each(|_| publish());
    let shown = info();
    for line in [
        "publisher 0 continued 1 time without a slow reliable subscriber, which missed messages\n",
        "subscriber 0 is too slow for 1 publisher, which does not wait for it until it has read everything\n",
    ] {
        assert!(shown.contains(line), "'{line}' is not in {shown}");
    }
    // The subscriber catches up, so the publisher waits for it again.
    while slow.try_recv().unwrap().is_some() {}
    publish();
    let shown = info();
    assert!(shown.contains("publisher 0 continued 1 time"), "{shown}");
    assert!(!shown.contains("too slow"), "{shown}");
}

/// `topic info` must name the subscriber that a publisher without a deadline waits for.
#[test]
fn info_says_who_waits_for_whom() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("both");
    let slow = node.subscriber("t").reliable().create().unwrap();
    let publisher = node.publisher("t").keep_last(2).create().unwrap();
    let publish = |number: u8| {
        let _ = publisher.put(&[number]).unwrap();
    };
    (1..3).for_each(publish);
    let waiting = format!(
        "publisher 0 waits for subscriber 0 'both' (process {}), which has not read the messages that it keeps\n",
        std::process::id()
    );
    let info = || realm.run(&["topic", "info", "t"]).ok();
    let waits = || realm.json(&["topic", "list"])[0]["waiting"].clone();
    assert!(!info().contains("waits for"));
    std::thread::scope(|scope| {
        scope.spawn(|| publish(3));
        until("the publisher to wait", || info().contains(&waiting));
        assert_eq!(waits(), 1);
        assert_eq!(slow.try_recv().unwrap().unwrap().as_slice().unwrap(), [1]);
    });
    assert_eq!(waits(), 0);
    assert!(!info().contains("waits for"));
}
