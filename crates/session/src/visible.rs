//! Finds all daemons of a realm that this process can see, and warns if there are several.
//!
//! Processes of one user and realm should share one daemon. If they do not, publishers and subscribers wait for each other for
//! ever. This module reads two sources: the daemons that answer at the sockets where clients look, and the kernel's list of
//! listening sockets (`/proc/net/unix`). That list also has daemons that nobody reaches by path, since their socket was removed,
//! is in another mount namespace (a service with `PrivateTmp=`), or belongs to another user. A default path contains the realm;
//! the realm of a daemon at a configured socket is in its lock file.

use crate::config::{uid, SYSTEM_FOLDER, USER_PREFIX};
use crate::socket::MAKING_SUFFIX;
use crate::{Config, DaemonLock, SessionSocket};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name of the daemon's program. Only its processes are searched for the owner of a socket.
const PROGRAM: &str = "rgapsd";
/// `__SO_ACCEPTCON`: the socket listens.
const LISTENS: u32 = 0x10000;
/// The environment variable with the user who called `sudo`.
const SUDO_VARIABLE: &str = "SUDO_UID";

/// The role of a daemon for processes with a certain configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonRole {
    /// They use it.
    Used,
    /// It serves the same realm, also for this user, at a socket that comes later in their search.
    Second,
    /// It is this user's and serves the same realm, and no new process reaches it: its socket was
    /// removed or replaced, or lies in another mount namespace.
    CutOff,
    /// It is this user's and serves the same realm, at a socket that only processes with that configuration use.
    OtherSocket,
    /// It serves another user's realm of the same name.
    OtherUser,
}

/// A daemon that can be seen from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VisibleDaemon {
    /// Its role for processes with the configuration.
    pub role: DaemonRole,
    /// The path of its socket, in the daemon's own mount namespace.
    pub socket: PathBuf,
    /// Its process; None if it is not visible from here.
    pub pid: Option<u32>,
    /// Its user; None if unknown.
    pub uid: Option<u32>,
}

impl std::fmt::Display for VisibleDaemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => write!(f, "a process")?,
        }
        if let Some(uid) = self.uid {
            write!(f, " of user {uid}")?;
        }
        write!(f, " at '{}'", self.socket.display())
    }
}

/// The daemons of the configuration's realm that this process can see. The one that clients use comes first.
pub fn visible_daemons(config: &Config) -> Vec<VisibleDaemon> {
    let listed = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let config = &Config {
        socket: config
            .socket
            .clone()
            .filter(|_| !config.has_default_socket()),
        realm: config.realm.clone(),
        ..Config::default()
    };
    let listeners = listeners(&listed, config);
    let mut seen: Vec<VisibleDaemon> = Vec::new();
    for socket in config.socket_candidates() {
        let Ok(peer) = SessionSocket::connect(&socket).and_then(|channel| channel.peer()) else {
            continue;
        };
        let role = match seen.is_empty() {
            true => DaemonRole::Used,
            false => DaemonRole::Second,
        };
        seen.push(VisibleDaemon {
            role,
            socket,
            pid: peer.pid,
            uid: Some(peer.uid),
        });
    }
    let answering = seen.len();
    for listener in listeners {
        let at_path = |daemon: &&VisibleDaemon| daemon.socket == listener.socket;
        let known = seen[..answering].iter().find(at_path);
        match (known, listener.owner) {
            // A daemon answers at this path. Another process: this is another daemon, whose socket that one has replaced.
            (Some(known), Some((pid, _))) if known.pid != Some(pid) => {}
            (Some(_), _) => continue,
            (None, _) => {}
        }
        let by_path = user_of_folder(&listener.socket);
        let owner = listener.owner.map(|(_, owner)| owner).or(by_path);
        seen.push(VisibleDaemon {
            role: match owner {
                _ if listener.is_at_other_path => DaemonRole::OtherSocket,
                Some(owner) if owner == uid() => DaemonRole::CutOff,
                // The system's daemon, which does not serve this user.
                _ => DaemonRole::OtherUser,
            },
            socket: listener.socket,
            pid: listener.owner.map(|(pid, _)| pid),
            uid: owner,
        });
    }
    seen
}

