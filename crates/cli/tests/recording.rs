//! `rgaps record`, `rgaps replay` and `rgaps info`.

mod support;

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::sync::mpsc::{channel, Receiver};
use support::{finish, interrupt, until, Realm, Run, LIMIT};

/// A command that publishes until it is killed.
struct Source(Child);

impl Source {
    fn start(realm: &Realm, topic: &str) -> Source {
        let arguments = ["topic", "pub", topic, "--size", "64KiB", "--rate", "500"];
        let mut command = realm.command(&arguments);
        Source(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The reports of a recorder. A thread reads them to the end, since the recorder stops when nobody reads them.
struct Reports(Receiver<Value>);

impl Reports {
    fn of(recorder: &mut Child) -> Reports {
        let lines = BufReader::new(recorder.stdout.take().unwrap()).lines();
        let (to, reports) = channel();
        std::thread::spawn(move || {
            for line in lines {
                let _ = to.send(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        Reports(reports)
    }

    /// Waits for the next report for which `is_wanted` holds.
    fn find(&self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let report = self.0.recv_timeout(LIMIT).expect("a report");
            if is_wanted(&report) {
                return report;
            }
        }
    }
}

#[test]
fn topics_are_recorded_shown_and_replayed() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let mut recorder = realm.spawn(&[
        "record", "-o", "run.mcap", "--json", "--every", "0.05", "a/**", "b",
    ]);
    let _a = Source::start(&realm, "a/one");
    let _b = Source::start(&realm, "b");
    let _c = Source::start(&realm, "c");
    let reports = Reports::of(&mut recorder);
    let report = reports.find(|report| report["topics"] == 2);
    assert_eq!(report["file"], "run.mcap");
    until("messages of both topics in the file", || {
        let info = realm.json(&["info", "run.mcap"]);
        info["topics"]
            .as_array()
            .is_some_and(|topics| topics.len() == 2)
    });
    interrupt(&recorder);
    assert_eq!(finish(recorder).code, 0);

    let info = realm.json(&["info", "run.mcap"]);
    assert_eq!(
        (&info["finished"], &info["missing"]),
        (&true.into(), &Value::Null)
    );
    let topics: Vec<_> = info["topics"].as_array().unwrap().iter().collect();
    assert_eq!(
        (&topics[0]["topic"], &topics[1]["topic"]),
        (&"a/one".into(), &"b".into())
    );
    assert_eq!(topics.len(), 2);
    let text = realm.run(&["info", "run.mcap"]).ok();
    assert!(
        text.contains("a/one") && text.contains("rgaps.Message"),
        "{text}"
    );

    let all = realm.json(&["replay", "run.mcap", "--rate", "1000000"]);
    assert_eq!(all["replayed"], info["messages"]);
    let one = realm.json(&["replay", "run.mcap", "--rate", "1000000", "--topics", "b"]);
    assert_eq!(one["replayed"], topics[1]["messages"]);
    let none = realm
        .run(&["replay", "run.mcap", "--topics", "nobody"])
        .fails_with(4);
    assert!(none.contains("it has: a/one, b"), "{none}");
}

#[test]
fn a_recorder_that_is_killed_leaves_a_readable_file() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let _source = Source::start(&realm, "topic");
    let mut recorder = realm.spawn(&[
        "record", "-o", "run.mcap", "--json", "--every", "0.05", "--chunk", "256KiB", "topic",
    ]);
    let reports = Reports::of(&mut recorder);
    let report = reports.find(|report| report["recorded"].as_u64() >= Some(50));
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let info = realm.json(&["info", "run.mcap"]);
    assert_eq!(info["finished"], false);
    assert!(
        info["messages"].as_u64() >= report["recorded"].as_u64(),
        "{info} {report}"
    );
    assert!(info["missing"]
        .as_str()
        .is_some_and(|missing| !missing.is_empty()));
    let text = realm.run(&["info", "run.mcap"]).ok();
    assert!(text.contains("at the end cannot be read"), "{text}");
    let Run {
        code,
        stdout,
        stderr,
    } = realm.run(&["replay", "run.mcap", "--rate", "1000000", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("replaying what can be read"), "{stderr}");
    let replayed: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&replayed["replayed"], &replayed["corrupt"]),
        (&info["messages"], &0.into())
    );
}

/// A limit on the size of files makes a write fail within a chunk, as a full disk does.
#[test]
fn a_full_disk_ends_the_recording_and_leaves_a_readable_file() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let _source = Source::start(&realm, "topic");
    let mut shell = std::process::Command::new("sh");
    let recorder = realm.command(&[
        "record", "-o", "run.mcap", "--json", "--chunk", "256KiB", "topic",
    ]);
    shell.args(["-c", "ulimit -f 4096; exec \"$0\" \"$@\""]); // blocks of 512 bytes, or of 1024 in some shells
    shell.arg(recorder.get_program()).args(recorder.get_args());
    shell.current_dir(realm.folder.path());
    for (key, value) in recorder.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    let run: Run = shell.output().unwrap().into();
    let stdout = run.stdout.clone();
    let error = run.fails_with(1);
    assert!(
        error.contains("run.mcap cannot be written any further"),
        "{error}"
    );
    let last: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert!(
        last["dropped_by"]["write_failed"].as_u64() > Some(0),
        "{last}"
    );
    let info = realm.json(&["info", "run.mcap"]);
    assert_eq!(
        (&info["finished"], &info["messages"]),
        (&false.into(), &last["recorded"])
    );
    assert_eq!(
        info["missing_bytes"], 0,
        "what was not whole was cut off: {info}"
    );
    assert!(info["messages"].as_u64() > Some(10), "{info}");
}

#[test]
fn a_recorder_of_a_topic_that_nobody_has_says_so() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let node = realm.node("camera");
    let _front = node.publisher("camera/front").create().unwrap();
    let record = |file: &str, topic: &str| {
        realm.run(&["record", "-o", file, "--duration", "0.1", "camera/*", topic])
    };
    let run = record("typo.mcap", "camera/fornt");
    assert!(
        run.stderr
            .contains("no publisher of topic 'camera/fornt' yet")
            && run.stderr.contains("Did you mean 'camera/front'?"),
        "{run:?}"
    );
    run.ok();
    let run = record("right.mcap", "camera/front");
    assert!(!run.stderr.contains("no publisher"), "{run:?}");
    run.ok();
}

#[test]
fn a_recording_to_a_file_that_exists_or_to_no_folder_says_so() {
    let realm = Realm::new();
    realm.json(&["up"]);
    std::fs::write(realm.path("run.mcap"), b"precious").unwrap();
    let said = realm.run(&["record", "-o", "run.mcap", "**"]).fails_with(1);
    assert!(said.contains("run.mcap exists already"), "{said}");
    let said = realm.run(&["record", "-o", "no/run.mcap", "**"]);
    let said = said.fails_with(1);
    assert!(said.contains("its folder does not exist"), "{said}");
}

#[test]
fn a_recording_of_some_messages_has_exactly_these() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let _source = Source::start(&realm, "topic");
    let recorder = realm.spawn(&["record", "-o", "run.mcap", "--count", "3", "topic"]);
    assert_eq!(finish(recorder).code, 0);
    let info = realm.json(&["info", "run.mcap"]);
    assert_eq!(
        (&info["messages"], &info["finished"]),
        (&3.into(), &true.into())
    );
}

