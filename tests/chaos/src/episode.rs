//! An episode: a publisher and a subscriber of each topic live through many deaths of others and
//! of the daemon; in the end everyone pauses, and the books must balance.

use crate::actor::{until_joined, Spec};
use crate::board::{ACTORS, LEAVE, LEFT, PAUSE, PAUSED, RUNNING};
use crate::checker;
use crate::daemon::{config, POOL_BYTES};
use crate::domain::on_gpu;
use crate::raw::{Raw, TOPIC};
use crate::steps::{Fate, Role};
use crate::supervisor::Supervisor;
use crate::topics::KINDS;
use rgaps::Node;
use rgaps_layout::GRANULE_BYTES;
use std::collections::HashMap;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Who makes no progress for so long is stuck, however busy the machine is.
const STUCK: Duration = Duration::from_secs(120);
/// How soon the victims of random times die, at most.
const LIFE_MAX_MS: u64 = 150;
/// How long it is waited for a process to reach the step of its fate.
const FATE_PATIENCE: Duration = Duration::from_millis(1000);
/// Deaths of others between two of the daemon.
const DAEMON_EVERY: u64 = 8;
/// Messages that have to pass without a daemon.
const WINDOW_MESSAGES: u64 = 3;
const TURN: Duration = Duration::from_millis(1);

/// How a victim dies.
enum End {
    /// At this time from when it runs.
    After(Duration),
    /// At a step.
    At(Fate),
}

struct Member {
    spec: Spec,
    child: Child,
    end: End,
    started: Instant,
    /// Since when it runs.
    running: Option<Instant>,
}

/// A process that has to make progress.
#[derive(Clone, Copy)]
struct Watch {
    progress: u64,
    since: Instant,
}

struct Episode<'a> {
    supervisor: &'a mut Supervisor,
    next_index: u32,
    survivors: Vec<(Member, Watch)>,
    victims: Vec<Member>,
    /// Who was what, by index.
    all: Vec<Spec>,
    /// The dead that the daemon has not been seen to have cleaned up after: topic and process.
    unreaped: Vec<(usize, u32)>,
    last_kills: u64,
}

/// Runs an episode of `kills` kills, those of its end included.
pub fn run(supervisor: &mut Supervisor, kills: u64) -> anyhow::Result<()> {
    supervisor.board.clear_actors();
    let until = supervisor.tally.kills + kills;
    let last_kills = supervisor.tally.kills;
    let mut episode = Episode {
        supervisor,
        next_index: 0,
        survivors: Vec::new(),
        victims: Vec::new(),
        all: Vec::new(),
        unreaped: Vec::new(),
        last_kills,
    };
    let outcome = episode.play(until);
    let Episode {
        supervisor,
        survivors,
        victims,
        ..
    } = episode;
    for mut member in victims
        .into_iter()
        .chain(survivors.into_iter().map(|(member, _)| member))
    {
        let _ = member.child.kill();
        let _ = member.child.wait();
    }
    supervisor.tally.add_actors(supervisor.board);
    for actor in &supervisor.board.actor {
        supervisor.figures.messages_published += actor.published.load(Ordering::Relaxed);
        supervisor.figures.messages_received += actor
            .progress
            .load(Ordering::Relaxed)
            .saturating_sub(actor.published.load(Ordering::Relaxed));
    }
    outcome
}

