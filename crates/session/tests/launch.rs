//! Tests of starting a daemon. This program is also the daemon: it sets `RGAPS_DAEMON` to itself.
//!
//! It has no test harness, since clients start the daemon without arguments.

use rgaps_session::{
    connect, connect_or_start, Config, DaemonLock, LaunchError, Ready, SessionListener,
    SessionSocket,
};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The file with orders for the daemon, in the socket's folder: the daemon's environment is scrubbed.
const ORDERS: &str = "orders";

fn main() {
    if std::env::var_os("RGAPSD_CONFIG").is_some() {
        return daemon();
    }
    if std::env::args().nth(1).as_deref() == Some("client") {
        return client();
    }
    std::env::set_var("RGAPS_DAEMON", std::env::current_exe().unwrap());
    let tests: [(&str, fn()); 7] = [
        ("ten_clients_start_one_daemon", ten_clients_start_one_daemon),
        (
            "the_daemon_is_detached_and_scrubbed",
            the_daemon_is_detached_and_scrubbed,
        ),
        (
            "a_daemon_that_gives_up_says_why",
            a_daemon_that_gives_up_says_why,
        ),
        (
            "a_daemon_that_leaves_is_waited_for",
            a_daemon_that_leaves_is_waited_for,
        ),
        ("no_start_unless_it_is_wanted", no_start_unless_it_is_wanted),
        ("a_missing_program_is_named", a_missing_program_is_named),
        ("a_socket_that_is_not_for_us", a_socket_that_is_not_for_us),
    ];
    for (name, test) in tests {
        println!("test {name} ...");
        test();
    }
    println!("{} tests passed", tests.len());
}

