//! The daemon and MPS: starting, taking over and stopping it, and the quarantine of dead clients.

#[path = "../../../tests/mps/fake.rs"]
mod fake_mps;
mod support;

use fake_mps::FakeMps;
use rgaps_layout::{Domain, GpuUuid, GRANULE_BYTES};
use rgaps_session::{
    Answer, MpsControl, MpsInfo, MpsState, PoolRow, Request, SessionSocket, Status,
};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::*;

const GPU: &str = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10";

fn settings(fake: &FakeMps, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let mut settings = fake.environment();
    let driver = rgaps_test_driver::library().display().to_string();
    settings.push(("RGAPS_CUDA_LIBRARY", driver));
    settings.push(("RGAPS_TEST_DRIVER_UUIDS", GPU.to_owned()));
    settings.push(("RGAPS_TEST_DRIVER_MEMORY_MB", "1024".to_owned()));
    settings.push(("RGAPS_CUDA__MPS", "true".to_owned()));
    settings.extend(more.iter().map(|(name, value)| (*name, value.to_string())));
    settings
}

fn start(daemon: &mut Option<Daemon>, fake: &FakeMps, more: &[(&'static str, &str)]) {
    let settings = settings(fake, more);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(n, v)| (*n, v.as_str())).collect();
    match daemon {
        Some(daemon) => daemon.restart_with(&settings),
        None => *daemon = Some(start_with(&settings)),
    }
}

fn started(fake: &FakeMps) -> Daemon {
    let mut daemon = None;
    start(&mut daemon, fake, &[]);
    daemon.unwrap()
}

fn restart(daemon: Daemon, fake: &FakeMps, more: &[(&'static str, &str)]) -> Daemon {
    let mut daemon = Some(daemon);
    start(&mut daemon, fake, more);
    daemon.unwrap()
}

fn mps(client: &mut Client) -> MpsInfo {
    match client.ask(Request::Mps).unwrap() {
        Answer::Mps(info) => info,
        other => panic!("{other:?}"),
    }
}

fn status(client: &mut Client) -> Status {
    match client.ask(Request::Status).unwrap() {
        Answer::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

fn leased(client: &mut Client) -> u64 {
    let rows: Vec<PoolRow> = match client.ask(Request::Pools).unwrap() {
        Answer::Pools(rows) => rows,
        other => panic!("{other:?}"),
    };
    rows.iter().map(|row| row.leased_bytes).sum()
}

fn ours(client: &mut Client) -> u32 {
    let info = mps(client);
    assert_eq!(info.state, MpsState::Own, "{info:?}");
    info.control_pid.unwrap()
}

fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A child process that is killed at the end of the test.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a client in a process of its own, which leases memory in `domain`.
fn publisher_process(daemon: &Daemon, domain: &str) -> Guarded {
    publisher_process_under(daemon, domain, "")
}

/// The same, for a client that reports the MPS of directory `pipes`, unless that is empty.
fn publisher_process_under(daemon: &Daemon, domain: &str, pipes: &str) -> Guarded {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_that_leases_and_waits",
            "--ignored",
            "--nocapture",
        ])
        .env("RGAPSD_TEST_SOCKET", daemon.socket())
        .env("RGAPSD_TEST_DOMAIN", domain)
        .env("RGAPSD_TEST_PIPES", pipes)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Guarded(child);
    let mut lines = BufReader::new(child.0.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("leased")));
    child
}

#[test]
#[ignore = "started by other tests"]
fn child_that_leases_and_waits() {
    let Some(socket) = std::env::var_os("RGAPSD_TEST_SOCKET") else {
        return;
    };
    let mut client = Client::connect(SessionSocket::connect(socket.as_ref()).unwrap(), "child");
    let domain = match std::env::var("RGAPSD_TEST_DOMAIN").unwrap().as_str() {
        "host" => Domain::Host,
        uuid => Domain::Cuda(uuid.parse::<GpuUuid>().unwrap()),
    };
    let pipe_directory = std::env::var("RGAPSD_TEST_PIPES").unwrap();
    if !pipe_directory.is_empty() {
        client.ask(Request::UnderMps { pipe_directory }).unwrap();
    }
    let mut request = join("t", publisher());
    if let Request::Join { domain: wanted, .. } = &mut request {
        *wanted = Some(domain);
    }
    let Answer::Joined { member, .. } = client.ask_with(request, &[]).0.unwrap() else {
        panic!("not joined")
    };
    let bytes = GRANULE_BYTES;
    client
        .ask(Request::Lease {
            publisher: member,
            pool: 0,
            bytes,
        })
        .unwrap();
    println!("\nleased");
    std::thread::sleep(LIMIT);
}

#[test]
fn it_is_started_started_again_and_stopped() {
    let fake = FakeMps::new();
    let mut daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    let first = ours(&mut client);
    let info = mps(&mut client);
    let pipes = PathBuf::from(info.pipe_directory.unwrap());
    assert!(pipes.starts_with(daemon.folder()), "{pipes:?}");
    let folder = pipes.parent().unwrap();
    let mode = std::fs::metadata(folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert!(MpsControl::at(&pipes).has_socket());

    kill(first);
    let mut second = 0;
    until("MPS to be started again", || {
        let info = mps(&mut client);
        second = info.control_pid.unwrap_or(first);
        info.state == MpsState::Own && second != first
    });
    assert_eq!(mps(&mut client).restarts, 1);
    daemon.terminate();
    assert!(daemon.wait().success());
    assert!(!lives(second) && !MpsControl::at(&pipes).has_socket());
    assert!(fake.was_asked("quit") && fake.log().contains(&"quit done".to_owned()));
    assert_eq!(fake.starts(), 2);
}

#[test]
fn one_that_does_not_start_is_given_up_and_the_daemon_serves_all_the_same() {
    let fake = FakeMps::new();
    fake.behave("refuse");
    let daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    until("MPS to be given up", || {
        mps(&mut client).state == MpsState::Failed
    });
    let info = mps(&mut client);
    assert_eq!((info.pipe_directory, info.restarts), (None, 5));
    assert!(info.reason.unwrap().contains("refusing to start, as told"));
    assert!(status(&mut client).warnings[0].contains("MPS is not running"));
    client.join("t", publisher());
}

#[test]
fn without_the_program_it_says_what_to_install() {
    let fake = FakeMps::new();
    let mut daemon = None;
    start(&mut daemon, &fake, &[("PATH", "/nonexistent")]);
    let info = mps(&mut connect(&daemon.unwrap(), "looker"));
    assert_eq!(info.state, MpsState::Failed);
    assert!(info.reason.unwrap().contains("nvidia-cuda-mps-control"));
}

#[test]
fn the_next_daemon_takes_over_what_a_killed_one_started() {
    let fake = FakeMps::new();
    let mut daemon = started(&fake);
    let first = ours(&mut connect(&daemon, "looker"));
    daemon.kill();
    assert!(lives(first));
    let mut daemon = restart(daemon, &fake, &[]);
    assert_eq!(ours(&mut connect(&daemon, "looker")), first);

    // As if the daemon had been killed before it wrote the record.
    let record = daemon.folder().join("r.sock.mps/control-started");
    daemon.kill();
    std::fs::remove_file(&record).unwrap();
    let mut daemon = restart(daemon, &fake, &[]);
    assert_eq!(ours(&mut connect(&daemon, "looker")), first);
    assert!(record.exists());
    assert_eq!(fake.starts(), 1);

    // Both the daemon and its MPS die.
    daemon.kill();
    kill(first);
    until("MPS to be dead", || !lives(first));
    let mut daemon = restart(daemon, &fake, &[]);
    let second = ours(&mut connect(&daemon, "looker"));
    assert_ne!(second, first);

    // The next daemon is configured without MPS.
    daemon.kill();
    let mut daemon = restart(daemon, &fake, &[("RGAPS_CUDA__MPS", "false")]);
    until("MPS to end", || !lives(second));
    let mut client = connect(&daemon, "looker");
    until("MPS to be off", || mps(&mut client).state == MpsState::Off);
    assert_eq!(fake.starts(), 2);
    daemon.terminate();
    daemon.wait();
}

#[test]
fn one_that_is_there_is_used_and_left_alone() {
    let fake = FakeMps::new();
    let pipes = tempfile::tempdir().unwrap();
    let command = fake.control(pipes.path()).arg("-f").spawn();
    let foreign = Guarded(command.unwrap());
    until("the other MPS", || fake.starts() == 1);
    let directory = pipes.path().display().to_string();
    let mut daemon = None;
    start(
        &mut daemon,
        &fake,
        &[("CUDA_MPS_PIPE_DIRECTORY", &directory)],
    );
    let mut daemon = daemon.unwrap();
    let info = mps(&mut connect(&daemon, "looker"));
    assert_eq!(info.state, MpsState::Foreign);
    assert_eq!(info.pipe_directory, Some(directory));
    assert_eq!(info.control_pid, Some(foreign.0.id()));
    daemon.terminate();
    assert!(daemon.wait().success());
    assert!(lives(foreign.0.id()) && !fake.was_asked("quit"));
    assert_eq!(fake.starts(), 1);
}

#[test]
fn a_shell_in_its_environment_starts_no_second_one() {
    let fake = FakeMps::new();
    let mut daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    let first = ours(&mut client);
    let pipes = mps(&mut client).pipe_directory.unwrap();
    daemon.kill();
    let daemon = restart(daemon, &fake, &[("CUDA_MPS_PIPE_DIRECTORY", &pipes)]);
    assert_eq!(ours(&mut connect(&daemon, "looker")), first);
}

#[test]
fn a_dead_clients_blocks_stay_until_mps_says_that_it_is_gone() {
    let fake = FakeMps::new();
    let daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    let mut publisher = publisher_process(&daemon, GPU);
    let pid = publisher.0.id();
    fake.behave("stubborn");
    fake.clients(&[pid, 999_999]);
    client.join("other", subscriber());
    assert_eq!(leased(&mut client), GRANULE_BYTES);
    publisher.0.kill().unwrap();
    publisher.0.wait().unwrap();

    until("the quarantine", || mps(&mut client).quarantined == 1);
    let terminated =
        |line: &String| line.starts_with("terminate_client ") && line.ends_with(&pid.to_string());
    until("the client to be terminated", || {
        fake.log().iter().any(terminated)
    });
    let asked = fake.log().iter().filter(|line| terminated(line)).count();
    until("more questions", || {
        fake.log().iter().filter(|line| terminated(line)).count() > asked
    });
    assert_eq!(
        leased(&mut client),
        GRANULE_BYTES,
        "not before it is proven"
    );
    assert_eq!(status(&mut client).clients_reaped, 0);

    fake.behave("");
    until("the proof", || mps(&mut client).quarantined == 0);
    assert_eq!(leased(&mut client), 0);
    assert_eq!(status(&mut client).clients_reaped, 1);
    let others = fake.log();
    assert!(
        !others.iter().any(|line| line.ends_with(" 999999")),
        "{others:?}"
    );
}

#[test]
fn a_control_that_does_not_answer_proves_nothing() {
    for behaviour in ["hang", "garbage"] {
        let fake = FakeMps::new();
        let daemon = started(&fake);
        let mut client = connect(&daemon, "looker");
        let mut on_gpu = publisher_process(&daemon, GPU);
        fake.clients(&[on_gpu.0.id()]);
        client.join("other", subscriber());
        fake.behave(behaviour);
        on_gpu.0.kill().unwrap();
        on_gpu.0.wait().unwrap();
        until("the log of the time limit", || {
            daemon.log().contains("stays in quarantine")
        });
        assert_eq!(leased(&mut client), GRANULE_BYTES);
        let warnings = status(&mut client).warnings;
        assert!(
            warnings.iter().any(|w| w.contains("quarantine")),
            "{warnings:?}"
        );

        fake.behave("");
        until("the proof", || mps(&mut client).quarantined == 0);
        assert_eq!(leased(&mut client), 0);
        assert!(status(&mut client).warnings.is_empty());
    }
}

#[test]
fn a_client_without_gpus_is_nobody_to_ask_about() {
    let fake = FakeMps::new();
    let daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    let mut on_host = publisher_process(&daemon, "host");
    client.join("other", subscriber());
    assert_eq!(leased(&mut client), GRANULE_BYTES);
    fake.behave("hang");
    on_host.0.kill().unwrap();
    on_host.0.wait().unwrap();
    until("the cleanup", || leased(&mut client) == 0);
    assert_eq!(mps(&mut client).quarantined, 0);
}

#[test]
fn a_client_outside_mps_is_proven_at_once() {
    let fake = FakeMps::new();
    let daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    let mut outside = publisher_process(&daemon, GPU);
    fake.clients(&[999_999]);
    client.join("other", subscriber());
    outside.0.kill().unwrap();
    outside.0.wait().unwrap();
    until("the cleanup", || leased(&mut client) == 0);
    assert!(!fake.log().iter().any(|line| line.starts_with("terminate")));
    assert!(daemon.log().contains("MPS confirms that a client is gone"));
}

#[test]
fn a_server_without_its_control_proves_nothing() {
    let fake = FakeMps::new();
    let daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    let control = ours(&mut client);
    let mut publisher = publisher_process(&daemon, GPU);
    fake.clients(&[publisher.0.id()]);
    client.join("other", subscriber());
    let pipes = mps(&mut client).pipe_directory.unwrap();
    // The fake starts its server when it is first asked.
    let asked = fake
        .control(pipes.as_ref())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let mut asked = Guarded(asked.unwrap());
    std::io::Write::write_all(&mut asked.0.stdin.take().unwrap(), b"get_server_list\n").unwrap();
    until("a server", || {
        fake.log().iter().any(|line| line.starts_with("server "))
    });
    kill(control);
    until("MPS to be started again", || {
        let info = mps(&mut client);
        info.state == MpsState::Own && info.control_pid != Some(control)
    });
    fake.clients(&[]);
    publisher.0.kill().unwrap();
    publisher.0.wait().unwrap();
    until("the quarantine", || mps(&mut client).quarantined == 1);
    let asked = fake.log().len();
    until("more questions", || fake.log().len() > asked + 3);
    assert_eq!(
        (mps(&mut client).quarantined, leased(&mut client)),
        (1, GRANULE_BYTES)
    );
    fake.stop_servers();
    until("the proof", || mps(&mut client).quarantined == 0);
    assert_eq!(leased(&mut client), 0);
}

#[test]
fn a_client_names_an_mps_that_the_daemon_does_not_know() {
    let fake = FakeMps::new();
    let pipes = tempfile::tempdir().unwrap();
    let command = fake.control(pipes.path()).arg("-f").spawn();
    let _foreign = Guarded(command.unwrap());
    until("the other MPS", || fake.starts() == 1);
    let mut daemon = None;
    start(&mut daemon, &fake, &[("RGAPS_CUDA__MPS", "false")]);
    let daemon = daemon.unwrap();
    let mut client = connect(&daemon, "looker");
    assert_eq!(mps(&mut client).state, MpsState::Off);
    for nonsense in ["relative".to_owned(), format!("/{}", "x".repeat(200))] {
        let refused = client.ask(Request::UnderMps {
            pipe_directory: nonsense,
        });
        assert!(refused.unwrap_err().message.contains("absolute path"));
    }
    let mut named = publisher_process_under(&daemon, GPU, &pipes.path().display().to_string());
    let pid = named.0.id();
    fake.clients(&[pid]);
    client.join("other", subscriber());
    named.0.kill().unwrap();
    named.0.wait().unwrap();
    until("the cleanup", || leased(&mut client) == 0);
    let log = fake.log();
    assert!(
        log.iter()
            .any(|line| line.starts_with("terminate_client ") && line.ends_with(&pid.to_string())),
        "{log:?}"
    );
}

/// A folder that looks like that of an MPS. `pid_file` creates something in place of the file with its process number.
fn pretended_mps(pid_file: impl Fn(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::net::UnixListener::bind(folder.path().join("control")).unwrap();
    pid_file(&folder.path().join("nvidia-cuda-mps-control.pid"));
    folder
}

#[test]
fn a_pretended_mps_keeps_no_memory_and_blocks_nobody() {
    let fake = FakeMps::new();
    let mut daemon = None;
    start(&mut daemon, &fake, &[("RGAPS_CUDA__MPS", "false")]);
    let daemon = daemon.unwrap();
    let mut client = connect(&daemon, "looker");
    client.join("other", subscriber());
    let pretended = [
        pretended_mps(|file| std::os::unix::fs::symlink("/dev/zero", file).unwrap()),
        pretended_mps(|file| {
            let made = std::process::Command::new("mkfifo").arg(file).status();
            assert!(made.unwrap().success());
        }),
        pretended_mps(|file| std::fs::write(file, "1\n").unwrap()),
    ];
    for folder in &pretended {
        let mut member =
            publisher_process_under(&daemon, GPU, &folder.path().display().to_string());
        assert_ne!(leased(&mut client), 0);
        member.0.kill().unwrap();
        member.0.wait().unwrap();
        until("the cleanup", || leased(&mut client) == 0);
        assert_eq!(mps(&mut client).quarantined, 0);
    }
}

#[test]
fn a_daemon_that_leaves_lets_clients_finish() {
    let fake = FakeMps::new();
    let mut daemon = started(&fake);
    let first = ours(&mut connect(&daemon, "looker"));
    fake.clients(&[999_999]);
    daemon.terminate();
    assert!(daemon.wait().success());
    assert!(lives(first), "it has a client");
    let mut daemon = restart(daemon, &fake, &[]);
    let mut client = connect(&daemon, "looker");
    let info = mps(&mut client);
    assert_eq!(
        (info.state, info.control_pid),
        (MpsState::Draining, Some(first))
    );
    assert!(info.reason.unwrap().contains("no new clients"));
    fake.clients(&[]);
    until("a new MPS", || mps(&mut client).state == MpsState::Own);
    assert!(!lives(first));
    assert_eq!(fake.starts(), 2);
    daemon.terminate();
    assert!(daemon.wait().success());
}

#[test]
fn a_control_that_hangs_is_ended_with_the_daemon() {
    let fake = FakeMps::new();
    let mut daemon = started(&fake);
    let control = ours(&mut connect(&daemon, "looker"));
    fake.behave("hang");
    daemon.terminate();
    daemon.wait();
    assert!(!lives(control));
}

#[test]
fn one_that_was_given_up_may_have_left_servers() {
    let fake = FakeMps::new();
    let daemon = started(&fake);
    let mut client = connect(&daemon, "looker");
    let control = ours(&mut client);
    let mut publisher = publisher_process(&daemon, GPU);
    fake.clients(&[publisher.0.id()]);
    client.join("other", subscriber());
    // The fake starts its server when it is first asked: here the quarantine of another client asks.
    let mut other = publisher_process(&daemon, GPU);
    other.0.kill().unwrap();
    until("the other's proof", || leased(&mut client) == GRANULE_BYTES);
    fake.behave("refuse");
    kill(control);
    until("MPS to be given up", || {
        mps(&mut client).state == MpsState::Failed
    });
    publisher.0.kill().unwrap();
    publisher.0.wait().unwrap();
    until("the quarantine", || mps(&mut client).quarantined == 1);
    until("the log of the time limit", || {
        daemon.log().contains("without its control daemon")
    });
    assert_eq!(leased(&mut client), GRANULE_BYTES);
    fake.stop_servers();
    until("the proof", || mps(&mut client).quarantined == 0);
    assert_eq!(leased(&mut client), 0);
}
