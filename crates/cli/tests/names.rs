//! Names of topics on the command line: slashes, namespaces and remapping.

mod support;

use serde_json::Value;
use support::{finish, Realm};

/// ROS 2 writes `/camera`, which must mean the topic `camera`.
#[test]
fn a_leading_slash_means_the_same_topic() {
    let realm = Realm::new();
    let echo = realm.spawn(&["topic", "echo", "/camera/left", "--count", "1", "--json"]);
    realm.wait_for_subscribers("camera/left", 1);
    let sent = realm.json(&["topic", "pub", "camera/left", "--text", "x"]);
    assert_eq!(sent["topic"], "camera/left");
    let got = finish(echo).ok();
    assert!(got.contains("\"topic\":\"camera/left\""), "{got}");
    let sent = realm.json(&[
        "topic",
        "pub",
        "/camera/left",
        "--text",
        "x",
        "--transient-local",
    ]);
    assert_eq!(sent["topic"], "camera/left");
    let info = realm.json(&["topic", "info", "/camera/left"]);
    assert_eq!(
        (&info["name"], &info["orphans"]),
        (&"camera/left".into(), &1.into())
    );
    let error = realm.run(&["topic", "info", "//camera"]).fails_with(2);
    assert!(error.contains("two in a row"), "{error}");
}

fn names(rows: &Value) -> Vec<&str> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row["name"].as_str().unwrap()).collect()
}

/// As ROS 2 does it: relative names are below the namespace, names with a slash are not, and rules of remapping come last.
#[test]
fn commands_follow_namespace_and_remapping() {
    let realm = Realm::new();
    for (topic, options) in [
        ("camera", &["--namespace", "one"][..]),
        ("/clock", &["--namespace", "one"]),
        (
            "camera",
            &["--namespace", "/two", "--remap", "camera:=front/camera"],
        ),
    ] {
        let words = ["topic", "pub", topic, "--text", "x", "--transient-local"];
        realm.json(&[&words[..], options].concat());
    }
    let all = realm.json(&["topic", "list"]);
    assert_eq!(names(&all), ["clock", "one/camera", "two/front/camera"]);
    let mut command = realm.command(&["topic", "list", "**", "--json"]);
    let output = command.env("RGAPS_NAMESPACE", "one").output().unwrap();
    let own: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(names(&own), ["one/camera"]);
    let mut command = realm.command(&["topic", "info", "/view", "--json"]);
    command.env("RGAPS_REMAP", "/view:=/two/front/camera");
    let info: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(info["name"], "two/front/camera");
    let late = ["--late", "all", "--count", "1", "--timeout", "60"];
    let echo = |options: &[&str]| {
        let words = ["topic", "echo", "camera", "--json"];
        realm.run(&[&words[..], &late, options].concat()).ok()
    };
    assert!(echo(&["--namespace", "one"]).contains("\"topic\":\"one/camera\""));
    assert!(
        echo(&["--remap", "camera:=two/front/camera"]).contains("\"topic\":\"two/front/camera\"")
    );
    let words = ["topic", "forget", "camera", "--namespace", "one"];
    assert!(realm
        .run(&words)
        .ok()
        .starts_with("topic 'one/camera': dropped 1 message"));
    let words = ["topic", "list", "--remap", "camera=front"];
    let error = realm.run(&words).fails_with(2);
    assert!(
        error.contains("--remap: remap = \"camera=front\": write a rule as FROM:=TO"),
        "{error}"
    );
}

/// A recording made in a namespace has full names. A replay uses them, and may remap them.
#[test]
fn a_recording_has_full_names() {
    let realm = Realm::new();
    let file = realm.path("run.mcap");
    let file = file.to_str().unwrap();
    let publish = [
        "topic",
        "pub",
        "camera",
        "--text",
        "x",
        "--transient-local",
        "--namespace",
        "one",
    ];
    realm.run(&publish).ok();
    realm
        .run(&["topic", "pub", "camera", "--text", "y", "--transient-local"])
        .ok();
    let record = [
        "record",
        "-o",
        file,
        "*",
        "--namespace",
        "one",
        "--count",
        "1",
    ];
    realm.run(&record).ok();
    let info = realm.json(&["info", file]);
    assert_eq!(info["topics"][0]["topic"], "one/camera", "{info}");
    assert_eq!(info["topics"].as_array().unwrap().len(), 1, "{info}");
    let echo = realm.spawn(&["topic", "echo", "two/camera", "--count", "1"]);
    realm.wait_for_subscribers("two/camera", 1);
    let replay = [
        "replay",
        file,
        "--namespace",
        "other",
        "--remap",
        "/one/camera:=/two/camera",
    ];
    realm.run(&replay).ok();
    assert_eq!(finish(echo).ok(), "x\n");
}
