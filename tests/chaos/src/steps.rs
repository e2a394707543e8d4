//! The steps at which processes are killed, and the hook that kills them there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Steps of a publisher's process.
pub const PUBLISHER: &[&str] = &[
    "loan.extent",
    "loan.used",
    "loan.begun",
    "publish.in_ring",
    "publish.invalidated",
    "publish.described",
    "publish.committed",
    "publish.announced",
    "publish.rung",
    "evict.tail",
    "evict.released",
    "wake.cleared",
];
/// Steps of a subscriber's process.
pub const SUBSCRIBER: &[&str] = &[
    "take.acquired",
    "take.cursor",
    "release.begin",
    "return.emptied",
    "return.bitmap",
    "wake.publisher",
];
/// Steps of the daemon.
pub const DAEMON: &[&str] = &[
    "registry.write",
    "announce.begin",
    "announce.masks",
    "announce.epoch",
    "join.publisher",
    "join.subscriber",
    "leave.masks",
    "leave.deferred_releases",
    "return.emptied",
    "return.bitmap",
    "wake.publisher",
    "leave.holders",
    "orphan.begin",
    "orphan.abandoned",
    "orphan.settled",
    "orphan.deferred_releases",
    "orphan.tail",
    "orphan.released",
    "orphan.evicted",
    "end.emptied",
    "end.recorded",
    "state.written",
    "adopt.begin",
    "adopt.loaded",
    "adopt.claimed",
    "timeline.ended",
];
/// Steps of each role that are reached only where there is GPU work.
const PUBLISHER_ON_GPU: &[&str] = &["deferred_release.taken"];
const SUBSCRIBER_ON_GPU: &[&str] = &[
    "deferred_release.filled",
    "deferred_release.pending",
    "deferred_release.claimed",
];
const DAEMON_ON_GPU: &[&str] = &["timeline.reached", "settle.point", "deferred_release.taken"];
/// Those that are reached too seldom to wait for. Nobody is killed there: tests of `rgaps-engine` make
/// what is left by those who die there.
const SELDOM: &[&str] = &["deferred_release.cleared", "deferred_release.emptied"];
/// Steps of one role at most: places for them in the scoreboard.
pub const MAX_STEPS: usize = 32;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Role {
    Publisher,
    Subscriber,
    Daemon,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Publisher, Role::Subscriber, Role::Daemon];

    /// The steps that a process of this role reaches.
    pub fn steps(self) -> &'static [&'static str] {
        static STEPS: OnceLock<[Vec<&'static str>; 3]> = OnceLock::new();
        let all = STEPS.get_or_init(|| {
            let of = |always: &[&'static str], on_gpu: &[&'static str]| {
                let on_gpu = if crate::domain::on_gpu() { on_gpu } else { &[] };
                [always, on_gpu].concat()
            };
            [
                of(PUBLISHER, PUBLISHER_ON_GPU),
                of(SUBSCRIBER, SUBSCRIBER_ON_GPU),
                of(DAEMON, DAEMON_ON_GPU),
            ]
        });
        let steps = &all[self as usize];
        assert!(steps.len() <= MAX_STEPS);
        steps
    }
}

/// Where a process is to die.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Fate {
    pub step: String,
    /// How often the step is reached before.
    pub passes: u64,
}

struct Armed {
    counts: &'static Counts,
    role: Role,
    fate: Option<Fate>,
    passes_left: AtomicU64,
}

/// How often each step of each role was reached, and how often a process died there.
#[repr(C)]
pub struct Counts {
    pub reached: [[AtomicU64; MAX_STEPS]; 3],
    pub deaths: [[AtomicU64; MAX_STEPS]; 3],
    /// Steps that are on no list, at which nobody would ever be killed.
    pub unknown: AtomicU64,
}

static ARMED: OnceLock<Armed> = OnceLock::new();

/// Counts the steps of this process, and kills it at its fate.
pub fn arm(counts: &'static Counts, role: Role, fate: Option<Fate>) {
    let passes = fate.as_ref().map_or(0, |fate| fate.passes);
    let armed = Armed {
        counts,
        role,
        fate,
        passes_left: AtomicU64::new(passes),
    };
    if ARMED.set(armed).is_ok() {
        rgaps_topic::set_crash_hook(reached);
    }
}

fn reached(step: &'static str) {
    let Some(armed) = ARMED.get() else { return };
    let (counts, role) = (armed.counts, armed.role as usize);
    let known = armed.role.steps().iter().position(|known| *known == step);
    let Some(index) = known else {
        if SELDOM.contains(&step) {
            return;
        }
        counts.unknown.fetch_add(1, Ordering::Relaxed);
        eprintln!(
            "{:?} reaches the step '{step}', which is not on its list",
            armed.role
        );
        return;
    };
    counts.reached[role][index].fetch_add(1, Ordering::Relaxed);
    if armed.fate.as_ref().is_none_or(|fate| fate.step != step) {
        return;
    }
    let passed = armed
        .passes_left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
    if passed.is_err() {
        counts.deaths[role][index].fetch_add(1, Ordering::Relaxed);
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
