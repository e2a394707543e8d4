//! What every rgaps program does so that the limits of its surroundings do not end it: it runs on a stack of its own, and its log
//! and its words to the user go to a standard error whose disk may be full, whose reader may be gone, and whose file may be at
//! `ulimit -f`.

use crate::LogFormat;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::EnvFilter;

/// Stack of the thread that [`on_own_stack`] starts. Only what is used of it takes memory.
const STACK_BYTES: usize = 8 << 20;
/// Exit code of a program that panicked.
const PANICKED: u8 = 101;

/// Runs a program on a thread with a stack of 8 MiB. The process's first thread has as much as `ulimit -s` says, which may be
/// too little to read the arguments.
///
/// The first thread only waits. Signals that the program blocks must be blocked before this call, or the first thread gets
/// them.
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

/// Logs to standard error what `RUST_LOG` asks for, or else `filter`. A line that cannot be written is dropped.
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

/// Tells the user something on standard error, with a newline. Use it instead of `eprintln!`, which panics where standard
/// error takes nothing.
pub fn print_error(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A write beyond `ulimit -f` then fails with EFBIG. Otherwise SIGXFSZ ends the process. A handler, unlike a signal that
/// is blocked or ignored, is not inherited by the programs that this one starts.
fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).map(drop)
}
