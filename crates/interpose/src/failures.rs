//! Functions of libraries above the runtime that failed after they had returned.

use crate::notice;
use rgaps_remoting::math::Failure;
use rgaps_remoting::Code;

/// The CUDA error for a code from the server. If the code is the status of a library's function that nobody waited for, prints the
/// function's name.
pub(crate) fn as_code(code: Code) -> Code {
    match Failure::of(code.0) {
        None => code,
        Some(failure) => {
            say(failure);
            Code::UNKNOWN
        }
    }
}

/// Prints which function failed, once.
pub(crate) fn say(failure: Failure) {
    let name = failure
        .function()
        .map_or("a function", |function| function.name);
    notice::once(&format!(
        "{name} failed with status {} after it had returned; with RGAPS_GPU_BLOCKING=1 it returns that status",
        failure.status
    ));
}
