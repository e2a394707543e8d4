//! Points between two steps of a commit, where the crash test kills the process.

/// Names a point. Costs nothing unless the crate is built with the feature `crash-steps`.
macro_rules! step {
    ($name:literal) => {
        #[cfg(feature = "crash-steps")]
        $crate::step::reached($name);
    };
}
pub(crate) use step;

#[cfg(feature = "crash-steps")]
mod hook {
    use std::sync::OnceLock;

    static HOOK: OnceLock<fn(&'static str)> = OnceLock::new();

    /// Sets what happens at every point of this process. The crash test's hook counts the points
    /// and kills the process at a chosen one.
    pub fn set_crash_hook(hook: fn(&'static str)) {
        let _ = HOOK.set(hook);
    }

    /// Calls the hook, if there is one. Public for the engine, which has such points too.
    #[doc(hidden)]
    pub fn reached(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }
}
#[cfg(feature = "crash-steps")]
pub use hook::{reached, set_crash_hook};
