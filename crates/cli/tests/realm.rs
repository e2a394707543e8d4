//! One daemon for a user and a realm, however its processes were started; and commands under a configuration that is
//! not valid.

mod support;

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{until, Realm, Run};

/// A realm at the default socket. A name of its own keeps it apart from the user's other realms.
struct DefaultRealm {
    realm: Realm,
    name: String,
}

impl DefaultRealm {
    fn new(test: &str) -> DefaultRealm {
        DefaultRealm {
            realm: Realm::new(),
            name: format!("test-{test}-{}", std::process::id()),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.realm.command(arguments);
        command
            .env_remove("RGAPS_SOCKET")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("SUDO_UID")
            .env("RGAPS_REALM", &self.name);
        command
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut command = self.command(arguments);
        let run: Run = command.arg("--json").output().unwrap().into();
        serde_json::from_str(&run.ok()).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let uid = rustix::process::geteuid().as_raw();
        let folder = std::fs::read_dir(format!("/tmp/rgaps-{uid}"));
        let files = folder
            .into_iter()
            .flatten()
            .flatten()
            .map(|file| file.path());
        files
            .filter(|file| {
                let name = file.file_name().unwrap().to_string_lossy();
                name.starts_with(&format!("{}.", self.name))
            })
            .collect()
    }

    fn remove_files(&self) {
        for file in self.files() {
            std::fs::remove_file(file).unwrap();
        }
    }
}

impl Drop for DefaultRealm {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
        self.remove_files();
    }
}

#[test]
fn a_realm_does_not_split_where_one_process_has_xdg_runtime_dir() {
    let default_realm = DefaultRealm::new("xdg");
    let with = tempfile::tempdir().unwrap();
    let mut first = default_realm.command(&["up", "--json"]);
    let first: Run = first
        .env("XDG_RUNTIME_DIR", with.path())
        .output()
        .unwrap()
        .into();
    let first: Value = serde_json::from_str(&first.ok()).unwrap();
    // Without the user's session variables, as under cron and sudo.
    let without = default_realm.json(&["status"]);
    assert_eq!(without["pid"], first["pid"]);
    let mut with_other_folders = default_realm.command(&["status", "--json"]);
    let with_other_folders: Run = with_other_folders
        .env("XDG_RUNTIME_DIR", "/run/user/4294967294")
        .env("TMPDIR", with.path())
        .env("HOME", with.path())
        .output()
        .unwrap()
        .into();
    let with_other_folders: Value = serde_json::from_str(&with_other_folders.ok()).unwrap();
    assert_eq!(with_other_folders["pid"], first["pid"]);
    let daemons = without["daemons"].as_array().unwrap();
    assert_eq!(daemons.len(), 1, "{without}");
    assert_eq!(daemons[0]["role"], "used");
    assert_eq!(std::fs::read_dir(with.path()).unwrap().count(), 0);
}

