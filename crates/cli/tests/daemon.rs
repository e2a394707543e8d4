//! `up`, `down`, `status`, `doctor`, `completion` and the exit codes, against a real daemon.

mod support;

use serde_json::Value;
use std::process::Stdio;
use support::{finish, until, Realm, LIMIT};

#[test]
fn without_a_daemon_looking_starts_none_and_says_what_to_do() {
    let realm = Realm::new();
    for command in [
        &["status"][..],
        &["pool"],
        &["topic", "list"],
        &["topic", "info", "x"],
    ] {
        let said = realm.run(command).fails_with(3);
        assert!(said.contains("'rgaps up' starts one"), "{said}");
        assert!(!said.contains("autostart"), "{said}");
    }
    let said = realm.run(&["down"]).fails_with(3);
    assert!(
        said.ends_with("r.sock', so there is none to stop\n"),
        "{said}"
    );
    assert!(!realm.path("r.sock").exists());
}

#[test]
fn up_stays_and_down_ends_it() {
    let realm = Realm::new();
    let up = realm.json(&["up"]);
    assert_eq!(
        (&up["started"], &up["idle_exit_ms"]),
        (&Value::Bool(true), &Value::Null)
    );
    let again = realm.json(&["up"]);
    assert_eq!(
        (&again["started"], &again["pid"]),
        (&Value::Bool(false), &up["pid"])
    );

    let status = realm.json(&["status"]);
    for field in [
        "version",
        "realm",
        "pid",
        "socket",
        "uptime_ms",
        "clients",
        "topics",
        "zones",
        "rss_bytes",
        "idle_exit_ms",
        "clients_reaped",
        "blocks_reclaimed",
        "sessions_cut_off",
        "recovering",
        "kept",
        "warnings",
        "processes",
    ] {
        assert!(
            status.get(field).is_some(),
            "{field} is missing in {status}"
        );
    }
    assert_eq!(status["pid"], up["pid"]);
    assert_eq!(status["processes"][0]["name"], "rgaps-cli");
    assert!(realm.run(&["status"]).ok().contains("rgapsd "));

    let down = realm.json(&["down"]);
    assert_eq!(down["pid"], up["pid"]);
    realm.run(&["status"]).fails_with(3);
}

#[test]
fn up_keeps_a_daemon_that_a_client_started() {
    let realm = Realm::new();
    realm.run(&["topic", "pub", "t", "--text", "x"]).ok();
    let before = realm.json(&["status"]);
    assert_eq!(before["idle_exit_ms"], 20_000);
    let said = realm.run(&["up"]).ok();
    assert!(said.contains("stays until 'rgaps down'"), "{said}");
    let up = realm.json(&["up"]);
    assert_eq!(up["started"], false);
    let after = realm.json(&["status"]);
    for report in [&up, &after] {
        assert_eq!(report["pid"], before["pid"]);
        assert_eq!(report["idle_exit_ms"], Value::Null);
    }
}

#[test]
fn up_in_the_foreground_is_the_daemon() {
    let realm = Realm::new();
    let child = realm.spawn(&["up", "--foreground"]);
    until("the daemon", || realm.run(&["status"]).code == 0);
    let status = realm.json(&["status"]);
    assert_eq!(status["pid"], child.id());
    assert_eq!(status["idle_exit_ms"], Value::Null);
    realm.run(&["down"]).ok();
    assert_eq!(finish(child).code, 0);
}

#[test]
fn wrong_usage_is_told_apart() {
    let realm = Realm::new();
    for wrong in [
        &["no-such-command"][..],
        &["topic", "pub", "t", "--text", "a", "--size", "3"],
        &["topic", "hz", "t", "--timeout", "soon"],
        &["status", "--realm", "not/a/realm"],
        &["status", "--config", "there-is-none.toml"],
        &["topic", "pub", "t", "--text", "a", "--domain", "cuda:first"],
    ] {
        realm.run(wrong).fails_with(2);
    }
    let file = realm.path("broken.toml");
    std::fs::write(&file, "no_such_key = 1\n").unwrap();
    let said = realm
        .run(&["status", "--config", file.to_str().unwrap()])
        .fails_with(2);
    assert!(said.contains("no_such_key"), "{said}");
}

