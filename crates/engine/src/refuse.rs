//! Refusals: what the daemon answers to a request that it does not fulfil. Each message says what to do.

use rgaps_pool::PoolError;
use rgaps_session::{Refusal, RefusalCode};

/// A refusal with a message.
pub(crate) fn refuse(code: RefusalCode, message: impl Into<String>) -> Refusal {
    Refusal {
        code,
        message: message.into(),
    }
}

/// A request that is not valid.
pub(crate) fn bad(message: impl Into<String>) -> Refusal {
    refuse(RefusalCode::BadRequest, message)
}

/// The refusal when a system call of the daemon failed. `what`: what the daemon cannot do.
pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Refusal {
    refuse(
        RefusalCode::Internal,
        format!("the daemon cannot {what}: {error}; see its log and 'rgaps doctor'"),
    )
}

/// The refusal for an error of a source of memory.
pub(crate) fn memory(error: PoolError) -> Refusal {
    let code = match &error {
        PoolError::Unavailable { .. } | PoolError::Cuda { .. } => RefusalCode::DomainUnavailable,
        PoolError::CapReached { .. } => RefusalCode::PoolFull,
        PoolError::Untrusted(_) => RefusalCode::BadRequest,
        PoolError::System { source, .. } if is_out_of_memory(source) => RefusalCode::PoolFull,
        _ => RefusalCode::Internal,
    };
    refuse(code, error.to_string())
}

fn is_out_of_memory(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOMEM, Errno::NOSPC]
        .iter()
        .any(|e| error.raw_os_error() == Some(e.raw_os_error()))
}
