//! `topic hz`, `bw` and `delay` with several topics and patterns, and completion of topic names.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command};
use support::Realm;

/// A child that does not outlive its test.
struct Limited(Child);

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn publish(realm: &Realm, topic: &str) -> Limited {
    Limited(realm.spawn(&["topic", "pub", topic, "--size", "1000", "--rate", "200"]))
}

#[test]
fn patterns_follow_topics_that_appear_later() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let _others = [publish(&realm, "lidar"), publish(&realm, "camera/left")];
    let watch = [
        "topic",
        "bw",
        "/camera/**",
        "imu",
        "--every",
        "0.2",
        "--json",
    ];
    let mut watch = Limited(realm.spawn(&watch));
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut later = None;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    // Reads a line every 0.2 s until all topics are there. The test runner's limit ends it otherwise.
    while seen.len() < 3
        || seen
            .iter()
            .any(|(topic, bytes)| (*bytes == 0) != (topic == "imu"))
    {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let topic = line["topic"].as_str().unwrap().to_owned();
        let rate = line["bytes_per_s"].as_f64().unwrap_or(0.0);
        seen.insert(topic.clone(), rate as u64);
        if topic == "camera/left" && rate > 0.0 && later.is_none() {
            later = Some(publish(&realm, "camera/a/right"));
        }
    }
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(names, ["camera/a/right", "camera/left", "imu"]);
}

#[test]
fn several_topics_have_a_table() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let _publishers = ["a", "b"].map(|topic| publish(&realm, topic));
    for (what, head) in [("hz", "HZ"), ("bw", "BYTES/s"), ("delay", "p50 us")] {
        let table = realm
            .run(&["topic", what, "a", "b", "--count", "50", "--timeout", "60"])
            .ok();
        let last = table.trim_end().lines().rev().take(3).collect::<Vec<_>>();
        assert!(
            last[2].starts_with("TOPIC") && last[2].contains(head),
            "{table}"
        );
        assert!(
            last[1].starts_with("a ") && last[0].starts_with("b "),
            "{table}"
        );
    }
    let error = realm
        .run(&["topic", "hz", "c", "--timeout", "0.2"])
        .fails_with(5);
    assert!(error.contains("no message on 'c' for 0.2 s"), "{error}");
    let error = realm
        .run(&["topic", "hz", "no/**", "--timeout", "0.2"])
        .fails_with(5);
    assert!(
        error.contains("no topic matches 'no/**' yet; waiting"),
        "{error}"
    );
    assert!(error.contains("for 0.2 s; no topic matches\n"), "{error}");
}

/// Patterns do not find all topics of other hosts, so the notice must say which ones they find.
#[test]
fn a_pattern_that_finds_nothing_says_what_it_finds_of_other_hosts() {
    let realm = Realm::new();
    let file = realm.path("none.mcap");
    let file = file.to_str().unwrap();
    let commands: [&[&str]; 3] = [
        &["topic", "hz", "no/**", "--timeout", "0.2"],
        &["topic", "info", "no/**"],
        &["record", "no/**", "-o", file, "--duration", "0.1"],
    ];
    let hint = "those topics of other hosts that somebody here reads";
    realm.run(&["up"]).ok();
    for command in commands {
        let run = realm.run(command);
        assert!(run.stderr.contains("no topic matches 'no/**'"), "{run:?}");
        assert!(!run.stderr.contains(hint), "{run:?}");
    }
    realm.run(&["down"]).ok();
    // The links need not run: the notice is the same.
    let links = [
        ("ENABLED", "true"),
        ("LISTEN", "127.0.0.1:0"),
        ("SCOUTING", "true"),
        ("HOST", "here"),
    ];
    let mut up = realm.command(&["up"]);
    up.envs(links.map(|(key, value)| (format!("RGAPS_LINKS__{key}"), value)));
    let up = up.env("RGAPS_LINKS_PROGRAM", "/nowhere/rgaps-links");
    support::Run::from(up.output().unwrap()).fails_with(1);
    std::fs::remove_file(file).unwrap();
    for command in commands {
        let run = realm.run(command);
        assert!(run.stderr.contains(hint), "{run:?}");
    }
}

