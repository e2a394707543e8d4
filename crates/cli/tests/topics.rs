//! The `topic` commands and `pool`, against a real daemon.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use support::{finish, interrupt, until, Realm, Run};

fn lines(out: &str) -> Vec<Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Whether standard error has nothing but perhaps the notice that nobody publishes the topic: the publisher may have come first.
fn is_notice(stderr: &str) -> bool {
    stderr.is_empty() || (stderr.lines().count() == 1 && stderr.contains("no publisher of topic"))
}

#[test]
fn what_is_published_is_echoed() {
    let realm = Realm::new();
    let echo = realm.spawn(&["topic", "echo", "greetings", "--all", "--count", "3"]);
    let sent = realm.json(&[
        "topic",
        "pub",
        "greetings",
        "--text",
        "hello",
        "--count",
        "3",
        "--wait-subscribers",
        "1",
        "--timeout",
        "60",
    ]);
    assert_eq!((&sent["messages"], &sent["bytes"]), (&3.into(), &15.into()));
    assert_eq!(finish(echo).ok(), "hello\nhello\nhello\n");
}

#[test]
fn one_thing_is_not_told_in_the_plural() {
    let realm = Realm::new();
    realm
        .run(&["topic", "pub", "t", "--text", "x", "--transient-local"])
        .ok();
    let said = realm.run(&["status"]).ok() + &realm.run(&["doctor"]).stdout;
    assert!(
        said.contains("serves       1 client, 1 topic, 1 zone\n"),
        "{said}"
    );
    assert!(said.contains(", 1 client, 1 topic; keeps"), "{said}");
}

