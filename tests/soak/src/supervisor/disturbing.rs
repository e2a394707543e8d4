//! Disturbances: begun in the order of the schedule, and ended when they are due.

use super::{Lasting, Soak, TURN};
use crate::host::signal;
use crate::topics::KINDS;
use crate::trouble::{self, Kind, Trouble};
use rustix::process::Signal;
use std::time::{Duration, Instant};

impl Soak {
    /// Disturbs until `length` after `begun`; if that is all it does, also until the kernel has killed one of each kind.
    pub(super) fn disturb(&mut self, begun: Instant, length: Duration) -> anyhow::Result<()> {
        let end = begun + length;
        while Instant::now() < end || self.owes_a_kill() {
            let trouble = trouble::next(&mut self.random, self.only);
            let at = Instant::now() + trouble.pause;
            while Instant::now() < at {
                self.look_after_all()?;
                std::thread::sleep(TURN);
            }
            self.make(trouble)?;
        }
        Ok(())
    }

    fn owes_a_kill(&self) -> bool {
        let is_all = self.only == Some(Kind::OutOfMemory) && self.memory.is_some();
        is_all && self.oom_kills.contains(&0)
    }

    fn make(&mut self, trouble: Trouble) -> anyhow::Result<()> {
        let Trouble {
            kind, whom, lasts, ..
        } = trouble;
        let host = (whom % self.hosts.len() as u64) as usize;
        match kind {
            Kind::KillPublisher => self.kill_member(whom, true, false),
            Kind::KillSubscriber => self.kill_member(whom, false, false),
            Kind::OutOfMemory => self.run_out_of_memory(whom, host),
            Kind::StopMember => {
                let at = (whom % self.members.len() as u64) as usize;
                let member = &self.members[at];
                let (pid, name) = (member.child.id(), member.spec.name());
                self.stop(Some(pid), &name, lasts);
                Ok(())
            }
            Kind::KillDaemon => {
                self.say(&format!("kills the daemon of host-{host}"));
                self.checker.report.tally.kills += 1;
                self.hosts[host].kill_daemon();
                self.hosts[host].start_daemon()
            }
            Kind::KillLinks => {
                if let Some(pid) = self.hosts[host].links_pid() {
                    self.say(&format!("kills the links of host-{host}"));
                    self.checker.report.tally.kills += 1;
                    signal(pid, Signal::KILL);
                }
                Ok(())
            }
            Kind::StopDaemon => {
                let pid = self.hosts[host].daemon_pid();
                self.stop(pid, &format!("the daemon of host-{host}"), lasts);
                Ok(())
            }
            Kind::StopLinks => {
                let pid = self.hosts[host].links_pid();
                self.stop(pid, &format!("the links of host-{host}"), lasts);
                Ok(())
            }
            Kind::KillObserver => self.kill_observer(whom),
            Kind::Cut => self.cut(whom, lasts),
            Kind::Flood => {
                self.say(&format!("floods host-{host} for {lasts:?}"));
                let flood = self.hosts[host].flood(whom, lasts)?;
                self.floods.push(flood);
                Ok(())
            }
            Kind::FillDisk => {
                if self.hosts[host].disk.fill()? {
                    self.say(&format!("fills the disk of host-{host} for {lasts:?}"));
                    self.lasting
                        .push((Instant::now() + lasts, Lasting::Full(host)));
                }
                Ok(())
            }
        }
    }