/// The most daemons that a warning names.
const LISTED_MAX: usize = 4;

/// Why processes of this user and realm may not see each other's topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitWarning {
    /// Which daemons there are.
    pub fact: String,
    /// What to do. Each one helps by itself.
    pub cures: Vec<String>,
}

/// The fact in the first line, one cure in each further one.
impl std::fmt::Display for SplitWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.", self.fact)?;
        for (at, cure) in self.cures.iter().enumerate() {
            let or = if at > 0 { "or " } else { "" };
            let end = if at + 1 < self.cures.len() { "," } else { "" };
            write!(f, "\n  {or}{cure}{end}")?;
        }
        Ok(())
    }
}

/// The warning about the daemons that this process can see; None if they do not split the realm.
pub fn split_warning(config: &Config) -> Option<SplitWarning> {
    warning(config, &visible_daemons(config), sudo_caller())
}

impl VisibleDaemon {
    /// The warning that [`split_warning`] gives for these daemons.
    pub fn warning_of(config: &Config, daemons: &[VisibleDaemon]) -> Option<SplitWarning> {
        warning(config, daemons, sudo_caller())
    }
}

fn warning(
    config: &Config,
    daemons: &[VisibleDaemon],
    sudo_caller: Option<u32>,
) -> Option<SplitWarning> {
    let own = uid();
    let apart = |daemon: &&VisibleDaemon| match daemon.role {
        DaemonRole::Used => false,
        DaemonRole::Second | DaemonRole::CutOff => true,
        // A user who configured a socket wants the daemon there.
        DaemonRole::OtherSocket => config.has_default_socket(),
        DaemonRole::OtherUser => daemon.uid.is_some() && daemon.uid == sudo_caller,
    };
    let others: Vec<&VisibleDaemon> = daemons.iter().filter(apart).collect();
    let first = others.first()?;
    let socket = first.socket.display();
    let cures = match (first.role, first.pid) {
        (DaemonRole::OtherUser, _) => vec![
            "run this command without sudo".to_owned(),
            format!("let all users share the daemon at '{SYSTEM_FOLDER}'"),
        ],
        (DaemonRole::CutOff, Some(pid)) => vec![
            format!("stop process {pid} ('kill {pid}') and restart its clients"),
            "give both sides one socket (RGAPS_SOCKET) if it is in a container or a service with PrivateTmp=yes".to_owned(),
        ],
        (DaemonRole::CutOff, None) => vec!["stop it and restart its clients".to_owned()],
        (DaemonRole::OtherSocket, _) => vec![
            format!("set RGAPS_SOCKET={socket} for this program too"),
            "give one of the daemons a realm of its own (RGAPS_REALM)".to_owned(),
            format!("stop the other one ('rgaps down --socket {socket}')"),
        ],
        _ => vec![format!(
            "stop one of them ('rgaps down --socket {socket}') and restart its clients"
        )],
    };
    let used = daemons
        .iter()
        .filter(|daemon| daemon.role == DaemonRole::Used);
    let all: Vec<String> = used
        .chain(others.iter().copied())
        .map(|daemon| daemon.to_string())
        .collect();
    let is_used = all.len() > others.len();
    let realm = &config.realm;
    let listed = match all.split_at_checked(LISTED_MAX) {
        Some((some, more)) if !more.is_empty() => {
            format!("{} and {} more", some.join(", "), more.len())
        }
        _ => all.join(", "),
    };
    let fact = match (is_used, all.len()) {
        (true, _) => format!("The daemons of realm '{realm}' do not share topics: {listed}"),
        (false, 1) => {
            format!("No daemon answers user {own} in realm '{realm}', but there is {listed}")
        }
        (false, _) => {
            format!("No daemon answers user {own} in realm '{realm}', but there are {listed}")
        }
    };
    Some(SplitWarning { fact, cures })
}