#[test]
fn echo_shows_bytes_as_asked() {
    let realm = Realm::new();
    let publish = |topic: &str, bytes: &[u8]| {
        let mut command = realm.command(&["topic", "pub", topic, "--transient-local"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        assert!(child.wait().unwrap().success());
    };
    let echo = |topic: &str, more: &[&str]| {
        let mut all = vec![
            "topic",
            "echo",
            topic,
            "--late",
            "all",
            "--count",
            "1",
            "--timeout",
            "30",
        ];
        all.extend(more);
        realm.run(&all).ok()
    };
    publish("binary", &[0, 1, 0xff, b'a']);
    assert!(echo("binary", &[]).contains("00 01 ff 61"));
    assert!(echo("binary", &["--format", "summary"]).contains("4 B in host"));
    let message = &lines(&echo("binary", &["--json"]))[0];
    assert_eq!(
        (&message["hex"], &message["bytes"]),
        (&"0001ff61".into(), &4.into())
    );
    assert_eq!(
        (&message["sequence"], &message["truncated"]),
        (&0.into(), &false.into())
    );
    let short = &lines(&echo("binary", &["--json", "--max-bytes", "2"]))[0];
    assert_eq!(
        (&short["hex"], &short["truncated"]),
        (&"0001".into(), &true.into())
    );

    let long: Vec<u8> = (0..3_000_000u32).flat_map(|i| i.to_le_bytes()).collect();
    publish("long", &long);
    let file = realm.path("out.raw");
    let said = echo("long", &["--save", file.to_str().unwrap()]);
    assert!(said.contains("11.4 MiB"), "{said}");
    assert!(
        std::fs::read(&file).unwrap() == long,
        "the file differs from what was published"
    );
    let mut raw = realm.command(&[
        "topic", "echo", "long", "--late", "latest", "--count", "1", "--format", "raw",
    ]);
    assert!(
        raw.output().unwrap().stdout == long,
        "raw output differs from what was published"
    );
}

#[test]
fn messages_come_from_files_lines_and_sizes() {
    let realm = Realm::new();
    let file = realm.path("lines");
    std::fs::write(&file, "one\n\nthree").unwrap();
    let file = file.to_str().unwrap();
    let keep = ["--transient-local"];
    let run = |arguments: &[&str]| realm.run(&[arguments, &keep].concat()).ok();
    run(&["topic", "pub", "lines", "--file", file, "--lines"]);
    run(&["topic", "pub", "whole", "--file", file]);
    run(&["topic", "pub", "sized", "--size", "64KiB", "--count", "2"]);
    let texts = |topic: &str, count: &str| {
        let out = realm.run(&[
            "topic",
            "echo",
            topic,
            "--late",
            "all",
            "--count",
            count,
            "--format",
            "text",
            "--json",
            "--timeout",
            "30",
        ]);
        lines(&out.ok())
    };
    let found: Vec<_> = texts("lines", "3")
        .iter()
        .map(|m| m["text"].clone())
        .collect();
    assert_eq!(found, ["one", "", "three"]);
    assert_eq!(texts("whole", "1")[0]["text"], "one\n\nthree");
    let sized = texts("sized", "2");
    assert_eq!(
        (&sized[0]["bytes"], &sized[1]["sequence"]),
        (&65_536.into(), &1.into())
    );
    assert_ne!(
        sized[0]["text"], sized[1]["text"],
        "contents differ between messages"
    );
}

#[test]
fn what_does_not_come_in_time_has_its_code() {
    let realm = Realm::new();
    let said = realm
        .run(&["topic", "echo", "silent", "--timeout", "0.2"])
        .fails_with(5);
    assert!(said.contains("silent"), "{said}");
    realm
        .run(&["topic", "hz", "silent", "--timeout", "0.2"])
        .fails_with(5);
    let alone = [
        "topic",
        "pub",
        "alone",
        "--text",
        "x",
        "--wait-subscribers",
        "2",
        "--timeout",
        "0.2",
    ];
    let said = realm.run(&alone).fails_with(5);
    assert!(said.contains("0 of 2 subscribers"), "{said}");
}

#[test]
fn what_is_refused_has_its_code() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    realm.run(&["topic", "info", "nowhere"]).fails_with(4);
    let said = realm
        .run(&["topic", "pub", "huge", "--size", "1TiB"])
        .fails_with(6);
    assert!(said.contains("cap"), "{said}");
}

/// Issue 17: `topic echo --late latest`, or with `--type`, must not make the first volatile publisher fail.
#[test]
fn an_echo_that_comes_first_keeps_no_publisher_out() {
    let realm = Realm::new();
    let late = realm.spawn(&["topic", "echo", "t", "--late", "latest", "--count", "2"]);
    let typed = realm.spawn(&["topic", "echo", "t", "--type", "image", "--count", "1"]);
    let publish = ["topic", "pub", "t", "--timeout", "60"];
    let publish = |more: &[&str]| realm.run(&[&publish[..], more].concat()).ok();
    realm.wait_for_subscribers("t", 2);
    // The subscriber with a type does not match, so its quality of service does not matter.
    publish(&["--text", "plain", "--wait-subscribers", "1"]);
    publish(&[
        "--text",
        "image",
        "--type",
        "image",
        "--wait-subscribers",
        "2",
    ]);
    assert_eq!(finish(late).ok(), "plain\nimage\n");
    assert_eq!(finish(typed).ok(), "image\n");
}

/// Issue 17: `topic pub` must not succeed when the only subscriber has another type.
#[test]
fn a_publisher_is_told_of_subscribers_that_do_not_match() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("reader");
    let subscriber = node.subscriber("t").type_name("float32[3,*]").create();
    let subscriber = subscriber.unwrap();
    let publish = ["topic", "pub", "t", "--text", "x"];
    let run = realm.run(&publish);
    assert!(!run.stdout.contains("had none"), "{run:?}");
    let said = run.fails_with(6);
    for word in ["1 subscriber", "does not match", "float32[3,*]", "no type"] {
        assert!(said.contains(word), "'{word}' is not in {said}");
    }
    let typed = ["--type", "float32[3,4]"];
    let said = realm.run(&[&publish[..], &typed].concat()).fails_with(6);
    assert!(
        said.contains("plain bytes") && said.contains("float32[3,4]"),
        "{said}"
    );
    let wait = ["--wait-subscribers", "1", "--timeout", "0.2"];
    let said = realm.run(&[&publish[..], &wait].concat()).fails_with(5);
    assert!(
        said.contains("0 of 1") && said.contains("expects 'float32[3,*]'"),
        "{said}"
    );
    let publisher = node.publisher("t").create().unwrap();
    let info = realm.json(&["topic", "info", "t"]);
    assert_eq!(info["mismatches"][0]["subscriber"], 0);
    assert_eq!(info["subscriber_list"][0]["mismatched"], 1);
    let text = realm.run(&["topic", "info", "t"]).ok();
    assert!(
        text.contains("publisher 0 and subscriber 0 do not match: "),
        "{text}"
    );
    drop((publisher, subscriber));
    realm.run(&publish).ok();
}

