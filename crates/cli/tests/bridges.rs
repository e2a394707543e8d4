//! `rgaps bridge`: runs a bridge with the rules of the options and of the configuration.

mod support;

use rgaps_testkit::{ports, programs};
use serde_json::Value;
use std::process::{Child, Stdio};
use support::{finish, interrupt, until, Realm, Run, LIMIT};

fn bridge(realm: &Realm, options: &[&str]) -> Child {
    let mut command = realm.command(&["bridge", "zenoh", "--json", "--every", "0"]);
    command.args(options);
    command.env("RGAPS_LINKS_PROGRAM", programs::rgaps_links());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn messages_cross_from_one_bridge_to_another() {
    let realm = Realm::new();
    realm.json(&["up"]);
    let endpoint = format!("tcp/127.0.0.1:{}", ports(1)[0]);
    std::fs::write(
        realm.path("in.toml"),
        format!("[bridge]\nlisten = [{endpoint:?}]\n[[bridge.zenoh]]\ntopic = \"copy\"\nkey = \"robot/a\"\ndirection = \"from\"\n"),
    )
    .unwrap();
    let subscriber = realm.node("reader").subscriber("copy").create().unwrap();
    let into = bridge(&realm, &["--config", "in.toml"]);
    let out = bridge(
        &realm,
        &["--connect", &endpoint, "--prefix", "robot", "--to", "*"],
    );
    let node = realm.node("writer");
    let publisher = node.publisher("a").create().unwrap();
    until("the bridge to read", || {
        !node.topic("a").unwrap().subscribers.is_empty()
    });
    publisher.put(b"hello").unwrap();
    let sample = subscriber.recv_timeout(LIMIT).unwrap();
    assert_eq!(sample.as_slice().unwrap(), b"hello");
    for (bridge, count) in [(out, "sent"), (into, "received")] {
        interrupt(&bridge);
        let report: Value = serde_json::from_str(&finish(bridge).ok()).unwrap();
        assert_eq!((&report[count], &report["dropped"]), (&1.into(), &0.into()));
    }
}

#[test]
fn what_cannot_be_carried_is_an_error() {
    let realm = Realm::new();
    let zenoh = ["bridge", "zenoh", "--connect", "tcp/127.0.0.1:1"];
    let run = |options: &[&str], program: &str| {
        let mut command = realm.command(&zenoh);
        command.args(options).env("RGAPS_LINKS_PROGRAM", program);
        Run::from(command.output().unwrap())
    };
    let error = run(&["--to", "camera/*=a"], "/not/there").fails_with(2);
    assert!(error.contains("bridge.prefix"), "{error}");
    let error = run(&["--to", "camera"], "/not/there").fails_with(1);
    assert!(error.contains("RGAPS_LINKS_PROGRAM"), "{error}");
    let links = programs::rgaps_links().to_str().unwrap();
    let error = run(&[], links).fails_with(2);
    assert!(error.contains("--to, --from or --both"), "{error}");
}
