//! [`ClientContext`]: what every publisher and subscriber needs of its zone and its daemon.

use super::{Conductor, ZoneView};
use std::sync::Arc;

/// A zone as this process maps it, and the conductor, which talks to the daemon. Whoever uses views into the control segment
/// keeps one of these, so that the segment stays mapped.
#[derive(Clone)]
pub(crate) struct ClientContext {
    pub(crate) zone: Arc<ZoneView>,
    pub(crate) conductor: Arc<Conductor>,
}

impl ClientContext {
    /// Call when a CUDA context of this process is lost: tells the daemon once.
    pub(crate) fn gpu_is_lost(&self) {
        self.zone.gpu_is_lost(&self.conductor);
    }
}