/// A replay that waits for a subscriber must name it.
#[test]
fn a_replay_says_who_holds_it_back() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let source = Source::start(&realm, "topic");
    let recorder = realm.spawn(&["record", "-o", "run.mcap", "--count", "100", "topic"]);
    assert_eq!(finish(recorder).code, 0);
    drop(source);
    let reader = realm.node("reader");
    let subscriber = reader.subscriber("topic").reliable().create().unwrap();
    let mut replay = realm.spawn(&["replay", "run.mcap", "--rate", "1000000"]);
    let mut said = String::new();
    let mut lines = BufReader::new(replay.stderr.take().unwrap());
    while !said.contains("the replay waits") {
        said.clear();
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it has ended");
    }
    let who = format!(
        "reliable subscriber 'reader' (process {})",
        std::process::id()
    );
    assert!(said.contains(&who) && said.contains("'topic'"), "{said}");
    drop(subscriber);
    assert!(replay.wait().unwrap().success());
}

#[test]
fn the_last_seconds_are_written_at_a_signal() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let _source = Source::start(&realm, "topic");
    let mut recorder = realm.spawn(&[
        "record", "-o", "run.mcap", "--json", "--every", "0.05", "--keep", "3600", "topic",
    ]);
    let reports = Reports::of(&mut recorder);
    let report = reports.find(|report| report["queue_bytes"].as_u64() > Some(1 << 20));
    assert_eq!(report["files"], 0);
    let pid = rustix::process::Pid::from_child(&recorder);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    let first = realm.path("run-0000.mcap");
    until("the file", || first.exists());
    interrupt(&recorder);
    assert_eq!(finish(recorder).code, 0);
    let info = realm.json(&["info", "run-0000.mcap"]);
    assert_eq!(info["finished"], true);
    assert!(info["messages"].as_u64() >= Some(16), "{info}");
    assert!(!realm.path("run-0001.mcap").exists());
}
