//! Named points between two steps of the daemon's commits, at which the crash test kills it.

/// Names a point. Costs nothing unless the crate is built with the feature `crash-steps`.
macro_rules! step {
    ($name:literal) => {
        #[cfg(feature = "crash-steps")]
        rgaps_topic::crash_step_reached($name);
    };
}
pub(crate) use step;
