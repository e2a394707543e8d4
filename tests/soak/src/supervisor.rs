//! The supervisor: starts hosts and members, disturbs them, and asks the checker at the end.

mod disturbing;
mod ending;

use crate::board::{self, Spec};
use crate::checker::{Checker, Publisher, Subscriber};
use crate::host::{self, Host};
use crate::journal::Reader;
use crate::memory::Memory;
use crate::network::Network;
use crate::programs::{InC, Observer, Python};
use crate::topics::KINDS;
use crate::trouble;
use crate::Arguments;
use anyhow::Context;
use rgaps_testkit::Random;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Members of a topic on each host. A publisher of one host takes a slot of sixteen on each other one.
const PUBLISHERS: usize = 1;
const SUBSCRIBERS: usize = 2;
/// Of subscribers, those that are in Python.
const PYTHON_PERCENT: u64 = 20;
/// Of members, those that are in C.
const C_PERCENT: u64 = 20;
/// How often the supervisor looks after what it started.
const TURN: Duration = Duration::from_millis(20);
/// Who has not come to the end so long after disturbances stopped is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(180);
/// The exit code of a program that panicked.
const PANICKED: i32 = 101;
/// Lines of a log that a failure shows.
const LOG_LINES: usize = 15;

/// A publisher's or subscriber's process.
struct Member {
    spec: Spec,
    child: Child,
    journal: Option<Reader>,
}

/// What goes on again by itself.
enum Lasting {
    Stopped(u32),
    Cut(usize),
    Full(usize),
}

struct Soak {
    folder: tempfile::TempDir,
    log: File,
    network: Option<Network>,
    hosts: Vec<Host>,
    members: Vec<Member>,
    observers: Vec<Observer>,
    python: Option<Python>,
    in_c: Option<InC>,
    memory: Option<Memory>,
    /// Kills for want of memory so far: of subscribers, daemons, links and publishers.
    oom_kills: [u64; 4],
    only: Option<trouble::Kind>,
    floods: Vec<Child>,
    checker: Checker,
    lasting: Vec<(Instant, Lasting)>,
    random: Random,
    next_id: u32,
}

/// Runs the soak. False: something is wrong.
pub fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let Arguments { minutes, seed, .. } = *arguments;
    let begun = Instant::now();
    let mut soak = Soak::start(seed, arguments.hosts as usize)?;
    soak.only = arguments.only;
    let whole = soak.disturb(begun, Duration::from_secs_f64(minutes * 60.0));
    let whole = whole.and_then(|()| soak.end());
    if let Err(error) = whole {
        soak.checker.report.stuck("soak", format!("{error:#}"));
    }
    let [subscribers, daemons, links, publishers] = soak.oom_kills;
    eprintln!(
        "soak: the kernel killed {publishers} publishers, {subscribers} subscribers, {daemons} daemons, {links} links for want of memory"
    );
    let left_out = soak.left_out();
    let report = &mut soak.checker.report;
    report.tally.minutes = (begun.elapsed().as_secs_f64() / 6.0).round() / 10.0;
    report.tally.left_out = left_out;
    let tally = report.tally;
    for failure in &report.failures {
        eprintln!("soak: {failure}");
    }
    for ((class, place), count) in &report.told {
        eprintln!("soak: {class} on {place}: {count} times");
    }
    if !tally.is_clean() {
        soak.show_logs();
    }
    soak.stop_all();
    if !tally.is_clean() || arguments.keep {
        let folder = std::mem::replace(&mut soak.folder, tempfile::tempdir()?).keep();
        eprintln!("soak: journals and logs are in {}", folder.display());
    }
    if !tally.is_clean() {
        eprintln!("soak: FAILED; repeat it with MINUTES={minutes} SEED={seed}");
    }
    println!("{}", serde_json::to_string(&tally)?);
    Ok(tally.is_clean())
}