fn daemon() {
    let mut ready = Ready::from_env();
    let config = Config::load(None).unwrap();
    let socket = config.socket_path();
    let folder = socket.parent().unwrap().to_owned();
    let note = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    let orders = std::fs::read_to_string(folder.join(ORDERS)).unwrap_or_default();
    match orders.as_str() {
        "refuse" => {
            ready.failed("no such luck");
            std::process::exit(1);
        }
        "crash" => {
            eprintln!("this is the last that was heard of it");
            std::process::exit(3);
        }
        _ => {}
    }
    let lock = match DaemonLock::take(&DaemonLock::path_for(&socket), "default") {
        Ok(lock) => lock,
        Err(error) => {
            ready.failed(&error.to_string());
            std::process::exit(1);
        }
    };
    let mut listener = SessionListener::bind(&socket, config.socket_mode.0, &lock).unwrap();
    note(&format!("started-{}", std::process::id()), String::new());
    let variables: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    note("environment", variables.join("\n"));
    let descriptors: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap_or_default())
        .map(|target| target.display().to_string())
        .collect();
    note("descriptors", descriptors.join("\n"));
    ready.ready();
    // Sends this process's ID to every client that connects. Ends at the deadline or on request.
    let deadline = Instant::now() + Duration::from_secs(240);
    let mut channels = Vec::new();
    while Instant::now() < deadline && !folder.join("quit").exists() {
        while let Some(channel) = listener.accept().unwrap() {
            channel.send(&std::process::id(), &[]).unwrap();
            channels.push(channel);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    listener.retire();
    if orders == "leave slowly" {
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn client() {
    let config = Config::load(None).unwrap();
    let channel = connect_or_start(&config, &[]).unwrap();
    println!("{}", greeting(&channel));
}

fn greeting(channel: &SessionSocket) -> u32 {
    channel.receive::<u32>().unwrap().unwrap().0
}

struct Place {
    folder: tempfile::TempDir,
    config: Config,
}

impl Place {
    fn new(orders: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(ORDERS), orders).unwrap();
        let config = Config {
            socket: Some(folder.path().join("r.sock")),
            ..Config::default()
        };
        Place { folder, config }
    }

    fn started(&self) -> Vec<u32> {
        std::fs::read_dir(self.folder.path())
            .unwrap()
            .filter_map(|entry| {
                entry
                    .unwrap()
                    .file_name()
                    .to_str()?
                    .strip_prefix("started-")?
                    .parse()
                    .ok()
            })
            .collect()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Asks the daemon to end, and waits until it has.
    fn quit(&self) {
        std::fs::write(self.folder.path().join("quit"), "").unwrap();
        for pid in self.started() {
            wait_for(
                || !Path::new(&format!("/proc/{pid}")).exists(),
                "the daemon's end",
            );
        }
        std::fs::remove_file(self.folder.path().join("quit")).unwrap();
    }
}

fn wait_for(condition: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ten_clients_start_one_daemon() {
    let place = Place::new("");
    let clients: Vec<Child> = (0..10)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .arg("client")
                .env("RGAPS_SOCKET", place.config.socket_path())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let answers: Vec<String> = clients
        .into_iter()
        .map(|client| {
            let output = client.wait_with_output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        })
        .collect();
    let started = place.started();
    assert_eq!(started.len(), 1, "one daemon for all: {started:?}");
    assert!(
        answers
            .iter()
            .all(|answer| *answer == started[0].to_string()),
        "{answers:?}"
    );
    place.quit();
}

fn the_daemon_is_detached_and_scrubbed() {
    let place = Place::new("");
    std::env::set_var("CUDA_VISIBLE_DEVICES", "3");
    std::env::set_var("RGAPS_SOMETHING", "kept");
    let bystander = std::fs::File::open("/proc/version").unwrap();
    // A descriptor without close-on-exec, as careless programs leave them.
    rustix::io::fcntl_setfd(&bystander, rustix::io::FdFlags::empty()).unwrap();
    let channel = connect_or_start(&place.config, &[]).unwrap();
    let pid = greeting(&channel);
    std::env::remove_var("CUDA_VISIBLE_DEVICES");
    drop(bystander);

    let environment = place.read("environment");
    assert!(!environment.contains("CUDA"), "{environment}");
    assert!(environment.contains("RGAPS_SOMETHING") && environment.contains("PATH"));
    let descriptors = place.read("descriptors");
    assert!(!descriptors.contains("/proc/version"), "{descriptors}");

    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    let fields: Vec<&str> = after_name.split(' ').collect();
    let (parent, group, session) = (fields[1], fields[2], fields[3]);
    assert_ne!(
        parent,
        std::process::id().to_string(),
        "it would be our zombie one day"
    );
    let own = std::fs::read_to_string("/proc/self/stat").unwrap();
    assert!(session != own.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap());
    assert_eq!(group, session);
    assert_ne!(
        session,
        pid.to_string(),
        "no leader, so it never gets a terminal"
    );
    assert_eq!(
        std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
        Path::new("/")
    );
    place.quit();
}

fn a_daemon_that_gives_up_says_why() {
    let place = Place::new("refuse");
    let error = connect_or_start(&place.config, &[]).unwrap_err();
    assert!(
        matches!(&error, LaunchError::Failed { reason } if reason == "no such luck"),
        "{error}"
    );
    let place = Place::new("crash");
    let error = connect_or_start(&place.config, &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the last that was heard of it"),
        "its log is quoted: {error}"
    );
}

fn a_daemon_that_leaves_is_waited_for() {
    let place = Place::new("leave slowly");
    let first = greeting(&connect_or_start(&place.config, &[]).unwrap());
    std::fs::write(place.folder.path().join("quit"), "").unwrap();
    wait_for(|| !place.config.socket_path().exists(), "its leaving");
    std::fs::remove_file(place.folder.path().join("quit")).unwrap();
    // The first daemon has removed its socket and still has its lock.
    let second = greeting(&connect_or_start(&place.config, &[]).unwrap());
    assert_ne!(first, second);
    place.quit();
}

fn no_start_unless_it_is_wanted() {
    let place = Place::new("");
    let config = Config {
        autostart: false,
        ..place.config.clone()
    };
    assert!(connect(&config).unwrap().is_none());
    let error = connect_or_start(&config, &[]).unwrap_err();
    assert!(error.to_string().contains("rgaps up"), "{error}");
    assert!(place.started().is_empty());
}

fn a_missing_program_is_named() {
    let place = Place::new("");
    let named = std::env::var_os("RGAPS_DAEMON").unwrap();
    std::env::set_var("RGAPS_DAEMON", "/no/such/rgapsd");
    let error = connect_or_start(&place.config, &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/no/such/rgapsd") && error.contains("RGAPS_DAEMON"),
        "{error}"
    );
    // Without the variable, the folders of the caller come first.
    std::env::remove_var("RGAPS_DAEMON");
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&named, bin.path().join("rgapsd")).unwrap();
    let channel = connect_or_start(&place.config, &[bin.path().to_owned()]).unwrap();
    assert!(place.started().contains(&greeting(&channel)));
    std::env::set_var("RGAPS_DAEMON", named);
    place.quit();
}

fn a_socket_that_is_not_for_us() {
    let place = Place::new("");
    let _daemon = connect_or_start(&place.config, &[]).unwrap();
    let socket = place.config.socket_path();
    // In a process of the user nobody, since root has all rights.
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(place.folder.path(), open).unwrap();
        // SAFETY: the child becomes nobody, connects, and ends by `_exit`, without running exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both calls take numbers, and change only this child's user and group.
            unsafe {
                libc::setgid(65534);
                libc::setuid(65534);
            }
            let refused = matches!(
                connect(&place.config),
                Err(LaunchError::NotPermitted { path }) if path == socket
            );
            // SAFETY: `_exit` ends this child, and runs no exit handlers, which belong to the parent.
            unsafe { libc::_exit(if refused { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our child, and `status` is ours.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 7);
    }
    place.quit();
}
