//! `top`, against a real daemon.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use support::{finish, Realm};

#[test]
fn documents_follow_the_traffic() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let echo = realm.spawn(&["topic", "echo", "camera/left", "--count", "100000"]);
    let publisher = realm.spawn(&[
        "topic",
        "pub",
        "camera/left",
        "--text",
        "0123456789",
        "--rate",
        "200",
        "--count",
        "100000",
        "--wait-subscribers",
        "1",
    ]);
    let (mut echo, mut publisher) = (Ended(echo), Ended(publisher));
    let mut top = realm.command(&["top", "--json", "--interval", "0.2", "--count", "600"]);
    let mut top = Ended(top.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(top.0.stdout.take().unwrap()).lines();
    let mut found = None;
    // Reads for up to two minutes: slow machines need some intervals until messages flow.
    for line in lines {
        let document: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let topics = document["topics"].as_array().unwrap();
        let topic = topics.iter().find(|topic| topic["topic"] == "camera/left");
        // A report may count a message before its bytes.
        let flows = |topic: &&Value| {
            let rate = |name: &str| topic[name].as_f64().unwrap();
            let (messages, bytes) = (rate("messages_per_s"), rate("bytes_per_s"));
            topic["received"].as_u64() > Some(0)
                && messages > 0.0
                && (bytes / messages - 10.0).abs() < 0.01
        };
        if let Some(topic) = topic.filter(flows) {
            found = Some((document.clone(), topic.clone()));
            break;
        }
    }
    let (document, topic) = found.expect("messages of 10 bytes flow");
    assert_eq!(
        (&topic["publishers"], &topic["subscribers"]),
        (&1.into(), &1.into())
    );
    assert_eq!(topic["domain"], "host");
    // The interval that was measured, not the configured one.
    assert!(document["interval_s"].as_f64() > Some(0.0));
    assert_eq!(document["daemon"]["realm"], "default");
    assert_eq!(document["links"], Value::Array(Vec::new()));
    assert!(document["pools"][0]["leased_bytes"].as_u64() > Some(0));
    let clients = document["clients"].as_array().unwrap();
    assert!(clients.len() >= 3, "{document}");
    drop((top, publisher.0.kill(), echo.0.kill()));
}

/// A child that is killed at the end of the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_ends_after_as_many_documents_as_asked() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let out = finish(realm.spawn(&["top", "--json", "--interval", "0.05", "--count", "3"])).ok();
    assert_eq!(out.lines().count(), 3, "{out}");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let error = realm.run(&["top"]).fails_with(2);
    assert!(error.contains("--json"), "{error}");
    let none = Realm::new();
    none.run(&["top", "--json", "--count", "1"]).fails_with(3);
}
