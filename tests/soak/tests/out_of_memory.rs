//! The kernel kills publishers, subscribers, daemons and links for want of memory, and the others go on: two hosts for some
//! seconds, with the soak's checker.
#![forbid(unsafe_code)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Builds what the soak runs, beside it, unless it was built with this test (`RGAPS_DAEMON`). False: there is no compiler, and it is not there.
fn has_programs(soak: &Path) -> bool {
    let is_there = || {
        ["rgapsd", "rgaps-links", "rgaps"].map(|name| soak.with_file_name(name).exists())
            == [true; 3]
    };
    if std::env::var_os("RGAPS_DAEMON").is_some() && is_there() {
        return true;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--quiet",
        "-p",
        "rgapsd",
        "-p",
        "rgaps-links",
        "-p",
        "rgaps-cli",
    ]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let built = build.status().is_ok_and(|status| status.success());
    built || is_there()
}

#[test]
fn whoever_the_oom_killer_kills_harms_nobody() {
    let soak = Path::new(env!("CARGO_BIN_EXE_rgaps-soak"));
    if !has_programs(soak) {
        return eprintln!("left out: no daemon and links beside {}", soak.display());
    }
    let output = Command::new(soak)
        .args([
            "--minutes",
            "0.2",
            "--hosts",
            "2",
            "--only",
            "out-of-memory",
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let tally: Value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap();
    assert!(output.status.success(), "{said}\n{told}");
    if told.contains("the kernel kills nobody for want of memory") {
        return eprintln!("left out: {told}");
    }
    let killed = told.lines().find(|line| line.contains("the kernel killed"));
    let killed = killed.expect("what the kernel killed");
    for kind in ["publishers", "subscribers", "daemons", "links"] {
        assert!(killed.contains(kind), "{killed}");
        assert!(!killed.contains(&format!(" 0 {kind}")), "{killed}");
    }
    assert!(tally["kills"].as_u64() >= Some(4), "{said}\n{told}");
    assert!(tally["messages"].as_u64() > Some(0), "{said}\n{told}");
}
