//! A container made of namespaces: users, processes, IPC, mounts and network of its own, an own
//! `/proc`, `/dev/shm` and root; of the host it sees the libraries, one program and the folder of
//! the daemon's socket.
#![forbid(unsafe_code)]
#![allow(missing_docs)] // not an interface: the names say it to those who write tests

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;

/// Longest wait for a line of output.
const PATIENCE: Duration = Duration::from_secs(120);
/// The socket's folder as the container sees it.
const FOLDER: &str = "/run/rgaps";

/// Namespaces that the container does not share with the host.
const UNSHARE: [&str; 8] = [
    "--user",
    "--map-root-user",
    "--pid",
    "--ipc",
    "--mount",
    "--net",
    "--fork",
    "--kill-child",
];

/// Makes the container's root in `$1`, with the program `$2` and the folder `$3`, and runs the
/// program there with the rest of the arguments.
const SCRIPT: &str = r#"
set -eu
root=$1 program=$2 folder=$3; shift 3
mount -t tmpfs root "$root"
cd "$root"
mkdir -p usr proc dev/shm tmp app run/rgaps
mount --rbind /usr usr
for dir in bin lib lib64; do
  if [ -L "/$dir" ]; then ln -s "$(readlink "/$dir")" "$dir"
  elif [ -d "/$dir" ]; then mkdir "$dir"; mount --rbind "/$dir" "$dir"; fi
done
mount -t proc proc proc
mount -t tmpfs shm dev/shm
touch dev/null app/program
mount --bind /dev/null dev/null
mount --bind "$program" app/program
mount --bind "$folder" run/rgaps
exec chroot . /app/program "$@"
"#;

/// Why containers cannot be made here, if they cannot.
pub fn why_not() -> Option<String> {
    let tried = Command::new("unshare")
        .args(UNSHARE)
        .args(["--mount-proc", "true"])
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// A program in a container. Dropping it kills everything in there.
pub struct Container {
    child: Child,
    lines: Receiver<String>,
    _root: tempfile::TempDir,
}

impl Container {
    /// Runs `program` in a container that sees the folder of `socket`; its first argument is the
    /// socket's path in there.
    pub fn start(program: &Path, socket: &Path, arguments: &[&str]) -> Container {
        let root = tempfile::tempdir().expect("a folder");
        let folder = socket.parent().expect("a folder");
        let name = socket.file_name().expect("a name").to_string_lossy();
        let mut child = Command::new("unshare")
            .args(UNSHARE)
            .args(["sh", "-c", SCRIPT, "container"])
            .arg(root.path())
            .args([program, folder])
            .arg(format!("{FOLDER}/{name}"))
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let output = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Container {
            child,
            lines,
            _root: root,
        }
    }

    /// The next line of its output.
    pub fn line(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.expect("the program in the container says nothing more")
    }

    /// Waits until its output has a number of at least this much behind `word`.
    pub fn reaches(&self, word: &str, least: u64) -> u64 {
        loop {
            let line = self.line();
            let number = line
                .strip_prefix(word)
                .and_then(|rest| rest.trim().parse().ok());
            if let Some(number) = number.filter(|number| *number >= least) {
                return number;
            }
        }
    }

    /// The last number behind `word` that it has said so far.
    pub fn latest(&self, word: &str) -> u64 {
        let lines = self.lines.try_iter();
        let numbers = lines.filter_map(|line| line.strip_prefix(word)?.trim().parse().ok());
        numbers.last().unwrap_or(0)
    }

    /// SIGKILL to everything in there.
    pub fn kill(&mut self) {
        // Its child is the container's first process, and dies with it (`--kill-child`).
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
    }
}
