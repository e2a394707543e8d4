//! Small runs of all comparisons: all designs have their figures, and every byte is verified. The times have no meaning
//! here.

use rgaps_testkit::programs;
use serde_json::Value;
use std::process::Command;

/// Runs the program, which must succeed, and returns the report in its last line.
#[track_caller]
fn report(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rgaps-compare"))
        .args(arguments)
        .current_dir(folder.path())
        .env("RGAPS_SOCKET", folder.path().join("r.sock"))
        .env("RGAPS_DAEMON", programs::rgapsd())
        .env("RGAPS_LINKS_PROGRAM", programs::rgaps_links())
        .env("RGAPS_POOL__HOST__CAP", "256MiB")
        .env("RGAPS_POOL__CUDA__CAP", "256MiB")
        .env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library())
        .env("RGAPS_TEST_DRIVER_DEVICES", "2")
        .env_remove("RGAPS_CONFIG")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[track_caller]
fn number(report: &Value, path: &str) -> f64 {
    let value = report.pointer(path).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{path} of {report}"))
}

#[test]
fn alloc_has_the_shared_allocators_beside_rgaps() {
    let report = report(&["alloc", "--processes", "1,2", "--operations", "512"]);
    for (index, processes) in [1, 2].into_iter().enumerate() {
        let path = |rest: &str| format!("/counts/{index}/{rest}");
        assert_eq!(number(&report, &path("processes")), f64::from(processes));
        assert!(number(&report, &path("release_by_other/cpu_ns")) > 0.0);
        for design in ["semaphore", "ticket_lock", "floor"] {
            for operation in ["loan", "release"] {
                let figure =
                    |name: &str| number(&report, &path(&format!("{design}/{operation}/{name}")));
                assert!(figure("p50_ns") > 0.0 && figure("cpu_ns") > 0.0);
                assert!(figure("p50_ns") <= figure("max_ns"));
            }
        }
    }
    assert!(number(&report, "/cpu_ratio/loan") > 0.0);
}

#[test]
fn handle_has_the_message_and_its_locks() {
    let report = report(&["handle", "--messages", "20"]);
    assert!(number(&report, "/message_ns") > 0.0 && number(&report, "/lock_ns") > 0.0);
    assert!(number(&report, "/locks_of_message") > 0.0);
}

/// Checks the figures that every comparison of links has.
#[track_caller]
fn check_link(report: &Value, subscribers: usize) {
    for wrong in ["/lost", "/duplicate", "/corrupt"] {
        assert_eq!(number(report, wrong), 0.0, "{report}");
    }
    assert!(number(report, "/p50_us") > 0.0 && number(report, "/thesis/messages") > 0.0);
    for design in ["baseline", "series"] {
        let whole = number(report, &format!("/thesis/{design}_us"));
        let stages = report.pointer(&format!("/thesis/{design}_stages"));
        let stages = stages.and_then(Value::as_object).unwrap();
        let parts: Vec<f64> = stages.values().filter_map(Value::as_f64).collect();
        assert_eq!(parts.len(), 3, "{report}");
        assert!(parts.iter().all(|part| *part > 0.0), "{report}");
        // The median of the whole is not the sum of the stages' medians, but no stage takes much longer than the whole.
        assert!(parts.iter().all(|part| *part <= whole * 2.0), "{report}");
        assert!(number(report, &format!("/thesis/{design}_of_rgaps")) > 0.0);
    }
    let own = report.pointer("/thesis/baseline_stages/h2d_each_us");
    let own = own.and_then(Value::as_array).unwrap();
    assert_eq!(own.len(), subscribers, "{report}");
    assert!(own.iter().all(|us| us.as_f64() > Some(0.0)), "{report}");
}

#[test]
fn the_orders_of_the_thesis_have_their_stages() {
    let report = report(&[
        "link",
        "--size",
        "40000",
        "--subscribers",
        "2",
        "--messages",
        "4",
        "--namespaces",
        "no",
    ]);
    check_link(&report, 2);
}

#[test]
fn from_one_hosts_gpu_to_the_others_over_several_connections() {
    let report = report(&[
        "link",
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
    check_link(&report, 1);
    assert_ne!(report["domain"], report["to"], "{report}");
}
