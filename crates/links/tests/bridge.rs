//! `rgaps-links bridge`: its reports, its end, and errors in its configuration. crates/bridge/tests checks what it carries.

use rgaps_testkit::{ports, until, Daemon, Process, LIMIT};
use rustix::process::{kill_process, Pid, Signal};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use zenoh::Wait as _;

fn command(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps-links"));
    command.arg("--config").arg(config);
    command.args(["bridge", "zenoh", "--json"]);
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A plain Zenoh session.
fn listen_at(endpoint: &str) -> zenoh::Session {
    let mut config = zenoh::Config::default();
    for (key, value) in [
        ("listen/endpoints", format!("[{endpoint:?}]")),
        ("scouting/multicast/enabled", "false".to_owned()),
    ] {
        config.insert_json5(key, &value).unwrap();
    }
    zenoh::open(config).wait().unwrap()
}

/// The bridge reports that no Zenoh node is there, and finds one that starts later. Ctrl-C ends it, and it prints its figures.
#[test]
fn it_finds_a_node_that_comes_later_and_ends_by_ctrl_c() {
    let port = ports(1)[0];
    let endpoint = format!("tcp/127.0.0.1:{port}");
    let daemon = Daemon::start_with(&format!(
        "[bridge]\nconnect = [{endpoint:?}]\n[[bridge.zenoh]]\ntopic = \"in\"\ndirection = \"from\"\n"
    ));
    let subscriber = daemon.node("reader").subscriber("in").create().unwrap();
    let [log, out] = ["bridge.log", "bridge.json"].map(|name| daemon.folder().join(name));
    let mut running = command(&daemon.config_path());
    running.args(["--every-ms", "50"]);
    running.stderr(File::create(&log).unwrap());
    let mut bridge = Process::start(running.stdout(File::create(&out).unwrap()));
    until("the warning", || {
        read(&log).contains("no Zenoh node is reached")
    });
    assert!(read(&log).contains(&endpoint), "{}", read(&log));
    let session = listen_at(&endpoint);
    let publisher = session.declare_publisher("in").wait().unwrap();
    until("the bridge's subscriber", || {
        publisher.matching_status().wait().unwrap().matching()
    });
    publisher.put("hello").wait().unwrap();
    assert_eq!(
        subscriber.recv_timeout(LIMIT).unwrap().as_slice().unwrap(),
        b"hello"
    );
    until("a report", || read(&out).contains("\"received\":1"));
    let pid = Pid::from_raw(bridge.id() as i32).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(bridge.wait().success(), "{}", read(&log));
    let last = read(&out).lines().last().unwrap().to_owned();
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        (&last["ended"], &last["received_bytes"]),
        (&true.into(), &5.into())
    );
}

#[test]
fn what_cannot_be_carried_is_an_error() {
    let rule = "[[bridge.zenoh]]\ntopic = ";
    let connect = "[bridge]\nconnect = [\"tcp/127.0.0.1:1\"]\n";
    for (text, code, named) in [
        (connect.to_owned(), 2, "--to, --from or --both"),
        (format!("{rule}\"a\"\n"), 2, "--connect or --listen"),
        (
            format!("{connect}{rule}\"a#b\"\n"),
            2,
            "'a#b' is not a Zenoh key expression",
        ),
        (format!("{connect}{rule}\"a//b\"\n"), 1, "empty part"),
        (
            format!("[bridge]\nlisten = [\"nothing\"]\n{rule}\"a\"\n"),
            1,
            "Zenoh cannot be started",
        ),
        (
            format!("[bridge]\nlisten = [\"tcp/192.0.2.1:7447\"]\n{rule}\"a\"\n"),
            1,
            "Zenoh cannot be started",
        ),
    ] {
        let daemon = Daemon::start();
        let path = daemon.folder().join("bridge.toml");
        let own = format!("socket = {:?}\nautostart = false\n{text}", daemon.socket());
        std::fs::write(&path, own).unwrap();
        let output = command(&path).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}: {error}");
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn without_a_daemon_it_says_so() {
    let folder = std::env::temp_dir().join(format!("rgaps-bridge-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("rgaps.toml");
    let text = format!("socket = {:?}\nautostart = false\n", folder.join("r.sock"));
    std::fs::write(&path, text).unwrap();
    let output = command(&path).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("no daemon answers"), "{error}");
}
