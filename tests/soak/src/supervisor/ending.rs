//! The end: all members finish and leave, and leave nothing behind.

use super::{Soak, STUCK_AFTER, TURN};
use crate::board::{finish_file, leave_file};
use crate::host;
use std::fs::File;
use std::time::Instant;

impl Soak {
    /// Disturbances are over: all come to the end, leave, and leave nothing behind.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        self.ease(None)?;
        self.say("disturbs nobody any more");
        File::create(finish_file(self.folder.path()))?;
        let begun = Instant::now();
        loop {
            self.look_after_all()?;
            self.look_at_publishers();
            let behind = self.checker.behind();
            if behind.is_empty() {
                break;
            }
            if begun.elapsed() > STUCK_AFTER {
                behind
                    .into_iter()
                    .for_each(|what| self.checker.report.stuck("the end", what));
                break;
            }
            std::thread::sleep(TURN);
        }
        self.say("has all come to the end");
        self.leave()?;
        self.checker.finish();
        self.check_hosts()
    }

    fn leave(&mut self) -> anyhow::Result<()> {
        File::create(leave_file(self.folder.path()))?;
        self.end_observers();
        let begun = Instant::now();
        for at in (0..self.members.len()).rev() {
            while self.members[at].child.try_wait()?.is_none() {
                if begun.elapsed() > STUCK_AFTER {
                    let name = self.members[at].spec.name();
                    self.checker
                        .report
                        .stuck("leaving", format!("{name} does not leave"));
                    self.members[at].child.kill()?;
                }
                std::thread::sleep(TURN);
            }
            let status = self.members[at].child.wait()?;
            if !status.success() {
                let name = self.members[at].spec.name();
                self.checker.report.stuck(
                    "leaving",
                    format!("{name} left with {status}; see the file log"),
                );
            }
        }
        self.read_journals()?;
        self.look_at_publishers();
        Ok(())
    }

    /// Pools, descriptors and memory, now that all members are gone.
    fn check_hosts(&mut self) -> anyhow::Result<()> {
        let peers = self.hosts.len() - 1;
        let report = &mut self.checker.report;
        for host in &self.hosts {
            if let Err(error) = host.wait_until_well(peers) {
                report.stuck(&host.name, format!("{error:#}"));
                continue;
            }
            let leased = || host.leased_bytes().unwrap_or(u64::MAX);
            if host::until("nothing to be leased", || leased() == 0).is_err() {
                report.leaked_bytes(
                    &host.name,
                    leased(),
                    format!(
                        "{}: {} bytes are leased, and nobody is there",
                        host.name,
                        leased()
                    ),
                );
            }
            if host::until("descriptors to be closed", || {
                host.more_descriptors() == [0, 0]
            })
            .is_err()
            {
                let [daemon, links] = host.more_descriptors();
                let what = format!("{}: the daemon has {daemon} descriptors more than at its start, the links {links}:\n{}", host.name, host.open_files());
                report.leaked_fds(&host.name, daemon + links, what);
            }
            eprintln!(
                "soak: {}: the daemon has {} KiB of memory",
                host.name,
                host.rss_bytes()? >> 10
            );
        }
        Ok(())
    }
}
