//! The state that the threads of a bridge share.

use crate::counts::{Counters, Reason};
use crate::dialect::Dialect;
use rgaps_client::Node;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use zenoh::Session;

/// The state that the threads of a bridge share.
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) session: Session,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) counters: Counters,
    pub(crate) stop: AtomicBool,
    /// The ids of this bridge's publishers, whose messages it does not send back.
    pub(crate) own: RwLock<BTreeSet<u64>>,
    /// Topics and reasons that the log has named.
    pub(crate) warned: Mutex<BTreeSet<(String, &'static str)>>,
}

impl Shared {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts a dropped message. Logs the first one of each topic and reason.
    pub(crate) fn drop_one(&self, topic: &str, reason: Reason, why: &str) {
        self.counters.count_dropped(reason, 1);
        self.warn(topic, reason.name(), why);
    }

    /// Logs a warning about a topic, once for each `what`.
    pub(crate) fn warn(&self, topic: &str, what: &'static str, why: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.insert((topic.to_owned(), what)) {
            tracing::warn!("{topic}: {why}");
        }
    }
}
