//! `bench link`: two hosts on this machine. Reports have all their fields, and no message is lost; the times mean nothing here.

mod support;

use serde_json::Value;
use support::{limited, Realm, Run, LIMIT};

fn run(arguments: &[&str]) -> Run {
    let realm = Realm::new();
    let arguments = [&["bench", "link"], arguments, &["--json"]].concat();
    let mut command = realm.command(&arguments);
    command.env(
        "RGAPS_LINKS_PROGRAM",
        rgaps_testkit::programs::rgaps_links(),
    );
    command.env("RGAPS_POOL__CUDA__CAP", "256MiB");
    command.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
    command.env("RGAPS_TEST_DRIVER_DEVICES", "2");
    limited(command, LIMIT)
}

#[track_caller]
fn report(arguments: &[&str]) -> Value {
    let out = run(arguments).ok();
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    for wrong in ["lost", "duplicate", "corrupt"] {
        assert_eq!(report[wrong], 0, "{report}");
    }
    let above_zero = |value: &Value, fields: &[&str]| {
        for field in fields {
            let number = value[field].as_f64();
            assert!(
                number.is_some_and(|number| number > 0.0),
                "{field} of {report}"
            );
        }
    };
    above_zero(
        &report,
        &[
            "p50_us",
            "p99_us",
            "gbit_s",
            "raw_tcp_gbit_s",
            "raw_tcp_half_rtt_us",
            "floor_us",
            "wire_bytes",
            "payload_bytes",
        ],
    );
    above_zero(&report["stages"], &["alloc_us", "wire_us", "notify_us"]);
    above_zero(
        &report["cpu"],
        &["sending_links_s_per_gb", "landing_links_s_per_gb"],
    );
    assert!(
        report["wire_bytes"].as_u64() >= report["payload_bytes"].as_u64(),
        "{report}"
    );
    report
}

#[test]
fn from_one_hosts_gpu_to_the_others() {
    let report = report(&[
        "--domain",
        "cuda:0",
        "--to",
        "cuda:1",
        "--size",
        "1MiB",
        "--messages",
        "2",
        "--namespaces",
        "no",
    ]);
    assert_ne!(report["domain"], report["to"], "{report}");
    for alone in ["d2h_us", "h2d_us"] {
        assert!(report["stages"][alone].as_f64() > Some(0.0), "{report}");
    }
}

#[test]
fn several_topics_and_subscribers_lose_nothing() {
    let several = [
        "--size",
        "70001",
        "--subscribers",
        "2",
        "--topics",
        "2",
        "--lanes",
        "2",
        "--messages",
        "6",
    ];
    let without = report(&[&several[..], &["--namespaces", "no"]].concat());
    assert_eq!(without["namespaces"], false);
    assert!(without["messages"].as_u64().unwrap() >= 6, "{without}");
    // A message crosses the wire once for both subscribers, so the wire carries less than twice the payload. Without namespaces, the
    // bytes on the wire are those of the whole machine.
    let report = report(&several);
    if report["namespaces"] == true {
        let (wire, payload) = (&report["wire_bytes"], &report["payload_bytes"]);
        assert!(
            wire.as_f64().unwrap() < 1.5 * payload.as_f64().unwrap(),
            "{report}"
        );
    }
}

#[test]
fn encrypted_in_namespaces_where_they_are_to_be_had() {
    let report = report(&["--size", "4099", "--tls", "--lanes", "1", "--messages", "4"]);
    assert!(report["raw_tls_gbit_s"].as_f64().unwrap() > 0.0, "{report}");
    assert_ne!(
        report["namespaces"].as_bool(),
        Some(report["without_namespaces"].is_string())
    );
}
