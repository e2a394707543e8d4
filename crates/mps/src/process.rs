//! Processes as `/proc` shows them.

use rgaps_session::{MPS_CONTROL_PROGRAM, MPS_DEFAULT_PIPE_DIRECTORY, MPS_PIPE_VARIABLE};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// NVIDIA's server; its control daemon starts one per user.
const SERVER_PROGRAM: &str = "nvidia-cuda-mps-server";

/// When a living process was started, in clock ticks since the machine was started. Number and start time together name a process,
/// since the kernel uses numbers again.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    if pid == 0 {
        return None;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may contain any characters, also brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    // Fields 3 (state) to 22 (start).
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X" | "x")).then_some(start)
}

/// A process's numbers in this process's PID namespace and in those below it.
pub(crate) fn numbers(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers = line.unwrap_or_default().split_ascii_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Whether a process is a control daemon of MPS in this PID namespace. If so, it numbers clients as this daemon does.
pub(crate) fn is_control_here(pid: u32) -> bool {
    runs(pid, MPS_CONTROL_PROGRAM) && start_time(pid).is_some() && numbers(pid).len() == 1
}

/// Whether a process runs this program, or a script of that name.
fn runs(pid: u32, program: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).take(2);
    words.any(|word| {
        let name = Path::new(OsStr::from_bytes(word)).file_name();
        name.is_some_and(|name| name == program)
    })
}

/// The pipe directories of the control daemons that root or this user runs, from their environment. Ignores processes of other
/// users, who could name any directory, and set-uid programs, whose environment another user can choose.
pub(crate) fn directories_of_controls() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| runs(*pid, MPS_CONTROL_PROGRAM) && start_time(*pid).is_some())
        .filter(|pid| is_trusted(*pid))
        .filter_map(pipe_directory)
        .collect()
}

/// Whether all user ids of a process are root's or this user's, and it runs with no more rights than its parent.
fn is_trusted(pid: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let mut uids = line.unwrap_or_default().split_ascii_whitespace();
    let trusted = |uid: &str| uid.parse().is_ok_and(|uid: u32| uid == 0 || uid == own);
    line.is_some() && uids.all(trusted) && !is_set_uid(pid)
}

/// Whether a process runs with more rights than its parent; also true if that cannot be seen.
fn is_set_uid(pid: u32) -> bool {
    let vector = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let mut entries = vector.chunks_exact(2 * size_of::<libc::c_ulong>());
    let word = |bytes: &[u8]| libc::c_ulong::from_ne_bytes(bytes.try_into().unwrap_or_default());
    let secure = entries.find_map(|entry| {
        let (key, value) = entry.split_at(size_of::<libc::c_ulong>());
        (word(key) == libc::AT_SECURE).then(|| word(value))
    });
    secure != Some(0)
}

/// The visible servers of MPS that belong to a pipe directory, from their environment. `perhaps`: also servers whose environment
/// cannot be read, such as those of other users.
pub(crate) fn servers_of(directory: &Path, perhaps: bool) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| runs(*pid, SERVER_PROGRAM) && start_time(*pid).is_some())
        .filter(|pid| belongs_to(*pid, directory).unwrap_or(perhaps))
        .collect()
}

/// Whether a process uses a pipe directory. None: its environment cannot be read.
fn belongs_to(pid: u32, directory: &Path) -> Option<bool> {
    pipe_directory(pid).map(|named| named == directory)
}

/// The directory through which a process finds its MPS, if its environment can be read.
fn pipe_directory(pid: u32) -> Option<PathBuf> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{MPS_PIPE_VARIABLE}=");
    let named = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(prefix.as_bytes()));
    let named = named.unwrap_or(MPS_DEFAULT_PIPE_DIRECTORY.as_bytes());
    Some(PathBuf::from(OsStr::from_bytes(named)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_and_one_that_ended() {
        let own = std::process::id();
        let start = start_time(own);
        assert!(start.is_some() && start == start_time(own));
        assert_eq!(numbers(own).first(), Some(&own));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id();
        let living = start_time(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(living.is_some() && start_time(pid) != living);
        assert_eq!(start_time(0), None);
    }

    #[test]
    fn a_program_is_known_by_its_name_alone() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        // A process that has just been started has no name yet.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while !runs(child.id(), "sleep") && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let (is, is_not) = (runs(child.id(), "sleep"), runs(child.id(), "lee"));
        let control = is_control_here(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is && !is_not && !control);
    }
}
