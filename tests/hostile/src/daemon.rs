//! The daemon that clients lie to: it has little memory and no GPU.

use rgaps_testkit::Daemon;

const CONFIG: &str =
    "log = \"info\"\n[pool.host]\ncap = \"256MiB\"\n[pool.cuda]\nenabled = \"off\"\n";

/// A running daemon.
pub fn start() -> Daemon {
    start_with(&[])
}

/// A running daemon with more settings, from the environment.
pub fn start_with(settings: &[(&str, &str)]) -> Daemon {
    Daemon::builder().config(CONFIG).settings(settings).start()
}
