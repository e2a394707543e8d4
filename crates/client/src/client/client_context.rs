//! What all members of a zone in this process work with.

use super::{Conductor, ZoneView};
use std::sync::Arc;

/// A zone as this process sees it, and its way to the daemon. Keeps the control segment mapped as long as views into it
/// live.
#[derive(Clone)]
pub(crate) struct ClientContext {
    pub(crate) zone: Arc<ZoneView>,
    pub(crate) conductor: Arc<Conductor>,
}

impl ClientContext {
    /// The CUDA context is lost.
    pub(crate) fn gpu_is_lost(&self) {
        self.zone.gpu_is_lost(&self.conductor);
    }
}
