//! `bench`: the fields of each figure in a small run, and the system calls between messages.

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use support::Realm;

#[track_caller]
fn has(value: &Value, fields: &[&str]) {
    for field in fields {
        assert!(
            value.get(field).is_some_and(|v| !v.is_null()),
            "{field} is missing in {value}"
        );
    }
}

#[track_caller]
fn is_ordered(value: &Value, fields: &[&str]) {
    let numbers: Vec<f64> = fields
        .iter()
        .map(|field| value[field].as_f64().unwrap())
        .collect();
    assert!(
        numbers.is_sorted() && numbers[0] > 0.0,
        "{fields:?} of {value}"
    );
}

#[test]
fn latency_has_its_fields_and_loses_nothing() {
    let realm = Realm::new();
    for (wait, subscribers) in [("poll", "1"), ("block", "2")] {
        let report = realm.json(&[
            "bench",
            "latency",
            "--domain",
            "host",
            "--size",
            "4099",
            "--subscribers",
            subscribers,
            "--messages",
            "200",
            "--wait",
            wait,
        ]);
        has(
            &report,
            &[
                "machine",
                "floor",
                "first",
                "domain",
                "size",
                "subscribers",
                "wait",
            ],
        );
        is_ordered(&report, &["min_us", "p50_us", "p99_us", "p999_us"]);
        is_ordered(&report["floor"], &["p50_us", "p99_us"]);
        assert_eq!(
            (&report["lost"], &report["corrupt"]),
            (&0.into(), &0.into())
        );
        assert!(report["messages"].as_u64().unwrap() >= 200, "{report}");
        has(
            &report["machine"],
            &["cpu", "cores", "kernel", "gpus", "load"],
        );
    }
}

#[test]
fn latency_with_a_header_is_a_ratio_to_that_without() {
    let realm = Realm::new();
    let bench = ["bench", "latency", "--size", "4099", "--messages", "200"];
    let without = realm.json(&bench);
    assert!(without.get("header").is_none(), "{without}");
    let report = realm.json(&[&bench[..], &["--header", "200", "--subscribers", "2"]].concat());
    assert_eq!(
        (&report["lost"], &report["corrupt"]),
        (&0.into(), &0.into())
    );
    let header = &report["header"];
    assert_eq!(header["header_bytes"], 200);
    // The run times as many messages with a header as without.
    assert_eq!(header["messages"], report["messages"]);
    is_ordered(header, &["min_us", "p50_us", "p99_us", "p999_us"]);
    for (ratio, with, without) in [
        ("ratio", header, &report),
        ("publish_ratio", &header["publish"], &report["publish"]),
    ] {
        let p50 = |value: &Value| value["p50_us"].as_f64().unwrap();
        let expected = p50(with) / p50(without);
        assert!(
            (header[ratio].as_f64().unwrap() - expected).abs() < 0.001,
            "{report}"
        );
    }
    realm
        .run(&[&bench[..], &["--header", "5000"]].concat())
        .fails_with(2);
}

#[test]
fn alloc_has_its_floor() {
    let realm = Realm::new();
    let report = realm.json(&[
        "bench",
        "alloc",
        "--processes",
        "1,2",
        "--operations",
        "512",
    ]);
    has(&report, &["cpu_ratio", "machine"]);
    for (index, count) in report["counts"].as_array().unwrap().iter().enumerate() {
        assert_eq!(count["processes"], index + 1);
        let mut operations = vec![
            &count["loan"],
            &count["release"],
            &count["loan_after_other"],
            &count["release_by_other"],
        ];
        operations.extend([&count["floor"]["loan"], &count["floor"]["release"]]);
        for operation in operations {
            is_ordered(operation, &["p50_ns", "p99_ns", "max_ns"]);
            assert!(operation["cpu_ns"].as_f64().unwrap() > 0.0, "{operation}");
        }
    }
}

