//! Keeps the daemon itself outside MPS.

use rgaps_session::{MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE};
use std::path::PathBuf;

/// A directory that does not exist: a driver that looks for MPS in it finds none.
const NOWHERE: &str = "/nonexistent/rgapsd-stays-outside-mps";

/// Takes this process out of MPS, and returns the pipe directory that its environment named. Call it before any thread
/// starts and before CUDA is loaded.
pub fn leave_environment() -> Option<PathBuf> {
    let named = std::env::var_os(MPS_PIPE_VARIABLE).map(PathBuf::from);
    // Removing it is not enough: the driver would look in the default directory.
    std::env::set_var(MPS_PIPE_VARIABLE, NOWHERE);
    std::env::remove_var(MPS_LOG_VARIABLE);
    named.filter(|directory| directory.is_absolute() && directory.as_os_str() != NOWHERE)
}