fn sudo_caller() -> Option<u32> {
    let caller = std::env::var(SUDO_VARIABLE).ok()?.parse().ok()?;
    (caller != uid()).then_some(caller)
}

struct Listening {
    socket: PathBuf,
    /// Process and user.
    owner: Option<(u32, u32)>,
    /// Whether the path does not contain the realm, so that only its lock file does.
    is_at_other_path: bool,
}

/// The listening sockets of the realm in the kernel's list.
fn listeners(listed: &str, config: &Config) -> Vec<Listening> {
    let sockets = listed.lines().filter_map(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split_ascii_whitespace();
        let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
        let inode: u64 = fields.nth(2)?.parse().ok()?;
        let path = Path::new(fields.next()?.strip_suffix(MAKING_SUFFIX)?);
        (flags & LISTENS != 0).then(|| (path.to_owned(), inode))
    });
    let sockets: Vec<(PathBuf, u64)> = sockets.collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let owners = owners(&sockets);
    let owner_of = |inode| owners.iter().find(|(of, _)| *of == inode);
    let listening = sockets.into_iter().map(|(socket, inode)| Listening {
        owner: owner_of(inode).map(|(_, owner)| *owner),
        is_at_other_path: !match &config.socket {
            Some(configured) => socket == *configured,
            None => is_default_socket(&socket, &config.realm),
        },
        socket,
    });
    listening
        .filter(|listener| !listener.is_at_other_path || serves_realm(listener, &config.realm))
        .collect()
}

/// Whether a listening socket is that of a daemon of this user for the realm, by its lock file.
fn serves_realm(listener: &Listening, realm: &str) -> bool {
    let holder = || DaemonLock::holder(&listener.socket);
    listener.owner.is_some_and(|(pid, owner)| {
        owner == uid() && holder().is_some_and(|(holder, of)| holder == pid && of == realm)
    })
}

/// Whether a path is a default socket of this realm, of any user or of the system.
fn is_default_socket(path: &Path, realm: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let named = name.and_then(|name| name.strip_suffix(".sock")) == Some(realm);
    let folder = path.parent();
    named && (folder == Some(Path::new(SYSTEM_FOLDER)) || user_of_folder(path).is_some())
}

/// The user whose number is in the name of a socket's folder.
fn user_of_folder(socket: &Path) -> Option<u32> {
    let folder = socket.parent()?.file_name()?.to_str()?;
    folder.strip_prefix(USER_PREFIX)?.parse().ok()
}

