//! What came of it.

use crate::board::Board;
use crate::steps::Role;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// The last line of the output.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Tally {
    pub kills: u64,
    /// Blocks (or granules) that nobody has and nobody gets back.
    pub leaked_blocks: u64,
    /// Messages whose bytes, order or number were wrong.
    pub corrupt: u64,
    /// Members that did not go on, or met an error, though they should have.
    pub stuck: u64,
    /// Blocks that were handed out while somebody had them.
    pub double_frees: u64,
}

impl Tally {
    pub fn is_clean(&self) -> bool {
        let Tally {
            kills: _,
            leaked_blocks,
            corrupt,
            stuck,
            double_frees,
        } = *self;
        (leaked_blocks, corrupt, stuck, double_frees) == (0, 0, 0, 0)
    }

    /// Adds what the processes of an episode counted.
    pub fn add_actors(&mut self, board: &Board) {
        for actor in &board.actor {
            let get = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Acquire);
            self.corrupt += get(&actor.corrupt) + get(&actor.disorder) + get(&actor.lost);
            self.double_frees += get(&actor.doubled);
            self.stuck += get(&actor.errors);
        }
    }
}

/// Numbers for people, on stderr.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub daemon_kills: u64,
    pub step_kills: u64,
    pub messages_published: u64,
    pub messages_received: u64,
    /// Windows without a daemon in which all topics had to go on, and messages in them.
    pub windows: u64,
    pub messages_without_daemon: u64,
    pub longest_stall_ms: u64,
    pub control_used_bytes: u64,
}

/// Steps at which no process of the role died.
pub fn uncovered(board: &Board) -> Vec<String> {
    let mut missing = Vec::new();
    for role in Role::ALL {
        for (index, step) in role.steps().iter().enumerate() {
            if board.steps.deaths[role as usize][index].load(Ordering::Acquire) == 0 {
                let reached = board.steps.reached[role as usize][index].load(Ordering::Acquire);
                missing.push(format!("{role:?} at '{step}' (reached {reached} times)"));
            }
        }
    }
    missing
}
