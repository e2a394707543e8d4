//! Makes programs robust against the limits of their environment. A program runs on a stack of its own, and its log and messages
//! survive a standard error that cannot be written: a full disk, a closed pipe, a file at `ulimit -f`.

use crate::LogFormat;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::EnvFilter;

/// Stack of the thread that [`on_own_stack`] starts. Only touched pages of it take memory.
const STACK_BYTES: usize = 8 << 20;
/// Exit code of a program that panicked.
const PANICKED: u8 = 101;

/// Runs a program on a thread with a stack of 8 MiB. The stack of the process's first thread has the size of `ulimit -s`, which
/// may be too small even to read the arguments.
///
/// The first thread only waits. Block signals before this call if the program handles them; otherwise the first thread gets them.
pub fn on_own_stack(program: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    let thread = std::thread::Builder::new().name("main".to_owned());
    match thread.stack_size(STACK_BYTES).spawn(program) {
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(PANICKED)),
        Err(error) => {
            print_error(format_args!(
                "starting a thread with a stack of {STACK_BYTES} bytes failed: {error}; raise ulimit -v or ulimit -u"
            ));
            ExitCode::FAILURE
        }
    }
}

/// Starts the log on standard error, filtered by `RUST_LOG`, or else by `filter`. Drops a line that cannot be written.
pub fn start_log(filter: &str, format: LogFormat) -> Result<(), ParseError> {
    let filter = EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(filter))?;
    let _ = outlive_file_size_limit();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Without this, a line that cannot be written is reported with `eprintln!`, which panics.
        .log_internal_errors(false)
        .with_ansi(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Prints a line on standard error. Use it instead of `eprintln!`, which panics if standard error cannot be written.
pub fn print_error(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Installs a handler of SIGXFSZ, so that a write beyond `ulimit -f` fails with EFBIG and does not end the process. Programs
/// that this one starts do not inherit a handler, as they would inherit a blocked or ignored signal.
fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).map(drop)
}