#[test]
fn two_daemons_of_a_realm_are_told_to_everybody() {
    let default_realm = DefaultRealm::new("two");
    let lost = default_realm.json(&["up"])["pid"].as_u64().unwrap();
    // Removes the daemon's files, as a user does who empties /tmp.
    default_realm.remove_files();
    let used = default_realm.json(&["up"])["pid"].as_u64().unwrap();
    assert_ne!(lost, used);
    let advice = format!("stop process {lost} ('kill {lost}')");

    let status = default_realm.json(&["status"]);
    let daemons = status["daemons"].as_array().unwrap();
    let seen: Vec<_> = daemons
        .iter()
        .map(|daemon| {
            (
                daemon["role"].as_str().unwrap(),
                daemon["pid"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(seen, [("used", used), ("cut_off", lost)]);
    let text = Run::from(default_realm.command(&["status"]).output().unwrap()).ok();
    let warning = text
        .find("warning      The daemons of realm")
        .expect("a warning");
    assert!(
        text[warning..].contains(&format!("\n             {advice}")),
        "{text}"
    );
    let doctor = Run::from(default_realm.command(&["doctor"]).output().unwrap()).stdout;
    assert!(doctor.contains("lack  other daemons"), "{doctor}");
    assert!(doctor.contains(&format!("-> {advice}")), "{doctor}");
    let log = default_realm.files();
    let log = log
        .iter()
        .find(|file| file.extension().is_some_and(|end| end == "log"));
    let log = std::fs::read_to_string(log.expect("a log")).unwrap();
    assert!(log.contains(&advice), "{log}");

    let pid = rustix::process::Pid::from_raw(lost as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("the lost daemon to be gone", || {
        default_realm.json(&["status"])["daemons"]
            .as_array()
            .unwrap()
            .len()
            == 1
    });
}

#[test]
fn a_daemon_at_another_socket_is_told_to_whom_no_socket_is_configured() {
    let default_realm = DefaultRealm::new("socket");
    let at_socket = |arguments: &[&str]| -> Value {
        let mut command = default_realm.realm.command(arguments);
        let command = command
            .env("RGAPS_REALM", &default_realm.name)
            .arg("--json");
        serde_json::from_str(&Run::from(command.output().unwrap()).ok()).unwrap()
    };
    let other = at_socket(&["up"])["pid"].as_u64().unwrap();
    let socket = default_realm.realm.path("r.sock");
    let advice = format!("set RGAPS_SOCKET={} for this program too", socket.display());
    // Also while no daemon runs at the default socket.
    let alone = Run::from(default_realm.command(&["status"]).output().unwrap()).fails_with(3);
    assert!(alone.contains(&advice), "{alone}");
    let start = "or start one here ('rgaps up')";
    assert!(alone.contains(start), "{alone}");
    let used = default_realm.json(&["up"])["pid"].as_u64().unwrap();
    let roles = |status: &Value| -> Vec<(String, u64)> {
        let daemons = status["daemons"].as_array().unwrap().iter();
        let role = |daemon: &Value| daemon["role"].as_str().unwrap().to_owned();
        daemons
            .map(|daemon| (role(daemon), daemon["pid"].as_u64().unwrap()))
            .collect()
    };
    let seen = roles(&default_realm.json(&["status"]));
    assert_eq!(
        seen,
        [("used".into(), used), ("other_socket".into(), other)]
    );
    let text = Run::from(default_realm.command(&["status"]).output().unwrap()).ok();
    let warning = text
        .find("warning      The daemons of realm")
        .expect("a warning");
    assert!(
        text[warning..].contains(&format!("\n             {advice}")),
        "{text}"
    );
    let doctor = Run::from(default_realm.command(&["doctor"]).output().unwrap()).stdout;
    assert!(doctor.contains(&format!("-> {advice}")), "{doctor}");
    // A program with the socket configured lists both daemons and prints no warning.
    let seen = roles(&at_socket(&["status"]));
    assert_eq!(
        seen,
        [("used".into(), other), ("other_socket".into(), used)]
    );
    let mut doctor = default_realm.realm.command(&["doctor"]);
    let doctor: Run = doctor
        .env("RGAPS_REALM", &default_realm.name)
        .output()
        .unwrap()
        .into();
    assert!(doctor.stdout.contains("ok    other daemons"), "{doctor:?}");
    at_socket(&["down"]);
}

/// Under sudo a process belongs to root, and so does its daemon: commands there must tell of the calling user's daemon.
#[test]
fn who_looks_under_sudo_is_told_of_the_callers_daemon() {
    const CALLER: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon of another user");
        return;
    }
    let default_realm = DefaultRealm::new("sudo");
    // Copies the programs to a folder where the other user can run them.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let shared = |program: &Path| {
        let copy = folder.path().join(program.file_name().unwrap());
        if std::fs::hard_link(program, &copy).is_err() {
            std::fs::copy(program, &copy).unwrap();
        }
        copy
    };
    let program = shared(Path::new(default_realm.command(&[]).get_program()));
    let daemon = shared(rgaps_testkit::programs::rgapsd());
    let as_caller = |arguments: &[&str]| -> Run {
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .current_dir("/")
            .env_clear()
            .env("RGAPS_REALM", &default_realm.name)
            .env("RGAPS_DAEMON", &daemon)
            .uid(CALLER)
            .gid(CALLER);
        command.output().unwrap().into()
    };
    let up: Value = serde_json::from_str(&as_caller(&["up", "--json"]).ok()).unwrap();
    let told = format!(
        "process {} of user {CALLER} at '/tmp/rgaps-{CALLER}/{}.sock'",
        up["pid"], default_realm.name
    );
    let mut under_sudo = default_realm.command(&["status"]);
    let status: Run = under_sudo
        .env("SUDO_UID", CALLER.to_string())
        .output()
        .unwrap()
        .into();
    let mut doctor = default_realm.command(&["doctor"]);
    let doctor: Run = doctor
        .env("SUDO_UID", CALLER.to_string())
        .output()
        .unwrap()
        .into();
    as_caller(&["down"]).ok();
    let said = status.fails_with(3);
    assert!(
        said.starts_with("rgaps: No daemon answers user 0")
            && said.contains("\n  run this command without sudo,"),
        "{said}"
    );
    assert!(said.contains(&told), "{said}");
    assert!(
        doctor.stdout.contains("-> run this command without sudo"),
        "{doctor:?}"
    );
}

#[test]
fn down_works_under_an_invalid_configuration_and_doctor_says_what_is_wrong() {
    let realm = Realm::new();
    let up = realm.json(&["up"]);
    std::fs::write(
        realm.path("rgaps.toml"),
        "realm = \"default\"\n[limits]\ntopics = 0\n",
    )
    .unwrap();
    let wrong = "rgaps.toml, line 3: limits.topics = 0";
    let said = realm.run(&["status"]).fails_with(2);
    assert!(said.contains(wrong), "{said}");
    let doctor = realm.run(&["doctor"]);
    assert!(
        doctor.stdout.contains("FAIL  configuration") && doctor.stdout.contains(wrong),
        "{doctor:?}"
    );
    let down = realm.run(&["down"]);
    assert!(down.stderr.contains(wrong), "{down:?}");
    let stopped = format!("process {} has stopped", up["pid"]);
    assert!(down.ok().contains(&stopped));
}

#[test]
fn an_option_is_blamed_and_not_a_variable() {
    let realm = Realm::new();
    let said = realm
        .run(&["status", "--realm", "not/a/realm"])
        .fails_with(2);
    assert!(said.contains("--realm: realm = \"not/a/realm\""), "{said}");
    assert!(!said.contains("variable"), "{said}");
}