#[test]
fn fanout_and_fanin_have_their_fields() {
    let realm = Realm::new();
    let report = realm.json(&[
        "bench",
        "fanout",
        "--subscribers",
        "1,3",
        "--size",
        "65536",
        "--messages",
        "70",
    ]);
    has(
        &report["per_subscriber_us"],
        &["awake", "sleeping", "floor"],
    );
    assert_eq!(
        (&report["lost"], &report["corrupt"]),
        (&0.into(), &0.into())
    );
    for count in report["counts"].as_array().unwrap() {
        for way in ["awake", "sleeping"] {
            is_ordered(&count[way]["publish"], &["p50_us", "p99_us"]);
            is_ordered(&count[way]["latency"], &["p50_us", "p99_us"]);
            has(&count[way], &["spread", "floor", "wait"]);
            let pairs = count[way]["pairs"].as_array().unwrap().len();
            assert_eq!(pairs as u64, count["subscribers"].as_u64().unwrap());
        }
    }
    let report = realm.json(&[
        "bench",
        "fanin",
        "--publishers",
        "1,3",
        "--size",
        "65536",
        "--messages",
        "40",
    ]);
    assert_eq!(
        (&report["lost"], &report["corrupt"]),
        (&0.into(), &0.into())
    );
    let count = &report["counts"][1];
    let pairs = count["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 3);
    for pair in pairs {
        assert_eq!(pair["messages"], 40);
        is_ordered(pair, &["min_us", "p50_us", "p99_us", "p999_us", "max_us"]);
        is_ordered(&pair["floor"], &["p50_us", "p99_us"]);
    }
}

#[test]
fn throughput_counts_every_message() {
    let realm = Realm::new();
    let report = realm.json(&["bench", "throughput", "--size", "64", "--messages", "3000"]);
    assert_eq!(
        (&report["lost"], &report["corrupt"], &report["messages"]),
        (&0.into(), &0.into(), &15_000.into())
    );
    for speed in [&report, &report["floor"]] {
        assert!(speed["messages_per_s"].as_f64().unwrap() > 0.0, "{report}");
        assert!(
            speed["messages_per_cpu_s"].as_f64().unwrap() > 0.0,
            "{report}"
        );
    }
}

#[test]
fn an_idle_topic_and_the_daemon_are_small() {
    let realm = Realm::new();
    let report = realm.json(&["bench", "memory", "--topics", "16"]);
    let topic = report["idle_topic_bytes"].as_u64().unwrap();
    assert!(topic > 0 && topic <= 256 << 10, "{report}");
    for rss in ["daemon_rss_bytes", "daemon_rss_with_topics_bytes"] {
        assert!(report[rss].as_u64().unwrap() <= 20_000_000, "{report}");
    }
}

/// The system calls of a trace between the first and the last mark. None: the trace has fewer than two marks. Lines of signals,
/// such as that of the subscriber's end, are left out.
fn between_marks(trace: &str) -> Option<Vec<&str>> {
    let lines: Vec<&str> = trace.lines().collect();
    let is_mark = |line: &&str| line.starts_with("getppid(");
    let first = lines.iter().position(&is_mark)?;
    let last = lines.iter().rposition(is_mark)?;
    let calls = lines.get(first + 1..last)?.iter().copied();
    Some(calls.filter(|line| !line.starts_with("---")).collect())
}

#[test]
fn no_system_call_is_on_the_path_of_a_polled_message() {
    if !can_trace() {
        eprintln!("skipped: strace cannot trace here (not installed, or ptrace is denied)");
        return;
    }
    let realm = Realm::new();
    let prefix = realm.path("trace");
    let arguments = [
        "bench",
        "path",
        "--size",
        "4096",
        "--messages",
        "500",
        "--json",
    ];
    let program = realm.command(&arguments);
    let mut traced = Command::new("strace");
    traced
        .arg("-ff")
        .arg("-o")
        .arg(&prefix)
        .arg(program.get_program())
        .args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    let run: support::Run = traced
        .current_dir(realm.folder.path())
        .output()
        .unwrap()
        .into();
    let report: Value = serde_json::from_str(&run.ok()).unwrap();
    assert_eq!(
        (&report["messages"], &report["corrupt"]),
        (&500.into(), &0.into())
    );
    let mut marked = 0;
    for entry in std::fs::read_dir(realm.folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if !path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("trace.")
        {
            continue;
        }
        let trace = std::fs::read_to_string(&path).unwrap();
        if let Some(calls) = between_marks(&trace) {
            marked += 1;
            assert!(
                calls.is_empty(),
                "{} calls on the way: {:?}",
                calls.len(),
                &calls[..calls.len().min(10)]
            );
        }
    }
    assert_eq!(
        marked, 2,
        "the publisher and the subscriber have marks in their traces"
    );
}

fn can_trace() -> bool {
    let traced = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output();
    Path::new("/proc/self/status").exists() && traced.is_ok_and(|output| output.status.success())
}