#[test]
fn listings_show_topics_members_and_pools() {
    let realm = Realm::new();
    let mut echo = realm.spawn(&["topic", "echo", "a/b", "--reliable", "--json"]);
    realm.wait_for_subscribers("a/b", 1);
    let mut publisher = realm.spawn(&[
        "topic", "pub", "a/b", "--size", "4096", "--rate", "100", "--type", "bytes",
    ]);
    let first = BufReader::new(echo.stdout.as_mut().unwrap())
        .lines()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(lines(&first)[0]["topic"], "a/b");

    let list = realm.json(&["topic", "list"]);
    let topic = &list[0];
    assert_eq!(
        (&topic["name"], &topic["type_name"]),
        (&"a/b".into(), &"bytes".into())
    );
    assert_eq!(
        (&topic["domain"], &topic["publishers"]),
        (&"host".into(), &1.into())
    );
    let info = realm.json(&["topic", "info", "a/b"]);
    let publishing = &info["publisher_list"][0];
    assert_eq!(
        (&publishing["history"], &publishing["depth"]),
        (&"keep_last".into(), &16.into())
    );
    assert_eq!(publishing["pid"], publisher.id());
    assert!(publishing["messages"].as_u64().unwrap() >= 1, "{info}");
    let listening = &info["subscriber_list"][0];
    assert_eq!(
        (&listening["reliable"], &listening["pid"]),
        (&true.into(), &echo.id().into())
    );
    // The lease is in proportion to the need, and the listing shows the use.
    let leased = publishing["leased_bytes"].as_u64().unwrap();
    // At most four times the bytes of 16 messages of history, one loan and 32 held samples.
    assert!((4096..=832 << 10).contains(&leased), "{info}");
    let kept = &publishing["used"]["history"];
    let blocks = kept["blocks"].as_u64().unwrap();
    assert!((1..=16).contains(&blocks), "{info}");
    assert_eq!(kept["bytes"], blocks * 4096);
    assert!(
        publishing["used_bytes"].as_u64() >= kept["bytes"].as_u64(),
        "{info}"
    );
    let shown = realm.run(&["topic", "info", "a/b"]).ok();
    for expected in ["keep_last(16)", "MEMORY OF"] {
        assert!(shown.contains(expected), "{shown}");
    }
    let pools = realm.json(&["pool"]);
    assert_eq!(
        (&pools[0]["domain"], &pools[0]["cap_bytes"]),
        (&"host".into(), &(256u64 << 20).into())
    );
    assert!(pools[0]["leased_bytes"].as_u64().unwrap() > 0, "{pools}");
    for child in [&mut publisher, &mut echo] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Over the test driver with two GPUs: which subscribers read the messages in place, which get copies, and why.
#[test]
fn info_names_the_path_and_the_reason() {
    let realm = Realm::new();
    let on_gpus = |arguments: &[&str]| {
        let mut command = realm.command(arguments);
        command
            .env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library())
            .env("RGAPS_TEST_DRIVER_DEVICES", "2")
            .env("RGAPS_POOL__CUDA__CAP", "256MiB")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let up: support::Run = on_gpus(&["up"]).output().unwrap().into();
    up.ok();
    let domains = ["host", "cuda:0", "cuda:1"];
    let mut running: Vec<Limited> = domains
        .iter()
        .map(|domain| {
            let echo = [
                "topic", "echo", "seen", "--domain", domain, "--format", "summary",
            ];
            Limited(on_gpus(&echo).spawn().unwrap())
        })
        .collect();
    realm.wait_for_subscribers("seen", 3);
    let mut publish = on_gpus(&["topic", "pub", "seen", "--size", "5MiB", "--rate", "20"]);
    publish.args(["--domain", "cuda:0"]);
    running.push(Limited(publish.spawn().unwrap()));
    let reasons = [
        "CPU cannot map",
        "zero copy",
        "the GPUs have no peer access",
    ];
    let mut found = Vec::new();
    support::until("the paths with their reasons", || {
        let info = realm.json(&["topic", "info", "seen"]);
        let rows = info["subscriber_list"].as_array().unwrap().iter();
        found = rows
            .map(|row| row["path"].as_str().unwrap().to_owned())
            .collect();
        reasons
            .iter()
            .all(|reason| found.iter().any(|path| path.contains(reason)))
    });
    let text = realm.run(&["topic", "info", "seen"]).ok();
    // The table wraps a long reason.
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    for path in &found {
        assert!(text.contains(path.as_str()), "'{path}' is not in {text}");
    }
}

/// A child that does not outlive its test.
struct Limited(std::process::Child);

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn info_has_the_type_of_each_member_and_no_path_where_nobody_matches() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("members");
    let publisher = |name: &str| node.publisher("t").type_name(name).create().unwrap();
    let _image = publisher("image");
    let subscriber = node.subscriber("t").type_name("image").depth(3);
    let subscriber = subscriber.create().unwrap();
    let text = realm.run(&["topic", "info", "t"]).ok();
    assert!(text.contains("depth 3") && !text.contains("TYPE"), "{text}");
    assert!(text.contains("zero copy"), "{text}");
    drop(subscriber);
    let _cloud = publisher("cloud");
    let _reader = node.subscriber("t").type_name("lidar").create().unwrap();
    let text = realm.run(&["topic", "info", "t"]).ok();
    for word in ["TYPE", "image", "cloud", "lidar"] {
        assert!(text.contains(word), "'{word}' is not in {text}");
    }
    let info = realm.json(&["topic", "info", "t"]);
    let path = &info["subscriber_list"][0]["path"];
    assert_eq!(path, "none: no publisher matches it");
}