#[test]
fn doctor_tries_and_advises() {
    let realm = Realm::new();
    let mut command = realm.command(&["doctor", "--json"]);
    command.env("RGAPS_CUDA_LIBRARY", "/there/is/none.so");
    command.env("RGAPS_VERBS_LIBRARY", "/there/is/no/verbs.so");
    let run: support::Run = command.output().unwrap().into();
    let report: Value = serde_json::from_str(&run.ok()).unwrap();
    assert_eq!(report["usable"], true);
    assert_eq!(report["domains"], serde_json::json!(["host"]));
    let checks = report["checks"].as_array().unwrap();
    let check = |name: &str| {
        let found = checks.iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("no check '{name}' in {report}"))
    };
    for name in [
        "processor",
        "kernel",
        "clock",
        "futex_waitv",
        "deaths",
        "shared memory",
        "address space",
        "host pool",
        "huge pages",
        "open files",
        "locked memory",
        "socket folder",
        "daemon",
    ] {
        check(name);
    }
    let cuda = check("CUDA driver");
    assert_eq!(cuda["verdict"], "lack");
    assert!(
        cuda["found"]
            .as_str()
            .unwrap()
            .contains("/there/is/none.so"),
        "{cuda}"
    );
    let verbs = check("RDMA library");
    assert_eq!(verbs["verdict"], "lack");
    let found = verbs["found"].as_str().unwrap();
    assert!(found.contains("/there/is/no/verbs.so"), "{verbs}");
    assert!(verbs["advice"]
        .as_str()
        .unwrap()
        .contains("ibverbs-providers"));
    // The kernel lists the ports, so the report has them without a library, too.
    for port in report["rdma"].as_array().unwrap() {
        assert!(
            port["device"].is_string() && port["registers"].is_null(),
            "{port}"
        );
    }
    // Every check that is not ok gives advice.
    for check in checks {
        assert_eq!(
            check["verdict"] == "ok",
            check.get("advice").is_none(),
            "{check}"
        );
    }
}

/// `doctor` says whether the GPU or the CPU orders streams, and why.
#[test]
fn doctor_says_where_streams_are_ordered() {
    const GPU: &str = "GPU-72676170-7320-7465-7374-206770750000";
    for (lack, verdict, found) in [
        ("", "ok", "on the GPU"),
        ("memops", "lack", "cuStreamWriteValue64 failed"),
        ("register", "lack", "cuMemHostRegister failed"),
    ] {
        let realm = Realm::new();
        let mut command = realm.command(&["doctor", "--json"]);
        command.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
        command.env("RGAPS_TEST_DRIVER_LACK", lack);
        let run: support::Run = command.output().unwrap().into();
        let report: Value = serde_json::from_str(&run.ok()).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let name = format!("streams of {GPU}");
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("no check '{name}' in {report}"));
        assert_eq!(check["verdict"], verdict, "{check}");
        assert!(check["found"].as_str().unwrap().contains(found), "{check}");
        // The GPU can hold messages in either case.
        assert!(report["domains"].to_string().contains(GPU), "{report}");
    }
}

/// `doctor` says whether network cards can access a GPU's memory, and what prevents it.
#[test]
fn doctor_says_whether_a_gpu_gives_its_memory_to_network_cards() {
    const GPU: &str = "GPU-72676170-7320-7465-7374-206770750000";
    for (lack, order, verdict, found) in [
        ("", "none", "ok", "flushed before each message"),
        ("", "all", "ok", "ordered for all GPUs"),
        ("dmabuf", "none", "lack", "open kernel modules"),
        ("rdma", "none", "lack", "no GPUDirect RDMA"),
        ("flush", "owner", "lack", "flushed"),
    ] {
        let realm = Realm::new();
        let mut command = realm.command(&["doctor", "--json"]);
        command.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
        command.env("RGAPS_TEST_DRIVER_LACK", lack);
        command.env("RGAPS_TEST_DRIVER_RDMA_ORDER", order);
        let run: support::Run = command.output().unwrap().into();
        let report: Value = serde_json::from_str(&run.ok()).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let name = format!("dma-buf of {GPU}");
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("no check '{name}' in {report}"));
        assert_eq!(check["verdict"], verdict, "{check}");
        assert!(check["found"].as_str().unwrap().contains(found), "{check}");
        // The GPU can hold messages in any case.
        assert!(report["domains"].to_string().contains(GPU), "{report}");
    }
}

#[test]
fn doctor_fails_where_nothing_can_run() {
    let realm = Realm::new();
    let blocked = realm.path("file");
    std::fs::write(&blocked, "").unwrap();
    let mut command = realm.command(&["doctor"]);
    command.env("RGAPS_SOCKET", blocked.join("below/r.sock"));
    let run: support::Run = command.output().unwrap().into();
    assert!(run.stdout.contains("FAIL  socket folder"), "{run:?}");
    run.fails_with(1);
}

/// A user who mistyped the path would start a daemon that nobody else finds.
#[test]
fn doctor_says_that_it_made_the_folder_of_a_configured_socket() {
    let realm = Realm::new();
    let socket = realm.path("mistyped/r.sock");
    let doctor = || -> String {
        let mut command = realm.command(&["doctor"]);
        command.env("RGAPS_SOCKET", &socket);
        support::Run::from(command.output().unwrap()).stdout
    };
    let said = doctor();
    assert!(
        said.contains("mistyped', did not exist; created it"),
        "{said}"
    );
    assert!(doctor().contains("ok    socket folder"));
}

#[test]
fn completion_has_a_script_for_each_shell() {
    let realm = Realm::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = realm.run(&["completion", shell]).ok();
        // The script asks the program itself; tests/patterns.rs runs it.
        assert!(script.contains("rgaps"), "{shell}: {script}");
        let document = realm.json(&["completion", shell]);
        assert_eq!(
            (&document["shell"], &document["script"]),
            (&shell.into(), &script.into())
        );
    }
    let help = realm.run(&["--help"]).ok();
    assert!(help.contains("Exit codes:"), "{help}");
}