/// By inode of a socket: its owner's process and user. Finds only daemons whose descriptors this user may read.
fn owners(sockets: &[(PathBuf, u64)]) -> Vec<(u64, (u32, u32))> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let daemons = processes.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let program = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        (program.trim_end() == PROGRAM).then_some((pid, entry))
    });
    let mut owners = Vec::new();
    for (pid, process) in daemons {
        let Ok(user) = process.metadata().map(|there| there.uid()) else {
            continue;
        };
        let files = std::fs::read_dir(process.path().join("fd"));
        for file in files.into_iter().flatten().flatten() {
            let target = std::fs::read_link(file.path()).unwrap_or_default();
            let target = target.to_string_lossy();
            let number = target
                .strip_prefix("socket:[")
                .map(|rest| rest.trim_end_matches(']'));
            let inode: Option<u64> = number.and_then(|number| number.parse().ok());
            owners.extend(
                sockets
                    .iter()
                    .filter(|(_, listed)| Some(*listed) == inode)
                    .map(|(_, listed)| (*listed, (pid, user))),
            );
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(role: DaemonRole, socket: &str, pid: u32, uid: u32) -> VisibleDaemon {
        VisibleDaemon {
            role,
            socket: socket.into(),
            pid: Some(pid),
            uid: Some(uid),
        }
    }

    #[test]
    fn listening_sockets_of_the_realm_are_found_in_the_kernels_list() {
        let listed = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 11 /tmp/rgaps-1000/lab.sock.new
0000000000000000: 00000003 00000000 00000000 0005 03 12 /tmp/rgaps-1000/lab.sock.new
0000000000000000: 00000002 00000000 00010000 0005 01 13 /run/rgaps/lab.sock.new
0000000000000000: 00000002 00000000 00010000 0005 01 14 /tmp/rgaps-1000/other.sock.new
0000000000000000: 00000002 00000000 00010000 0001 01 15 /tmp/x/lab.sock.new
0000000000000000: 00000002 00000000 00010000 0001 01 16
";
        let config = Config {
            realm: "lab".to_owned(),
            ..Config::default()
        };
        let found = listeners(listed, &config);
        let sockets: Vec<&Path> = found.iter().map(|one| one.socket.as_path()).collect();
        let wanted = ["/tmp/rgaps-1000/lab.sock", "/run/rgaps/lab.sock"];
        assert_eq!(sockets, wanted.map(Path::new));
        let configured = Config {
            socket: Some("/tmp/x/lab.sock".into()),
            ..Config::default()
        };
        let found = listeners(listed, &configured);
        assert_eq!(found.len(), 1, "only those at the configured path");
    }

    #[test]
    fn one_daemon_is_no_split_and_two_are_with_the_fact_before_the_cures() {
        let config = Config::default();
        let used = daemon(DaemonRole::Used, "/tmp/rgaps-1/default.sock", 7, uid());
        assert_eq!(warning(&config, std::slice::from_ref(&used), None), None);
        let system = daemon(DaemonRole::Second, "/run/rgaps/default.sock", 8, 990);
        let said = |daemons: &[VisibleDaemon], sudo| -> Vec<String> {
            let text = warning(&config, daemons, sudo).unwrap().to_string();
            text.lines().map(str::to_owned).collect()
        };
        let lines = said(&[used.clone(), system], None);
        let fact = "The daemons of realm 'default' do not share topics: process 7 of user ";
        assert!(
            lines[0].starts_with(fact) && lines[0].contains("process 8"),
            "{lines:?}"
        );
        let cure = "  stop one of them ('rgaps down --socket /run/rgaps/default.sock') and restart its clients";
        assert_eq!(lines[1..], [cure]);
        let other = daemon(DaemonRole::OtherSocket, "/x/r.sock", 9, uid());
        let both = [used.clone(), other];
        let lines = said(&both, None);
        assert_eq!(
            lines[1..],
            [
                "  set RGAPS_SOCKET=/x/r.sock for this program too,",
                "  or give one of the daemons a realm of its own (RGAPS_REALM),",
                "  or stop the other one ('rgaps down --socket /x/r.sock')",
            ]
        );
        // Nobody serves this user: that comes first, and not a conflict.
        let others = vec![both[1].clone(); LISTED_MAX + 2];
        let lines = said(&others, None);
        let fact = "No daemon answers user ";
        assert!(
            lines[0].starts_with(fact) && lines[0].ends_with(" and 2 more."),
            "{lines:?}"
        );
        let configured = Config {
            socket: Some("/y/r.sock".into()),
            ..Config::default()
        };
        assert_eq!(warning(&configured, &both, None), None, "it is meant so");
        let lost = daemon(DaemonRole::CutOff, "/tmp/rgaps-1/default.sock", 9, uid());
        let lines = said(&[used.clone(), lost], None);
        assert!(
            lines[1].starts_with("  stop process 9 ('kill 9')"),
            "{lines:?}"
        );
    }

    #[test]
    fn another_users_daemon_matters_only_to_whom_sudo_made_another_user() {
        let config = Config::default();
        let caller = daemon(DaemonRole::OtherUser, "/tmp/rgaps-77/default.sock", 9, 77);
        let daemons = [caller];
        assert_eq!(warning(&config, &daemons, None), None);
        assert_eq!(warning(&config, &daemons, Some(78)), None);
        let said = warning(&config, &daemons, Some(77)).unwrap();
        assert!(said.fact.starts_with("No daemon answers user"), "{said}");
        assert_eq!(said.cures[0], "run this command without sudo");
    }
}