#[test]
fn list_and_info_take_patterns() {
    let realm = Realm::new();
    for topic in ["camera/left", "camera/right", "lidar"] {
        let publish = ["topic", "pub", topic, "--text", "x", "--transient-local"];
        realm.run(&publish).ok();
    }
    let listed = |wanted: &[&str]| -> Vec<String> {
        let rows = realm.json(&[&["topic", "list"], wanted].concat());
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(listed(&[]), ["camera/left", "camera/right", "lidar"]);
    assert_eq!(listed(&["/camera/*"]), ["camera/left", "camera/right"]);
    assert_eq!(listed(&["lidar", "camera/?eft"]), ["camera/left", "lidar"]);
    assert_eq!(listed(&["no/**"]), [""; 0]);
    let info = realm.run(&["topic", "info", "camera/*"]).ok();
    for name in ["left", "right"] {
        let head = format!("topic     camera/{name}\n");
        assert_eq!(info.matches(&head).count(), 1, "{info}");
    }
    let documents = realm.run(&["topic", "info", "camera/*", "--json"]).ok();
    assert_eq!(documents.lines().count(), 2, "{documents}");
    let said = realm.run(&["topic", "info", "no/**"]).fails_with(4);
    assert!(said.contains("no topic matches 'no/**'"), "{said}");
}

/// What bash offers for the last of these words.
fn offered(realm: &Realm, words: &[&str]) -> Vec<String> {
    let program = realm.command(&[]).get_program().to_owned();
    let script = r#"
        source <("$PROGRAM" completion bash) || exit 1
        COMP_WORDS=(rgaps "$@")
        COMP_CWORD=$#
        COMP_LINE="${COMP_WORDS[*]}"
        COMP_POINT=${#COMP_LINE}
        COMP_TYPE=9
        spec=$(complete -p rgaps) || exit 2
        function=$(sed -E 's/.*-F ([^ ]+).*/\1/' <<< "$spec")
        "$function" rgaps "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"])
        .args(words)
        .env("PROGRAM", program);
    let template = realm.command(&[]);
    let variables = template
        .get_envs()
        .filter_map(|(key, value)| Some((key, value?)));
    bash.envs(variables).current_dir(realm.folder.path());
    let run: support::Run = bash.output().unwrap().into();
    let mut found: Vec<String> = run
        .ok()
        .lines()
        .map(|line| line.trim().to_owned())
        .collect();
    found.retain(|line| !line.is_empty());
    found.sort();
    found
}

#[test]
fn completion_offers_names_of_topics() {
    let realm = Realm::new();
    assert_eq!(
        offered(&realm, &["topic", "echo", "cam"]),
        [""; 0],
        "no daemon, and none is started"
    );
    realm.run(&["status"]).fails_with(3);
    for topic in ["camera/left", "camera/right", "lidar"] {
        realm
            .run(&["topic", "pub", topic, "--text", "x", "--transient-local"])
            .ok();
    }
    assert_eq!(
        offered(&realm, &["topic", "echo", "cam"]),
        ["camera/left", "camera/right"]
    );
    assert_eq!(offered(&realm, &["topic", "info", "/li"]), ["/lidar"]);
    assert_eq!(
        offered(&realm, &["topic", "hz", "lidar", "camera/l"]),
        ["camera/left"]
    );
    assert_eq!(offered(&realm, &["topic", "ec"]), ["echo"]);
    assert!(offered(&realm, &["topic", "pub", "--dt"]).contains(&"--dtype".to_owned()));
    for shell in ["zsh", "fish"] {
        assert!(
            realm.run(&["completion", shell]).ok().contains("rgaps"),
            "{shell}"
        );
    }
}
