//! Ctrl-C and SIGTERM end a command between two messages.

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Exit code of the second Ctrl-C, which does not wait for anything: 128 + SIGINT.
const AT_ONCE: i32 = 130;

/// Whether the user has had enough.
#[derive(Clone)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Has the signals asked for from now on.
    pub fn install() -> anyhow::Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal only sets the flag, the second finds it set.
            signal_hook::flag::register_conditional_shutdown(signal, AT_ONCE, flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
                .context("signals cannot be handled")?;
        }
        Ok(Stop(flag))
    }

    /// The flag itself, for who looks at it between two messages.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