impl Soak {
    fn start(seed: u64, hosts: usize) -> anyhow::Result<Soak> {
        let folder = tempfile::Builder::new().prefix("rgaps-soak-").tempdir()?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.path().join("log"))?;
        let network = match Network::lay(hosts) {
            Ok(network) => {
                eprintln!(
                    "soak: {hosts} hosts in network namespaces, {} cables",
                    network.cables()
                );
                Some(network)
            }
            Err(why) => {
                eprintln!("soak: {hosts} hosts at loopback ports, no cables: {why}");
                None
            }
        };
        eprintln!(
            "soak: seed {seed}; journals and logs in {}",
            folder.path().display()
        );
        let python = Python::find(folder.path())
            .inspect_err(|why| eprintln!("soak: no members in Python: {why:#}"))
            .ok();
        let in_c = InC::find()
            .inspect_err(|why| eprintln!("soak: no members in C: {why:#}"))
            .ok();
        let memory = Memory::find()
            .inspect_err(|why| {
                eprintln!("soak: the kernel kills nobody for want of memory: {why:#}")
            })
            .ok();
        let mut soak = Soak {
            folder,
            log,
            network,
            hosts: Vec::new(),
            members: Vec::new(),
            observers: Vec::new(),
            python,
            in_c,
            memory,
            oom_kills: [0; 4],
            only: None,
            floods: Vec::new(),
            checker: Checker::default(),
            lasting: Vec::new(),
            random: Random::new(seed),
            next_id: 0,
        };
        soak.start_hosts(hosts)?;
        soak.start_members()?;
        Ok(soak)
    }

    fn start_hosts(&mut self, count: usize) -> anyhow::Result<()> {
        let addresses = host::addresses(count, self.network.is_some())?;
        for at in 0..count {
            let namespace = self.network.as_ref().map(|network| network.namespace(at));
            let host = Host::start(self.folder.path(), at, &addresses, namespace)?;
            self.hosts.push(host);
        }
        for host in &mut self.hosts {
            host.wait_until_well(count - 1)?;
            host.note_descriptors();
        }
        Ok(())
    }

    fn start_members(&mut self) -> anyhow::Result<()> {
        for host in 0..self.hosts.len() {
            for topic in 0..KINDS.len() {
                for _ in 0..PUBLISHERS {
                    self.start_member(true, host, topic)?;
                }
                for _ in 0..SUBSCRIBERS {
                    self.start_member(false, host, topic)?;
                }
            }
            for which in 0..Observer::count() {
                self.observers.push(self.start_observer(host, which)?);
            }
        }
        Ok(())
    }

    fn start_member(&mut self, publishes: bool, host: usize, topic: usize) -> anyhow::Result<()> {
        self.next_id += 1;
        let spec = Spec {
            id: self.next_id,
            publishes,
            host,
            topic,
            seed: self.random.next_u64(),
            config: self.hosts[host].config_path(),
            folder: self.folder.path().to_owned(),
        };
        let child = self
            .member_command(&spec)?
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(self.log.try_clone()?)
            .stderr(self.log.try_clone()?)
            .spawn()
            .context("a member cannot be started")?;
        let name = spec.name();
        let journal = match publishes {
            true => {
                let publisher = Publisher {
                    name,
                    host,
                    topic,
                    lives: true,
                    published: board::Published::default(),
                };
                self.checker.publishers.insert(spec.id, publisher);
                None
            }
            false => {
                let subscriber = Subscriber::new(name, host, topic, KINDS[topic].wish(spec.seed));
                self.checker.subscribers.insert(spec.id, subscriber);
                Some(Reader::new(self.folder.path(), spec.id))
            }
        };
        self.members.push(Member {
            spec,
            child,
            journal,
        });
        Ok(())
    }

    /// The program of a member: this one, or one in Python or C.
    fn member_command(&self, spec: &Spec) -> anyhow::Result<Command> {
        let in_python = !spec.publishes && Random::new(spec.seed ^ 2).percent(PYTHON_PERCENT);
        let in_c = Random::new(spec.seed ^ 3).percent(C_PERCENT);
        match (&self.python, &self.in_c) {
            (Some(python), _) if in_python => python.subscriber(spec),
            (_, Some(program)) if in_c => program.member(spec),
            _ => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["member", &serde_json::to_string(spec)?]);
                Ok(command)
            }
        }
    }

    /// Kinds of members that this machine cannot run.
    fn left_out(&self) -> Option<&'static str> {
        match (&self.python, &self.in_c) {
            (Some(_), Some(_)) => None,
            (None, Some(_)) => Some("python"),
            (Some(_), None) => Some("c"),
            (None, None) => Some("python, c"),
        }
    }

    fn start_observer(&self, host: usize, which: usize) -> anyhow::Result<Observer> {
        Observer::start(&self.hosts, host, which, self.log.try_clone()?.into())
    }

    /// Commands may end while there is no daemon, but with an error of theirs.
    fn look_after_observers(&mut self) -> anyhow::Result<()> {
        for at in 0..self.observers.len() {
            let Some(status) = self.observers[at].child.try_wait()? else {
                continue;
            };
            let what = format!("{} ended by itself: {status}", self.observers[at].name());
            self.say(&what);
            if !matches!(status.code(), Some(1..PANICKED)) {
                self.checker.report.stuck("observers", what);
            }
            self.restart_observer(at)?;
        }
        Ok(())
    }

    /// Takes down what a member that is dead has left.
    fn bury(&mut self, at: usize) -> anyhow::Result<()> {
        self.look_at_publishers();
        let mut member = self.members.swap_remove(at);
        let id = member.spec.id;
        if let Some(journal) = &mut member.journal {
            for record in journal.read()? {
                self.checker.record(id, record);
            }
        }
        if let Some(publisher) = self.checker.publishers.get_mut(&id) {
            publisher.lives = false;
        }
        if let Some(subscriber) = self.checker.subscribers.get_mut(&id) {
            subscriber.lives = false;
        }
        Ok(())
    }

    /// Ends what is due, reads journals, and sees who ended though nobody killed it.
    fn look_after_all(&mut self) -> anyhow::Result<()> {
        self.ease(Some(Instant::now()))?;
        self.floods
            .retain_mut(|flood| !matches!(flood.try_wait(), Ok(Some(_))));
        for at in 0..self.hosts.len() {
            self.hosts[at].disk.turn_log()?;
            if let Some(status) = self.hosts[at].daemon_ended()? {
                let what = format!("the daemon of host-{at} ended by itself: {status}");
                self.checker.report.stuck(&format!("host-{at}"), what);
                self.hosts[at].start_daemon()?;
            }
        }
        for at in (0..self.members.len()).rev() {
            if let Some(status) = self.members[at].child.try_wait()? {
                let spec = self.members[at].spec.clone();
                let what = format!(
                    "{} ended by itself: {status}; see the file log",
                    spec.name()
                );
                self.checker.report.stuck(KINDS[spec.topic].name, what);
                self.bury(at)?;
                self.start_member(spec.publishes, spec.host, spec.topic)?;
            }
        }
        self.look_after_observers()?;
        self.read_journals()
    }

    fn read_journals(&mut self) -> anyhow::Result<()> {
        for member in &mut self.members {
            if let Some(journal) = &mut member.journal {
                for record in journal.read()? {
                    self.checker.record(member.spec.id, record);
                }
            }
        }
        Ok(())
    }

    fn look_at_publishers(&mut self) {
        for host in 0..self.hosts.len() {
            for topic in 0..KINDS.len() {
                for (id, published) in board::publishers(self.folder.path(), topic, host) {
                    if let Some(publisher) = self.checker.publishers.get_mut(&id) {
                        publisher.published = published;
                    }
                }
            }
        }
    }

    fn say(&self, what: &str) {
        use std::io::Write;
        let elapsed = time_of_day();
        // Nothing depends on the log.
        let _ = writeln!(&self.log, "{elapsed} soak {what}");
    }

    fn show_logs(&self) {
        for host in &self.hosts {
            eprintln!(
                "soak: the end of the log of {}:\n{}",
                host.name,
                host.last_of_log(LOG_LINES)
            );
        }
        eprintln!(
            "soak: the end of the log of members:\n{}",
            last_lines(&self.folder.path().join("log"))
        );
    }

    fn end_observers(&mut self) {
        for mut observer in self.observers.drain(..) {
            let _ = observer.child.kill();
            let _ = observer.child.wait();
        }
    }

    fn stop_all(&mut self) {
        self.end_observers();
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
        for flood in &mut self.floods {
            let _ = flood.kill();
            let _ = flood.wait();
        }
        self.hosts.iter_mut().for_each(Host::kill_daemon);
        // Unmounts their disks, so that their logs are in the folder.
        self.hosts.clear();
    }
}

fn last_lines(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// The time of day, as the daemons' logs have it.
fn time_of_day() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.unwrap_or_default();
    let of_day = seconds.as_secs() % 86_400;
    let (hours, minutes, rest) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!(
        "{hours:02}:{minutes:02}:{rest:02}.{:03}",
        seconds.subsec_millis()
    )
}
