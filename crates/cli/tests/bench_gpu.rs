//! `bench` in GPU memory, over the test driver: reports have all their fields, and no message is lost. The times mean nothing
//! here. `RGAPS_TEST_GPU=1` runs it on the machine's own GPUs.

mod support;

use serde_json::Value;
use support::{limited, Realm, Run, LIMIT};

fn run(realm: &Realm, driver: &[(&str, &str)], arguments: &[&str]) -> Run {
    let mut command = realm.command(&[&["bench"], arguments, &["--json"]].concat());
    command.env("RGAPS_POOL__CUDA__CAP", "512MiB");
    if std::env::var_os("RGAPS_TEST_GPU").is_none() {
        command
            .env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library())
            .env("RGAPS_TEST_DRIVER_DEVICES", "2")
            .envs(driver.iter().copied());
    }
    limited(command, LIMIT)
}

#[track_caller]
fn report(realm: &Realm, driver: &[(&str, &str)], arguments: &[&str]) -> Value {
    let out = run(realm, driver, arguments).ok();
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(
        (&report["lost"], &report["corrupt"]),
        (&0.into(), &0.into())
    );
    report
}

#[track_caller]
fn is_ordered(value: &Value, fields: &[&str]) {
    let numbers = fields.iter().map(|field| value[field].as_f64());
    let numbers: Option<Vec<f64>> = numbers.collect();
    assert!(
        numbers.is_some_and(|numbers| numbers.is_sorted() && numbers[0] > 0.0),
        "{fields:?} of {value}"
    );
}

const ALL: [&str; 5] = ["min_us", "p50_us", "p99_us", "p999_us", "max_us"];
/// Delays the driver's streams at random, so that a missing wait shows.
const LATE: [(&str, &str); 2] = [
    ("RGAPS_TEST_DRIVER_DELAY_US", "200"),
    ("RGAPS_TEST_DRIVER_SEED", "7"),
];

fn has_gpus(count: usize) -> bool {
    let real = std::env::var_os("RGAPS_TEST_GPU").is_some();
    let enough = !real || rgaps_cuda::Driver::load().unwrap().devices().unwrap().len() >= count;
    if !enough {
        eprintln!("skipped: this machine has fewer than {count} GPUs");
    }
    enough
}

#[test]
fn a_hand_over_is_timed_from_kernel_to_kernel() {
    let realm = Realm::new();
    let arguments = |gpus: &'static str, wait: &'static str| {
        let sizes = ["--size", "4KiB", "--size", "64KiB", "--kernel-us", "0,300"];
        let rest = ["handoff", "--gpus", gpus, "--messages", "6", "--wait", wait];
        [&rest[..], &sizes].concat()
    };
    let plans = [("0", "poll", 1), ("0", "block", 1), ("0,1", "poll", 2)];
    for (gpus, wait, count) in plans.into_iter().filter(|plan| has_gpus(plan.2)) {
        let found = report(&realm, &LATE, &arguments(gpus, wait));
        assert_eq!(found["gpus"].as_array().unwrap().len(), count);
        // On one GPU, one clock times both directions of each message. With two GPUs, each round trip gives one figure, its half.
        let (clock, hand_overs) = [("one", 12), ("halved", 6)][count - 1];
        assert_eq!(
            (&found["clock"], &found["wait"]),
            (&clock.into(), &wait.into())
        );
        let sizes = found["sizes"].as_array().unwrap();
        let rows: Vec<_> = sizes
            .iter()
            .map(|row| (row["size"].as_u64(), row["kernel_us"].as_u64()))
            .collect();
        let row = |size, kernel_us| (Some(size), Some(kernel_us));
        let expected = [row(4096, 0), row(4096, 300), row(65536, 0), row(65536, 300)];
        assert_eq!(rows, expected);
        // The report repeats the first size's fields at its top level.
        for field in ["size", "p50_us", "p99_us", "floor_us", "mps"] {
            assert!(found[field] == sizes[0][field] && !found[field].is_null());
        }
        for row in sizes {
            is_ordered(row, &ALL);
            is_ordered(row, &["floor_us", "floor_p99_us"]);
            assert_eq!(row["count"], hand_overs);
            assert_eq!(row["mps"], found["mps"]);
        }
    }
}

#[test]
fn a_message_is_copied_once_for_all_readers_of_a_domain() {
    let realm = Realm::new();
    let peers = [("RGAPS_TEST_DRIVER_PEERS", "all"), LATE[0], LATE[1]];
    let plans = [
        ("cuda:0", "cuda:1", "copy", &peers[..], 1, 2),
        ("cuda:0", "cuda:1", "map", &peers[..], 0, 2),
        ("cuda:0", "cuda:1", "copy", &LATE[..], 1, 2),
        ("host", "cuda:0", "copy", &LATE[..], 1, 1),
        ("cuda", "host", "copy", &LATE[..], 1, 1),
    ];
    for (from, to, peer, driver, copies, _) in plans.into_iter().filter(|plan| has_gpus(plan.5)) {
        let found = report(
            &realm,
            driver,
            &[
                "spread",
                "--from",
                from,
                "--to",
                to,
                "--peer",
                peer,
                "--readers",
                "3",
                "--size",
                "192KiB",
                "--messages",
                "4",
            ],
        );
        assert_eq!(found["copies"], copies, "{from} to {to}: {found}");
        assert_eq!(
            (&found["readers"], &found["messages"]),
            (&3.into(), &4.into())
        );
        is_ordered(&found["arrived"], &ALL);
        is_ordered(&found["consumed"], &["p50_us", "p99_us"]);
        is_ordered(&found["bare"], &["p50_us", "p99_us"]);
        for speed in ["gb_per_s", "bare_gb_per_s", "of_bare"] {
            assert!(found[speed].is_f64(), "{speed} of {found}");
        }
    }
}

