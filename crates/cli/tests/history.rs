//! The history of publishers that have left, as the commands show it.

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use support::{until, Realm, Run};

impl Realm {
    /// Runs a command with a daemon that ends soon after its last client.
    fn briefly(&self, arguments: &[&str]) -> Run {
        let mut command: Command = self.command(arguments);
        command.env("RGAPS_IDLE_EXIT_MS", "300");
        command.output().unwrap().into()
    }

    fn keep(&self, topic: &str, text: &str) {
        self.briefly(&["topic", "pub", topic, "--text", text, "--transient-local"])
            .ok();
    }

    fn pid(&self) -> u64 {
        let status = self.briefly(&["status", "--json"]).ok();
        let status: Value = serde_json::from_str(&status).unwrap();
        status["pid"].as_u64().unwrap()
    }
}

fn runs(pid: u64) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn late_latest_prints_the_newest_and_not_the_first_that_was_kept() {
    let realm = Realm::new();
    let late = |what: &str, count: &str| {
        let echo = ["topic", "echo", "t", "--late", what, "--count", count];
        realm.run(&[&echo[..], &["--timeout", "60"]].concat()).ok()
    };
    for text in ["old", "new"] {
        let publish = ["topic", "pub", "t", "--text", text, "--transient-local"];
        realm.run(&publish).ok();
    }
    assert_eq!(late("latest", "1"), "new\n");
    assert_eq!(late("all", "2"), "old\nnew\n");
    for restart in 1..=20 {
        let text = format!("v{restart}");
        let publish = ["topic", "pub", "t", "--text", &text, "--transient-local"];
        realm.run(&publish).ok();
    }
    assert_eq!(late("latest", "1"), "v20\n");
    assert_eq!(late("3", "3"), "v18\nv19\nv20\n");
    let all: String = (13..=20).map(|n| format!("v{n}\n")).collect();
    assert_eq!(late("all", "8"), all);
}

#[test]
fn a_forgotten_topic_can_have_another_type() {
    let realm = Realm::new();
    realm.run(&["topic", "pub", "other", "--text", "x"]).ok();
    let error = realm.run(&["topic", "forget", "t"]).fails_with(4);
    assert!(
        error.contains("'t'") && error.contains("topic list"),
        "{error}"
    );
    let publish = |text, type_name| {
        let typed = ["--type", type_name, "--transient-local"];
        realm.run(&[&["topic", "pub", "t", "--text", text], &typed[..]].concat())
    };
    publish("one", "old").ok();
    publish("two", "old").ok();
    assert_eq!(realm.json(&["topic", "info", "t"])["type_name"], "old");
    let forgotten = realm.json(&["topic", "forget", "t"]);
    assert_eq!(
        (&forgotten["publishers"], &forgotten["messages"]),
        (&2.into(), &2.into())
    );
    realm.run(&["topic", "info", "t"]).fails_with(4);
    publish("three", "new").ok();
    assert_eq!(realm.json(&["topic", "info", "t"])["type_name"], "new");
    let said = realm.run(&["topic", "forget", "t"]).ok();
    assert_eq!(
        said,
        "topic 't': dropped 1 message of publishers that have closed or died\n"
    );
}

#[test]
fn history_outlives_the_time_after_which_an_idle_daemon_leaves() {
    let (keeper, idle) = (Realm::new(), Realm::new());
    keeper.keep("map", "here");
    let keeper_pid = keeper.pid();
    // A daemon that became idle later has ended, so the first would have ended too if the history did not keep it.
    idle.keep("map", "gone");
    let idle_pid = idle.pid();
    idle.briefly(&["topic", "forget", "map"]).ok();
    until("an idle daemon to leave", || !runs(idle_pid));
    assert!(runs(keeper_pid), "it keeps history");
    let echo = ["topic", "echo", "map", "--late", "latest", "--count", "1"];
    assert_eq!(keeper.briefly(&echo).ok(), "here\n");

    let status = keeper.briefly(&["status"]).ok();
    for said in [
        "stays for the history that it keeps",
        "1 message of publishers that have closed or died, in 1 topic (map)",
        "rgaps topic forget TOPIC",
    ] {
        assert!(status.contains(said), "{status}");
    }
    // `doctor` advises to restart the daemon, which would lose the history, so it says that there is some.
    let doctor = keeper.briefly(&["doctor"]).stdout;
    assert!(doctor.contains("keeps 1 message"), "{doctor}");

    keeper.briefly(&["topic", "forget", "map"]).ok();
    until("the daemon to leave", || !runs(keeper_pid));
}

#[test]
fn a_daemon_whose_socket_is_gone_keeps_no_history_for_ever() {
    let realm = Realm::new();
    realm.keep("map", "here");
    let pid = realm.pid();
    std::fs::remove_file(realm.path("r.sock")).unwrap();
    until("the daemon to leave", || !runs(pid));
}

#[test]
fn down_says_which_history_goes_with_the_daemon() {
    let realm = Realm::new();
    realm.keep("map", "a");
    realm.keep("calibration", "b");
    let down = realm.briefly(&["down"]).ok();
    assert!(
        down.contains(
            "lost with it: 2 messages of publishers that have closed or died, in 2 topics (map, calibration)"
        ),
        "{down}"
    );
    realm.keep("map", "a");
    let node = realm.node("reader");
    let _reader = node.subscriber("map").create().unwrap();
    let down = realm.json(&["down"]);
    assert_eq!(down["clients"], 1);
    assert_eq!(down["dropped"]["messages"], 1);
    assert_eq!(down["dropped"]["names"], serde_json::json!(["map"]));
}

#[test]
fn down_does_not_call_history_lost_that_a_client_hands_to_the_next_daemon() {
    let realm = Realm::new();
    realm.keep("map", "a");
    let node = realm.node("reader");
    let _reader = node.subscriber("map").create().unwrap();
    let down = realm.run(&["down"]).ok();
    assert!(
        down.contains(
            "; lost unless the client that still runs hands it to the next daemon: 1 message"
        ),
        "{down}"
    );
    let echo = ["topic", "echo", "map", "--late", "latest", "--count", "1"];
    assert_eq!(realm.run(&echo).ok(), "a\n");
}
