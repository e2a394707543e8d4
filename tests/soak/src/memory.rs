//! The kernel's OOM killer, for real: a memory cgroup with a limit, the victim in it, and a process that eats the memory.
//!
//! Of a group that is at its limit the kernel kills the process with the most memory and `oom_score_adj`, where 1000 counts as
//! much as the whole limit. The victim has 1000, the eater 0 and hardly any memory of its own: it fills a file in memory. So the
//! victim is killed as it stands, whatever it is doing.

use anyhow::{bail, Context};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the eater may take until the group is full.
const LIMIT_BYTES: u64 = 64 << 20;
/// How long the kernel may take to kill.
const KILL_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Where memory cgroups are made: version 1 or 2.
pub struct Memory {
    parent: PathBuf,
    limit: &'static str,
    events: &'static str,
    next: u32,
}

impl Memory {
    /// The error says why this machine's memory cgroups cannot be used.
    pub fn find() -> anyhow::Result<Memory> {
        let mut why = "no memory cgroup is mounted at /sys/fs/cgroup".to_owned();
        for (parent, controls, limit, events) in [
            (
                "/sys/fs/cgroup/memory",
                "",
                "memory.limit_in_bytes",
                "memory.oom_control",
            ),
            ("/sys/fs/cgroup", "+memory", "memory.max", "memory.events"),
        ] {
            let memory = Memory {
                parent: parent.into(),
                limit,
                events,
                next: 0,
            };
            if !memory.parent.join("cgroup.procs").exists() {
                continue;
            }
            if !controls.is_empty() {
                // Where it is on already, or must not be changed, making a group shows it.
                let _ = std::fs::write(memory.parent.join("cgroup.subtree_control"), controls);
            }
            match memory.make("try") {
                Ok(group) => {
                    drop(group);
                    return Ok(memory);
                }
                Err(error) => why = format!("{error:#}"),
            }
        }
        bail!(why)
    }

    fn make(&self, name: &str) -> anyhow::Result<Group> {
        let path = self
            .parent
            .join(format!("rgaps-soak-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        let group = Group(path);
        let limit = group.0.join(self.limit);
        std::fs::write(&limit, LIMIT_BYTES.to_string())
            .with_context(|| limit.display().to_string())?;
        Ok(group)
    }

    /// Has the kernel kill a process for want of memory. The caller reaps it, if it is a child.
    pub fn kill(&mut self, pid: u32) -> anyhow::Result<()> {
        self.next += 1;
        let group = self.make(&self.next.to_string())?;
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000")?;
        std::fs::write(group.0.join("cgroup.procs"), pid.to_string())?;
        let _eater = Eater::start(&group)?;
        let begun = Instant::now();
        while !has_ended(pid) {
            if begun.elapsed() > KILL_LIMIT {
                bail!("the kernel did not kill process {pid} in {KILL_LIMIT:?}");
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let events = std::fs::read_to_string(group.0.join(self.events))?;
        if !events
            .lines()
            .any(|line| line.starts_with("oom_kill ") && line != "oom_kill 0")
        {
            bail!("process {pid} has ended, and the kernel did not kill it: {events:?}");
        }
        Ok(())
    }
}

/// A process that fills a file in memory until it is ended, and the file.
struct Eater(Child, PathBuf);

impl Eater {
    fn start(group: &Group) -> anyhow::Result<Eater> {
        let script = "echo $$ > \"$0\" && exec head -c 1G /dev/zero > \"$1\"";
        let name = group.0.file_name().unwrap_or_default();
        let file = Path::new("/dev/shm").join(name);
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .arg(group.0.join("cgroup.procs"))
            .arg(&file)
            .stdin(Stdio::null());
        let child = command.spawn().context("a process that eats memory")?;
        Ok(Eater(child, file))
    }
}

impl Drop for Eater {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        // It may have been killed before it made one.
        let _ = std::fs::remove_file(&self.1);
    }
}

/// A group. It is removed when its processes are gone.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let begun = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && begun.elapsed() < KILL_LIMIT {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Whether a process is gone, or only waits to be reaped.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.map_or(true, |stat| {
        let state = stat.rsplit(") ").next();
        state.is_some_and(|state| state.starts_with(['Z', 'X']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_kills_the_victim_and_not_the_eater() {
        let mut memory = match Memory::find() {
            Ok(memory) => memory,
            Err(why) => return eprintln!("left out: {why:#}"),
        };
        for _ in 0..2 {
            let mut victim = Command::new("sleep").arg("1000").spawn().unwrap();
            memory.kill(victim.id()).unwrap();
            let status = victim.wait().unwrap();
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!(signal, Some(9));
        }
    }
}
