//! Checks the structures of src/abi.rs against the header of the installed rdma-core, and loading of libraries that are missing or wrong.

use rgaps_verbs::{Verbs, VerbsError};
use std::ffi::OsStr;
use std::process::{Command, Stdio};

const HEADER: &str = "/usr/include/infiniband/verbs.h";

#[test]
fn our_structures_are_the_headers() {
    if !std::path::Path::new(HEADER).exists() {
        println!("skipped: there is no {HEADER} (libibverbs-dev)");
        return;
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/abi.c");
    let checked = Command::new("cc")
        .args(["-fsyntax-only", source])
        .stdin(Stdio::null())
        .output();
    let checked = checked.unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    // abi.c checks every structure and constant of src/abi.rs.
    let ours = include_str!("../src/abi.rs");
    let c = include_str!("abi.c");
    let constants = ours.matches("pub(crate) const IBV_").count();
    assert_eq!(c.matches("\nIS(").count(), constants);
    let structures = ours
        .lines()
        .filter(|line| line.starts_with("    ibv_") && line.ends_with("] {"));
    for structure in structures {
        let name = structure.trim().split(' ').next().unwrap();
        assert!(c.contains(&format!("AT({name}, ")), "{name}");
    }
}

#[test]
fn without_the_library_there_is_a_reason_and_no_more() {
    let missing = Verbs::load_from(OsStr::new("libibverbs-that-is-not-there.so.1"));
    let error = missing.expect_err("there is none");
    assert!(matches!(error, VerbsError::LibraryMissing { .. }));
    assert!(error.to_string().contains("install rdma-core"), "{error}");
    // A library that has none of the functions.
    let other = Verbs::load_from(OsStr::new("libc.so.6")).expect_err("that is not it");
    assert!(
        matches!(
            other,
            VerbsError::TooOld {
                symbol: "ibv_get_device_list",
                ..
            }
        ),
        "{other}"
    );
}