#[test]
fn a_topic_that_is_not_there_is_answered_with_the_name_that_was_meant() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let node = realm.node("camera");
    let _front = node.publisher("camera/front").create().unwrap();
    for command in ["info", "forget"] {
        let said = realm.run(&["topic", command, "camera/fornt"]).fails_with(4);
        assert!(said.contains("did you mean 'camera/front'?"), "{said}");
    }
    let said = realm.run(&["topic", "info", "imu"]).fails_with(4);
    assert!(!said.contains("did you mean"), "{said}");
}

#[test]
fn rates_are_measured() {
    let realm = Realm::new();
    let count = ["--count", "40", "--json", "--timeout", "60"];
    let watches = [&["hz"][..], &["bw"], &["delay", "--all"]]
        .map(|what| realm.spawn(&[&["topic"], what, &["t"], &count].concat()));
    realm.wait_for_subscribers("t", 3);
    realm
        .run(&[
            "topic", "pub", "t", "--size", "1000", "--rate", "50", "--count", "40",
        ])
        .ok();
    let reports = watches.map(|watch| lines(&finish(watch).ok()).pop().unwrap());
    let [hz, bw, delay] = &reports;
    for report in &reports {
        assert_eq!(
            (&report["messages"], &report["missed"]),
            (&40.into(), &0.into()),
            "{report}"
        );
    }
    // The rate depends on the machine, but always matches the mean interval.
    let rate = hz["rate_hz"].as_f64().unwrap();
    let mean_s = hz["interval_mean_ms"].as_f64().unwrap() / 1e3;
    assert!((rate * mean_s - 1.0).abs() < 0.01, "{hz}");
    assert_eq!(
        (&bw["bytes_min"], &bw["bytes_max"]),
        (&1000.into(), &1000.into())
    );
    assert!(bw["bytes_per_s"].as_f64() > Some(0.0), "{bw}");
    let [p50, p99] = ["p50_us", "p99_us"].map(|field| delay[field].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99, "{delay}");
}

#[test]
fn control_c_ends_with_a_last_report() {
    let realm = Realm::new();
    let watch = realm.spawn(&["topic", "hz", "t", "--json", "--every", "100"]);
    realm.wait_for_subscribers("t", 1);
    realm
        .run(&[
            "topic", "pub", "t", "--text", "x", "--count", "5", "--rate", "1000",
        ])
        .ok();
    support::until("five messages", || {
        realm.json(&["topic", "info", "t"])["subscriber_list"][0]["received"] == 5
    });
    interrupt(&watch);
    let run = finish(watch);
    assert!(is_notice(&run.stderr), "{run:?}");
    let reports = lines(&run.ok());
    assert_eq!((reports.len(), &reports[0]["messages"]), (1, &5.into()));
    // The interrupted commands have left their daemon in order.
    assert_eq!(realm.json(&["status"])["clients_reaped"], 0);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let realm = Realm::new();
    // Reliable, so that the command prints no line about missed messages first.
    let mut echo = realm.spawn(&["topic", "echo", "t", "--reliable"]);
    realm.wait_for_subscribers("t", 1);
    let mut publisher = realm.spawn(&["topic", "pub", "t", "--text", "line", "--rate", "200"]);
    let mut reader = BufReader::new(echo.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "line\n");
    drop(reader);
    let run = finish(echo);
    assert!(run.code == 0 && is_notice(&run.stderr), "{run:?}");
    publisher.kill().unwrap();
    publisher.wait().unwrap();
}

