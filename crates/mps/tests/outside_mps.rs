//! The daemon takes itself out of MPS. A program of its own, since tests in one program share the environment.

use rgaps_mps::leave_environment;
use rgaps_session::{MpsControl, MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE};
use std::path::Path;

#[test]
fn the_environment_names_no_mps_afterwards() {
    let there = tempfile::tempdir().unwrap();
    std::fs::write(there.path().join("control"), "").unwrap();
    std::env::set_var(MPS_PIPE_VARIABLE, there.path());
    std::env::set_var(MPS_LOG_VARIABLE, there.path());
    assert!(MpsControl::of_this_process().is_some());
    assert_eq!(leave_environment().as_deref(), Some(there.path()));
    assert!(MpsControl::of_this_process().is_none());
    assert!(std::env::var_os(MPS_LOG_VARIABLE).is_none());
    // Without the variable, the driver would look in the default directory.
    let named = std::env::var_os(MPS_PIPE_VARIABLE).unwrap();
    assert!(!Path::new(&named).exists());
    assert_eq!(leave_environment(), None, "its own doing is no MPS");
}