/// A user who may not open the socket gets an error that says so and whom to ask, and starts no other daemon there.
#[test]
fn a_socket_that_is_not_ours_is_told_apart() {
    use std::os::unix::fs::PermissionsExt;
    let realm = Realm::new();
    let up = realm.json(&["up"]);
    let is_root = rustix::process::geteuid().is_root();
    let may = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(realm.path("r.sock"), mode).unwrap();
    };
    may(0);
    for arguments in [&["status"][..], &["topic", "pub", "t", "--text", "x"]] {
        let mut command = realm.command(arguments);
        if is_root {
            command = as_nobody(&realm, arguments);
            command.env("RGAPS_SOCKET", realm.path("r.sock"));
        }
        let run: support::Run = start(&mut command).into();
        let said = run.fails_with(6);
        assert!(
            said.contains("may not use the daemon") && said.contains("socket_mode"),
            "{said}"
        );
    }
    may(0o600);
    assert_eq!(realm.json(&["status"])["pid"], up["pid"]);
}

/// Runs a command as the user nobody, since no permission stops root.
fn as_nobody(realm: &Realm, arguments: &[&str]) -> std::process::Command {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(realm.folder.path(), mode).unwrap();
    let program = realm.path("rgaps");
    let built = realm.command(&[]);
    if !program.exists() && std::fs::hard_link(built.get_program(), &program).is_err() {
        std::fs::copy(built.get_program(), &program).unwrap();
    }
    let mut other = std::process::Command::new(&program);
    other.args(arguments).current_dir("/").uid(65534).gid(65534);
    other.env("HOME", "/");
    other
}

/// `sudo -u alice rgaps ...` in a folder of bob ignores bob's configuration file unless alice names it.
#[test]
fn a_configuration_file_of_another_user_counts_only_where_it_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let realm = Realm::new();
    let is_root = rustix::process::geteuid().is_root();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let here = realm.path("rgaps.toml");
    std::fs::write(&here, "realm = \"bob\"\n").unwrap();
    mode(&here, 0);
    let personal = realm.path("personal");
    std::fs::create_dir_all(personal.join("rgaps")).unwrap();
    std::fs::write(personal.join("rgaps/rgaps.toml"), "realm = \"bob\"\n").unwrap();
    mode(&personal, 0);
    let run = |arguments: &[&str]| -> support::Run {
        let mut command = match is_root {
            true => as_nobody(&realm, arguments),
            false => realm.command(arguments),
        };
        command
            .current_dir(realm.folder.path())
            .env("XDG_CONFIG_HOME", &personal)
            .env("RGAPS_SOCKET", realm.path("none.sock"));
        start(&mut command).into()
    };
    let said = run(&["topic", "list"]).fails_with(3);
    let here = here.display();
    let passed = format!("the configuration '{here}' is not used: user ");
    assert!(said.contains(&passed), "{said}");
    assert!(!said.contains("personal"), "a folder says nothing: {said}");
    let said = run(&["topic", "list", "--config", "rgaps.toml"]).fails_with(2);
    let named = format!("the configuration '{here}' cannot be read: Permission denied");
    assert!(said.contains(&named), "{said}");
    mode(&personal, 0o700);
}

/// Runs a program that this test has just copied. Repeats on ETXTBSY: a child that another test forks meanwhile has the copy open
/// for writing until it calls `exec`.
fn start(command: &mut std::process::Command) -> std::process::Output {
    let until = std::time::Instant::now() + LIMIT;
    loop {
        match command.output() {
            Err(error)
                if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && std::time::Instant::now() < until =>
            {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            output => return output.unwrap(),
        }
    }
}

/// The ids of the daemon processes that serve a realm.
fn daemons(realm: &Realm) -> Vec<i32> {
    let folder = realm.folder.path().to_str().unwrap().to_owned();
    let processes = std::fs::read_dir("/proc").unwrap();
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let read = |pid: &i32, what| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    numbers
        .filter(|pid| {
            read(pid, "comm").starts_with(b"rgapsd")
                && String::from_utf8_lossy(&read(pid, "environ")).contains(&folder)
        })
        .collect()
}

#[test]
fn programs_that_start_at_once_start_one_daemon() {
    for _ in 0..3 {
        let realm = Realm::new();
        let publish = |n: usize| {
            let topic = format!("at/once/{n}");
            realm
                .command(&["topic", "pub", &topic, "--text", "x", "--transient-local"])
                .env("SECRET_OF_THE_FIRST", n.to_string())
                .env("CUDA_VISIBLE_DEVICES", "")
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let programs: Vec<_> = (0..10).map(publish).collect();
        for program in programs {
            finish(program).ok();
        }
        assert_eq!(realm.json(&["topic", "list"]).as_array().unwrap().len(), 10);
        let pid = realm.json(&["status"])["pid"].as_i64().unwrap() as i32;
        // Daemons that lost the race have found the first one, and ended.
        until("one daemon", || daemons(&realm) == [pid]);
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment);
        for foreign in ["SECRET_OF_THE_FIRST", "CUDA_VISIBLE_DEVICES"] {
            assert!(!environment.contains(foreign), "{environment}");
        }
    }
}