#[test]
fn an_empty_standard_input_is_said_and_publishes_nothing() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    for (arguments, words) in [
        (
            &["topic", "pub", "t"][..],
            "standard input is empty, so nothing was published",
        ),
        (
            &["topic", "pub", "t", "--lines"][..],
            "no line, so nothing was published",
        ),
    ] {
        let run = realm.run(arguments);
        assert_eq!(run.code, 1);
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
    // An empty message that the user asks for is published.
    let empty = realm.json(&["topic", "pub", "t", "--text", ""]);
    assert_eq!(
        (&empty["messages"], &empty["bytes"]),
        (&1.into(), &0.into())
    );
}

/// The first Ctrl-C must end the command even if no input comes.
#[test]
fn one_ctrl_c_ends_a_publisher_that_reads_standard_input() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    for (arguments, code) in [
        (&["topic", "pub", "t"][..], 1),
        (&["topic", "pub", "t", "--lines"][..], 0),
    ] {
        let mut command = realm.command(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"half a line").unwrap();
        // The command has read the input, so it has installed its signal handlers.
        until("the input to be read", || {
            rustix::io::ioctl_fionread(&input).unwrap() == 0
        });
        interrupt(&child);
        let run = finish(child);
        assert_eq!(run.code, code, "{run:?}");
        match code {
            1 => assert!(run.stderr.contains("interrupted before the end"), "{run:?}"),
            _ => assert!(run.stdout.starts_with("0 messages"), "{run:?}"),
        }
        drop(input);
    }
}

#[test]
fn a_terminal_is_told_that_standard_input_is_read() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let rgaps = realm.command(&[]);
    let mut command = Command::new("script");
    for (name, value) in rgaps.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let line = format!("'{}' topic pub t", rgaps.get_program().to_str().unwrap());
    command
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null());
    let run: Run = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("SKIPPED: there is no program 'script', which gives a terminal");
            return;
        }
        output => output.unwrap().into(),
    };
    assert!(
        run.stdout
            .starts_with("rgaps: reading standard input; Ctrl-D ends it"),
        "{run:?}"
    );
}

#[test]
fn a_reserved_key_names_the_option_that_sets_it() {
    let realm = Realm::new();
    for (meta, option) in [
        ("capture_ns=5", "use --capture-now"),
        ("frame_id=left", "use --frame-id"),
    ] {
        let publish = ["topic", "pub", "t", "--text", "x", "--meta", meta];
        let said = realm.run(&publish).fails_with(2);
        assert!(
            said.contains(option) && !said.contains("Header::"),
            "{said}"
        );
    }
}

#[test]
fn publishing_to_nobody_is_said_with_what_to_do() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let alone = realm.run(&["topic", "pub", "t", "--text", "x"]).ok();
    assert!(
        alone.contains("no subscriber received them: the topic had none"),
        "{alone}"
    );
    assert!(alone.contains("--wait-subscribers 1"), "{alone}");
    let kept = realm
        .run(&["topic", "pub", "k", "--text", "x", "--transient-local"])
        .ok();
    assert!(kept.contains("the history keeps them"), "{kept}");
    let echo = realm.spawn(&["topic", "echo", "t", "--count", "1", "--timeout", "60"]);
    realm.wait_for_subscribers("t", 1);
    let heard = realm.run(&["topic", "pub", "t", "--text", "x"]).ok();
    assert!(!heard.contains("no subscriber"), "{heard}");
    support::finish(echo).ok();
}

#[test]
fn echo_of_a_pattern_names_the_topics_and_the_commands_that_take_patterns() {
    let realm = Realm::new();
    realm
        .run(&[
            "topic",
            "pub",
            "camera/left",
            "--text",
            "x",
            "--transient-local",
        ])
        .ok();
    let run = realm.run(&["topic", "echo", "camera/*"]);
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.contains("it matches 'camera/left'") && run.stderr.contains("'rgaps topic hz'"),
        "{}",
        run.stderr
    );
    assert!(realm
        .run(&["topic", "echo", "lidar/**"])
        .stderr
        .contains("no topic matches it now"));
}

#[test]
fn the_list_says_untyped_and_what_the_bytes_are() {
    let realm = Realm::new();
    realm
        .run(&["topic", "pub", "t", "--text", "x", "--transient-local"])
        .ok();
    let list = realm.run(&["topic", "list"]).ok();
    assert!(
        list.contains("untyped") && list.contains("BYTES PUBLISHED"),
        "{list}"
    );
    let info = realm.run(&["topic", "info", "t"]).ok();
    assert!(
        info.contains("type      untyped\n") && info.contains("published 1 message, 1 B"),
        "{info}"
    );
}
