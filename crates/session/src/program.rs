//! What every rgaps program does with its standard error: a log, and words to the user. Neither may end the program: the
//! disk behind standard error may be full, its reader gone, its file at `ulimit -f`.

use crate::LogFormat;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::EnvFilter;

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
pub fn tell_user(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A write beyond `ulimit -f` then fails with EFBIG. Otherwise SIGXFSZ ends the process. A handler, unlike a signal that
/// is blocked or ignored, is not inherited by the programs that this one starts.
fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).map(drop)
}