impl Episode<'_> {
    fn play(&mut self, until: u64) -> anyhow::Result<()> {
        self.start_survivors()?;
        for topic in 0..KINDS.len() {
            for role in [Role::Publisher, Role::Subscriber] {
                let victim = self.start(role, topic, false)?;
                self.victims.push(victim);
            }
        }
        // The victims that are left die together in the end.
        let at_end = self.victims.len() as u64;
        let mut daemon_at = self.supervisor.tally.kills + 1 + self.below(DAEMON_EVERY * 2);
        while self.supervisor.tally.kills + at_end < until {
            if self.supervisor.daemon_died()? {
                self.supervisor.count_daemon_kill();
                self.supervisor.figures.step_kills += 1;
                self.without_daemon()?;
            } else if self.supervisor.tally.kills >= daemon_at {
                self.kill_daemon()?;
                daemon_at = self.supervisor.tally.kills + 1 + self.below(DAEMON_EVERY * 2);
            }
            self.turn()?;
            std::thread::sleep(TURN);
        }
        self.finish()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.supervisor.random.below(end)
    }

    fn start_survivors(&mut self) -> anyhow::Result<()> {
        for role in [Role::Subscriber, Role::Publisher] {
            for topic in 0..KINDS.len() {
                let member = self.start(role, topic, true)?;
                let watch = Watch {
                    progress: 0,
                    since: Instant::now(),
                };
                self.survivors.push((member, watch));
            }
            self.wait("survivors do not start", STUCK, |episode| {
                let mut survivors = episode.survivors.iter();
                survivors.all(|(member, _)| episode.phase(member) >= RUNNING)
            })?;
        }
        Ok(())
    }

    fn phase(&self, member: &Member) -> u32 {
        let actor = &self.supervisor.board.actor[member.spec.index as usize];
        actor.phase.load(Ordering::Acquire)
    }

    fn progress(&self, spec: &Spec) -> u64 {
        let actor = &self.supervisor.board.actor[spec.index as usize];
        actor.progress.load(Ordering::Acquire)
    }

    fn start(&mut self, role: Role, topic: usize, survivor: bool) -> anyhow::Result<Member> {
        let index = self.next_index;
        anyhow::ensure!(
            (index as usize) < ACTORS,
            "too many processes in an episode"
        );
        self.next_index += 1;
        let end = if !survivor && self.supervisor.random.percent(55) {
            End::At(self.supervisor.next_fate(role))
        } else {
            End::After(Duration::from_millis(self.below(LIFE_MAX_MS)))
        };
        let spec = Spec {
            role,
            index,
            topic,
            seed: self.supervisor.random.next_u64(),
            survivor,
            socket: self.supervisor.socket.clone(),
            board: self.supervisor.board_number(),
            fate: match &end {
                End::At(fate) => Some(fate.clone()),
                End::After(_) => None,
            },
        };
        self.all.push(spec.clone());
        Ok(Member {
            child: self.supervisor.start_actor(&spec)?,
            spec,
            end,
            started: Instant::now(),
            running: None,
        })
    }

    /// Kills who is due, replaces who is dead, looks after who has to live.
    fn turn(&mut self) -> anyhow::Result<()> {
        for at in 0..self.victims.len() {
            if self.is_dead(at)? {
                self.replace(at)?;
            }
        }
        self.watch_survivors()
    }

    /// Whether a victim is dead, or is now, for its time has come.
    fn is_dead(&mut self, at: usize) -> anyhow::Result<bool> {
        let runs = self.phase(&self.victims[at]) >= RUNNING;
        let victim = &mut self.victims[at];
        if runs && victim.running.is_none() {
            victim.running = Some(Instant::now());
        }
        if let Some(status) = victim.child.try_wait()? {
            use std::os::unix::process::ExitStatusExt;
            if status.signal() != Some(libc::SIGKILL) {
                self.supervisor.tally.stuck += 1;
                anyhow::bail!("{} ended by itself: {status}", victim.spec.name());
            }
            self.supervisor.figures.step_kills += 1;
            return Ok(true);
        }
        let Some(running) = victim.running else {
            if victim.started.elapsed() > STUCK {
                self.supervisor.tally.stuck += 1;
                anyhow::bail!("{} does not come to run", victim.spec.name());
            }
            return Ok(false);
        };
        let due = match &victim.end {
            End::After(life) => running.elapsed() >= *life,
            End::At(_) => running.elapsed() >= FATE_PATIENCE,
        };
        if due {
            if let End::At(fate) = &victim.end {
                let (role, fate) = (victim.spec.role, fate.clone());
                self.supervisor.retry_fate(role, &fate);
            }
            self.kill(at)?;
            // Now and then the topic's other victim dies at the same time.
            let other = at ^ 1;
            if self.below(4) == 0 && self.victims[other].running.is_some() {
                self.kill(other)?;
            }
        }
        Ok(due)
    }

    /// Kills a victim; that it is dead is seen later.
    fn kill(&mut self, at: usize) -> anyhow::Result<()> {
        self.victims[at].child.kill()?;
        Ok(())
    }

    fn replace(&mut self, at: usize) -> anyhow::Result<()> {
        let spec = &self.victims[at].spec;
        let (role, topic) = (spec.role, spec.topic);
        self.victims[at].child.wait()?;
        self.unreaped.push((topic, self.victims[at].child.id()));
        self.supervisor.tally.kills += 1;
        self.victims[at] = self.start(role, topic, false)?;
        Ok(())
    }

    fn watch_survivors(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        for at in 0..self.survivors.len() {
            let progress = self.progress(&self.survivors[at].0.spec);
            let (member, watch) = &mut self.survivors[at];
            if progress != watch.progress {
                let stall = now.duration_since(watch.since).as_millis() as u64;
                let longest = &mut self.supervisor.figures.longest_stall_ms;
                *longest = stall.max(*longest);
                *watch = Watch {
                    progress,
                    since: now,
                };
            } else if now.duration_since(watch.since) > STUCK {
                self.supervisor.tally.stuck += 1;
                anyhow::bail!("{} is stuck", member.spec.name());
            }
            if let Some(status) = member.child.try_wait()? {
                self.supervisor.tally.stuck += 1;
                anyhow::bail!("{} ended: {status}", member.spec.name());
            }
        }
        Ok(())
    }

    /// Kills the daemon, sometimes with others, and lets another come.
    fn kill_daemon(&mut self) -> anyhow::Result<()> {
        let alone = self.below(3) > 0;
        self.quieten()?;
        if !alone {
            for at in 0..self.victims.len() {
                if self.below(3) == 0 {
                    self.kill(at)?;
                }
            }
        }
        self.supervisor.kill_daemon()?;
        self.supervisor.count_daemon_kill();
        self.without_daemon()
    }

    /// Waits until the daemon has cleaned up after the dead, so that nobody needs it.
    fn quieten(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !self.supervisor.daemon_died()? {
            // A daemon that dies meanwhile answers nothing.
            let Ok(clients) =
                Raw::connect(&self.supervisor.socket).and_then(|mut raw| raw.clients())
            else {
                continue;
            };
            let lists = |pid: u32| clients.iter().any(|client| client.pid == pid);
            self.unreaped.retain(|(_, pid)| lists(*pid));
            if self.unreaped.is_empty() && self.victims_run()? {
                break;
            }
            if begun.elapsed() > STUCK {
                self.supervisor.tally.stuck += 1;
                anyhow::bail!(
                    "the daemon does not clean up after {:?}, or victims do not join",
                    self.unreaped
                );
            }
            self.watch_survivors()?;
            std::thread::sleep(TURN);
        }
        Ok(())
    }

    /// Whether every victim that lives has joined: one that the daemon has let in and that does not know yet reads
    /// nothing before there is a daemon again.
    fn victims_run(&mut self) -> anyhow::Result<bool> {
        let mut all = true;
        for at in 0..self.victims.len() {
            let runs = self.phase(&self.victims[at]) >= RUNNING;
            let victim = &mut self.victims[at];
            if runs {
                victim.running.get_or_insert_with(Instant::now);
            } else {
                all &= victim.child.try_wait()?.is_some();
            }
        }
        Ok(all)
    }

    /// There is no daemon: messages flow where nobody has just died or is joining. Then another daemon comes.
    fn without_daemon(&mut self) -> anyhow::Result<()> {
        let needs_daemon = |topic| {
            let joins = |victim: &Member| victim.spec.topic == topic && victim.running.is_none();
            self.unreaped.iter().any(|(of, _)| *of == topic) || self.victims.iter().any(joins)
        };
        let quiet: Vec<bool> = (0..KINDS.len()).map(|topic| !needs_daemon(topic)).collect();
        let before: Vec<u64> = self.survivor_progress();
        let begun = Instant::now();
        let window = Duration::from_millis(20 + self.below(60));
        loop {
            let mut waits = begun.elapsed() < window;
            for (at, before) in before.iter().enumerate() {
                let topic = self.survivors[at].0.spec.topic;
                let more = self.survivor_progress()[at] - before;
                let needs = more < WINDOW_MESSAGES && !self.asks(topic);
                if needs && quiet[topic] && !self.has_death(topic)? {
                    waits = true;
                    if begun.elapsed() > STUCK {
                        self.supervisor.tally.stuck += 1;
                        let name = self.survivors[at].0.spec.name();
                        anyhow::bail!("{name} does not go on without a daemon");
                    }
                }
            }
            if !waits {
                break;
            }
            std::thread::sleep(TURN);
        }
        let after = self.survivor_progress();
        for (at, before) in before.iter().enumerate() {
            if quiet[self.survivors[at].0.spec.topic] {
                self.supervisor.figures.messages_without_daemon += after[at] - before;
            }
        }
        self.supervisor.figures.windows += u64::from(quiet.iter().all(|quiet| *quiet));
        let fate = (self.below(10) < 9).then(|| self.supervisor.next_fate(Role::Daemon));
        self.supervisor.start_daemon(fate)?;
        // Who was held back by a dead subscriber was waiting for this daemon, and nobody else.
        for (_, watch) in &mut self.survivors {
            watch.since = Instant::now();
        }
        Ok(())
    }

    fn survivor_progress(&self) -> Vec<u64> {
        let survivors = self.survivors.iter();
        survivors
            .map(|(member, _)| self.progress(&member.spec))
            .collect()
    }

    /// Whether a subscriber of a topic has to ask a daemon for memory before it can read on.
    fn asks(&self, topic: usize) -> bool {
        let members = self.survivors.iter().map(|(member, _)| member);
        members.chain(&self.victims).any(|member| {
            let actor = &self.supervisor.board.actor[member.spec.index as usize];
            member.spec.topic == topic && actor.asks.load(Ordering::Acquire) == 1
        })
    }

    /// Whether a victim of a topic is dead, and not cleaned up after.
    fn has_death(&mut self, topic: usize) -> anyhow::Result<bool> {
        for victim in self.victims.iter_mut().filter(|v| v.spec.topic == topic) {
            if victim.child.try_wait()?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn wait(
        &mut self,
        what: &str,
        patience: Duration,
        so: impl Fn(&Episode<'_>) -> bool,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !so(self) {
            if self.supervisor.daemon_died()? {
                self.supervisor.count_daemon_kill();
                self.supervisor.start_daemon(None)?;
            }
            if begun.elapsed() > patience {
                self.supervisor.tally.stuck += 1;
                anyhow::bail!("{what}");
            }
            std::thread::sleep(TURN);
        }
        Ok(())
    }

    fn command(&self, role: Role, command: u32) {
        for (member, _) in self.survivors.iter().filter(|(m, _)| m.spec.role == role) {
            let actor = &self.supervisor.board.actor[member.spec.index as usize];
            actor.command.store(command, Ordering::Release);
        }
    }

    /// The victims die together; the survivors go on, pause, and the books are looked at.
    fn finish(&mut self) -> anyhow::Result<()> {
        for victim in &mut self.victims {
            victim.child.kill()?;
        }
        for mut victim in std::mem::take(&mut self.victims) {
            victim.child.wait()?;
            self.supervisor.tally.kills += 1;
        }
        let before = self.survivor_progress();
        self.wait(
            "survivors do not go on after the last deaths",
            STUCK,
            |episode| {
                let now = episode.survivor_progress();
                now.iter().zip(&before).all(|(now, before)| now > before)
            },
        )?;
        self.command(Role::Publisher, PAUSE);
        self.wait("publishers do not pause", STUCK, |episode| {
            episode.all_in(Role::Publisher, PAUSED)
        })?;
        self.wait_for_messages()?;
        self.command(Role::Subscriber, PAUSE);
        self.wait("subscribers do not pause", STUCK, |episode| {
            episode.all_in(Role::Subscriber, PAUSED)
        })?;
        // A daemon that died when all have left would take the zone with it.
        if self.supervisor.has_fate() {
            self.supervisor.kill_daemon()?;
            self.supervisor.count_daemon_kill();
            self.supervisor.start_daemon(None)?;
        }
        self.check_books()?;
        self.command(Role::Publisher, LEAVE);
        self.command(Role::Subscriber, LEAVE);
        self.wait("survivors do not leave", STUCK, |episode| {
            episode.all_in(Role::Publisher, LEFT) && episode.all_in(Role::Subscriber, LEFT)
        })?;
        self.check_empty()?;
        eprintln!(
            "chaos: {:4} kills ({} in this episode), {:?}",
            self.supervisor.tally.kills,
            self.supervisor.tally.kills - self.last_kills,
            self.supervisor.figures
        );
        Ok(())
    }

    fn all_in(&self, role: Role, phase: u32) -> bool {
        let mut members = self.survivors.iter().filter(|(m, _)| m.spec.role == role);
        members.all(|(member, _)| self.phase(member) == phase)
    }

    /// The subscribers that live get everything that was ever published on their topics.
    fn wait_for_messages(&mut self) -> anyhow::Result<()> {
        let outcome = self.wait("messages do not arrive", STUCK, |episode| {
            episode.undelivered().is_empty()
        });
        if outcome.is_err() {
            for line in self.undelivered() {
                eprintln!("chaos: {line}");
            }
        }
        for line in self.overdelivered() {
            self.supervisor.tally.corrupt += 1;
            eprintln!("chaos: {line}");
        }
        outcome
    }

    /// Pairs of surviving subscriber and any publisher, with what was published and received.
    fn pairs(&self) -> Vec<(&Spec, &Spec, u64, u64)> {
        let mut pairs = Vec::new();
        for (subscriber, _) in self
            .survivors
            .iter()
            .filter(|(m, _)| m.spec.role == Role::Subscriber)
        {
            let board = self.supervisor.board;
            let next = &board.actor[subscriber.spec.index as usize].next;
            for publisher in self
                .all
                .iter()
                .filter(|spec| spec.role == Role::Publisher && spec.topic == subscriber.spec.topic)
            {
                let published = board.actor[publisher.index as usize]
                    .published
                    .load(Ordering::Acquire);
                let received = next[publisher.index as usize].load(Ordering::Acquire);
                pairs.push((&subscriber.spec, publisher, published, received));
            }
        }
        pairs
    }

    fn undelivered(&self) -> Vec<String> {
        let pairs = self.pairs().into_iter();
        pairs
            .filter(|(_, _, published, received)| received < published)
            .map(|(subscriber, publisher, published, received)| {
                format!(
                    "{} has {received} of the {published} messages of {} on {}",
                    subscriber.name(),
                    publisher.name(),
                    KINDS[publisher.topic].name
                )
            })
            .collect()
    }

    /// More than were published, but for one whose publisher died before it could say so.
    fn overdelivered(&self) -> Vec<String> {
        let pairs = self.pairs().into_iter();
        pairs
            .filter(|(_, publisher, published, received)| {
                *received > published + u64::from(!publisher.survivor)
            })
            .map(|(subscriber, publisher, published, received)| {
                format!(
                    "{} has {received} messages of {}, which published {published}",
                    subscriber.name(),
                    publisher.name()
                )
            })
            .collect()
    }

    fn check_books(&mut self) -> anyhow::Result<()> {
        let board = self.supervisor.board;
        let survivors = || -> HashMap<String, Option<u64>> {
            let members = self.survivors.iter().map(|(member, _)| &member.spec);
            members
                .map(|spec| {
                    let used = &board.actor[spec.index as usize].used_bytes;
                    let used = used.load(Ordering::Acquire);
                    let used = (spec.role == Role::Publisher).then_some(used);
                    (spec.name(), used)
                })
                .collect()
        };
        let problems = checker::check(&self.supervisor.socket, &survivors)?;
        for problem in &problems {
            self.supervisor.tally.leaked_blocks += problem.leaked;
            eprintln!("chaos: leaked: {}", problem.what);
        }
        Ok(())
    }

    /// Everybody has left: one message can have the whole pool, and no topic is left.
    fn check_empty(&mut self) -> anyhow::Result<()> {
        let node = until_joined(|| {
            Node::builder("whole")
                .config(config(&self.supervisor.socket))
                .build()
        })?;
        for (number, domain) in [Some(crate::domain::domain()), crate::domain::across()]
            .into_iter()
            .flatten()
            .enumerate()
        {
            let publisher = until_joined(|| {
                let builder = node.publisher(&format!("chaos/whole{number}"));
                builder.domain(domain).create()
            })?;
            let begun = Instant::now();
            loop {
                match publisher.loan(POOL_BYTES) {
                    Ok(loan) => break drop(loan),
                    Err(error) if begun.elapsed() > STUCK => {
                        self.supervisor.tally.leaked_blocks += 1;
                        eprintln!("chaos: leaked: nobody is there, but {error}");
                        break;
                    }
                    Err(_) => std::thread::sleep(TURN * 10),
                }
            }
        }
        drop(node);
        let begun = Instant::now();
        loop {
            let mut raw = Raw::connect(&self.supervisor.socket)?;
            let mut topics = raw.topics()?;
            topics.retain(|topic| topic.name != TOPIC);
            let leased: u64 = raw.pools()?.iter().map(|pool| pool.leased_bytes).sum();
            raw.enter_zone()?;
            // GPU memory stays in its segments, as does what a GPU's driver knows; only other host memory
            // is given back to the system.
            let memory = if on_gpu() { 0 } else { raw.pool_memory()? };
            if topics.is_empty() && leased == 0 && memory == 0 {
                return Ok(());
            }
            if begun.elapsed() > STUCK {
                let leaked = leased.max(memory) / GRANULE_BYTES + 1;
                self.supervisor.tally.leaked_blocks += leaked;
                eprintln!(
                    "chaos: leaked: {leased} bytes are leased, {memory} are not given back, and \
                     there are {topics:?}"
                );
                return Ok(());
            }
            std::thread::sleep(TURN * 10);
        }
    }
}