#[test]
fn latency_on_a_gpu_has_a_kernel_in_flight_and_the_copying_way_beside_it() {
    let realm = Realm::new();
    for (wait, pause_us) in [("poll", 0), ("block", 0), ("poll", 700)] {
        let pause = pause_us.to_string();
        let found = report(
            &realm,
            &LATE,
            &[
                "latency",
                "--domain",
                "cuda",
                "--size",
                "64KiB",
                "--messages",
                "12",
                "--wait",
                wait,
                "--subscribers",
                "2",
                "--kernel-us",
                "500",
                "--pause-us",
                &pause,
            ],
        );
        assert_eq!(found["pause_us"], pause_us);
        is_ordered(&found, &ALL);
        is_ordered(&found["publish"], &["p50_us", "p99_us"]);
        let gpu = &found["gpu"];
        is_ordered(&gpu["in_flight"], &ALL);
        is_ordered(&gpu["idle_stream"], &ALL);
        assert_eq!(gpu["in_flight"]["kernel_us"], 500);
        assert!(gpu["in_flight"]["grew_us"].is_f64(), "{gpu}");
        is_ordered(&gpu["in_flight"]["floor"], &["p50_us", "p99_us"]);
        for operation in ["query", "write", "wait"] {
            is_ordered(&gpu["enqueue"][operation], &["p50_us", "p99_us"]);
        }
        is_ordered(&gpu["copied"], &ALL);
        assert_eq!(
            (&gpu["copied"]["messages"], &gpu["copied"]["corrupt"]),
            (&12.into(), &0.into())
        );
    }
    // Kernels write whole words, so the CPU copies a message of another size.
    let odd = [
        "latency",
        "--domain",
        "cuda",
        "--size",
        "4099",
        "--messages",
        "5",
    ];
    assert!(report(&realm, &LATE, &odd).get("gpu").is_none());
}

#[test]
fn messages_of_many_subscribers_lie_in_gpu_memory_once() {
    let realm = Realm::new();
    let found = report(
        &realm,
        &LATE,
        &[
            "fanout",
            "--domain",
            "cuda",
            "--subscribers",
            "1,4",
            "--size",
            "256KiB",
            "--messages",
            "4",
        ],
    );
    for count in found["counts"].as_array().unwrap() {
        for way in ["awake", "sleeping"] {
            is_ordered(&count[way]["last"], &["p50_us", "p99_us"]);
            let (last, all) = (
                &count[way]["last"]["p99_us"],
                &count[way]["latency"]["p50_us"],
            );
            assert!(last.as_f64() >= all.as_f64(), "{count}");
            let memory = count[way]["memory"].as_f64().unwrap();
            assert!((1.0..1.1).contains(&memory), "{count}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let realm = Realm::new();
    let refused = |driver: &[(&str, &str)], arguments: &[&str], because: &str| {
        let said = run(&realm, driver, arguments).fails_with(1);
        assert!(said.contains(because), "{arguments:?}: {said}");
    };
    refused(
        &[],
        &["handoff", "--gpus", "0,77", "--messages", "1"],
        "no GPU 77",
    );
    refused(
        &[],
        &["handoff", "--size", "4099", "--messages", "1"],
        "4099",
    );
    refused(&[], &["spread", "--from", "host", "--to", "host"], "GPU");
    refused(
        &[],
        &["latency", "--domain", "cuda:77", "--messages", "1"],
        "no GPU 77",
    );
    if std::env::var_os("RGAPS_TEST_GPU").is_none() {
        let lacking = [("RGAPS_TEST_DRIVER_LACK", "memops")];
        refused(
            &lacking,
            &["handoff", "--messages", "1"],
            "cannot write numbers",
        );
    }
}

#[test]
fn messages_in_gpu_memory_cross_between_hosts() {
    let realm = Realm::new();
    let links = rgaps_testkit::programs::rgaps_links().to_str().unwrap();
    let report = report(
        &realm,
        &[("RGAPS_LINKS_PROGRAM", links)],
        &[
            "link",
            "--domain",
            "cuda",
            "--size",
            "65536",
            "--subscribers",
            "2",
            "--messages",
            "4",
            "--namespaces",
            "no",
        ],
    );
    for wrong in ["lost", "duplicate", "corrupt"] {
        assert_eq!(report[wrong], 0, "{report}");
    }
    assert!(
        report["stages"]["d2h_us"].as_f64().unwrap() > 0.0,
        "{report}"
    );
}
