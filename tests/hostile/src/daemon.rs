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

/// The same, as another user with such a limit of open files, who gets a copy of the program: only root may start it.
pub fn start_as(uid: u32, max_fds: u64, settings: &[(&str, &str)]) -> Daemon {
    let script = format!(
        "install -m 755 \"$1\" rgapsd && shift && chown -R {uid}:{uid} . && \
         ulimit -n {max_fds} && exec setpriv --reuid={uid} --regid={uid} --clear-groups ./rgapsd \"$@\""
    );
    let within = ["/bin/sh", "-c", &script, "sh"].map(str::to_owned);
    let builder = Daemon::builder().config(CONFIG).settings(settings);
    builder.within(&within).start()
}
