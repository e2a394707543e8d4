//! Functions of libraries above the runtime that failed after they had returned.

use crate::notice;
use rgaps_remoting::math::Failure;
use rgaps_remoting::Code;

/// Says what became of a call that nobody waited for, and gives the code of CUDA's that a call of CUDA's then has.
pub(crate) fn as_code(code: Code) -> Code {
    match Failure::of(code.0) {
        None => code,
        Some(failure) => {
            say(failure);
            Code::UNKNOWN
        }
    }
}

/// Names the function that failed, once.
pub(crate) fn say(failure: Failure) {
    let name = failure
        .function()
        .map_or("a function", |function| function.name);
    notice::once(&format!(
        "{name} failed with status {} after it had returned; with RGAPS_GPU_BLOCKING=1 it returns that status",
        failure.status
    ));
}