    /// The kernel kills a publisher, a subscriber, a daemon and links in turn, for want of memory.
    fn run_out_of_memory(&mut self, whom: u64, host: usize) -> anyhow::Result<()> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        // The next in turn; links may be about to start.
        let fewest = self.oom_kills.iter().min().copied().unwrap_or_default();
        let turn = self.oom_kills.iter().position(|kills| *kills == fewest);
        match turn.unwrap_or_default() {
            0 => self.kill_member(whom, false, true)?,
            3 => self.kill_member(whom, true, true)?,
            1 => {
                let Some(pid) = self.hosts[host].daemon_pid() else {
                    return Ok(());
                };
                memory.kill(pid)?;
                self.say(&format!("lets the daemon of host-{host} run out of memory"));
                self.hosts[host].kill_daemon();
                self.hosts[host].start_daemon()?;
                self.checker.report.tally.kills += 1;
            }
            _ => {
                let Some(pid) = self.hosts[host].links_pid() else {
                    return Ok(());
                };
                memory.kill(pid)?;
                self.say(&format!("lets the links of host-{host} run out of memory"));
                self.checker.report.tally.kills += 1;
            }
        }
        self.oom_kills[turn.unwrap_or_default()] += 1;
        Ok(())
    }

    fn kill_member(&mut self, whom: u64, publishes: bool, by_kernel: bool) -> anyhow::Result<()> {
        let all = self.members.iter().enumerate();
        let such: Vec<usize> = all
            .filter(|(_, member)| member.spec.publishes == publishes)
            .map(|(at, _)| at)
            .collect();
        let at = such[(whom % such.len() as u64) as usize];
        match &mut self.memory {
            Some(memory) if by_kernel => memory.kill(self.members[at].child.id())?,
            _ => self.members[at].child.kill()?,
        }
        self.members[at].child.wait()?;
        let spec = self.members[at].spec.clone();
        let how = if by_kernel {
            "kills for want of memory"
        } else {
            "kills"
        };
        self.say(&format!(
            "{how}: {} on {}",
            spec.name(),
            KINDS[spec.topic].name
        ));
        self.checker.report.tally.kills += 1;
        self.bury(at)?;
        self.start_member(spec.publishes, spec.host, spec.topic)
    }

    fn kill_observer(&mut self, whom: u64) -> anyhow::Result<()> {
        let at = (whom % self.observers.len() as u64) as usize;
        let observer = &mut self.observers[at];
        observer.child.kill()?;
        observer.child.wait()?;
        self.checker.report.tally.kills += 1;
        self.say(&format!("kills {}", self.observers[at].name()));
        self.restart_observer(at)
    }

    pub(super) fn restart_observer(&mut self, at: usize) -> anyhow::Result<()> {
        let (host, which) = (self.observers[at].host, self.observers[at].which());
        self.observers[at] = self.start_observer(host, which)?;
        Ok(())
    }

    fn stop(&mut self, pid: Option<u32>, name: &str, lasts: Duration) {
        let Some(pid) = pid else { return };
        self.say(&format!("stops {name} for {lasts:?}"));
        signal(pid, Signal::STOP);
        self.lasting
            .push((Instant::now() + lasts, Lasting::Stopped(pid)));
    }

    fn cut(&mut self, whom: u64, lasts: Duration) -> anyhow::Result<()> {
        let Some(network) = self.network.as_ref().filter(|network| network.cables() > 0) else {
            return Ok(());
        };
        let cable = (whom % network.cables() as u64) as usize;
        network.pull(cable).map_err(anyhow::Error::msg)?;
        self.checker.report.tally.cuts += 1;
        self.say(&format!(
            "pulls the cable {} for {lasts:?}",
            network.cable_name(cable)
        ));
        self.lasting
            .push((Instant::now() + lasts, Lasting::Cut(cable)));
        Ok(())
    }

    /// Ends disturbances that are due by then.
    pub(super) fn ease(&mut self, by: Option<Instant>) -> anyhow::Result<()> {
        let lasting = std::mem::take(&mut self.lasting);
        for (at, what) in lasting {
            if by.is_some_and(|by| at > by) {
                self.lasting.push((at, what));
                continue;
            }
            match what {
                Lasting::Stopped(pid) => signal(pid, Signal::CONT),
                Lasting::Full(host) => self.hosts[host].disk.empty(),
                Lasting::Cut(cable) => {
                    if let Some(network) = &self.network {
                        network.plug_in(cable).map_err(anyhow::Error::msg)?;
                    }
                }
            }
        }
        Ok(())
    }
}
