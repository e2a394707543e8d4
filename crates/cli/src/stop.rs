//! Ends a command between two messages on Ctrl-C or SIGTERM.

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Exit code of the second signal, which ends the process at once: 128 + SIGINT.
const AT_ONCE: i32 = 130;

/// Whether a signal has asked the command to stop.
#[derive(Clone)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Installs the handlers of the signals.
    pub fn install() -> anyhow::Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Handlers run in this order: the first signal finds the flag clear and sets it; the second finds it set and exits.
            signal_hook::flag::register_conditional_shutdown(signal, AT_ONCE, flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
                .context("signals cannot be handled")?;
        }
        Ok(Stop(flag))
    }

    /// The flag, for code that looks at it between two messages.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
