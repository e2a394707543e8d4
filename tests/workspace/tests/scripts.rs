//! Shell scripts with `set -o pipefail`: a command that ends before it has read all of a pipe ends the one that writes by
//! SIGPIPE, now and then, and with it the script.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::root;
use std::process::Command;

/// Whether a line writes to something that may not read all. An awk program that exits is one anywhere: a function that
/// holds it may stand in a pipe.
fn may_break(line: &str) -> bool {
    if line.contains("awk ") && line.contains("{ exit }") {
        return true;
    }
    let line = line.replace("||", ";");
    line.split('|').skip(1).any(|command| {
        let mut words = command.split_whitespace();
        match words.next() {
            Some("head") => true,
            Some("grep") => words.any(|word| {
                let flags = word.strip_prefix('-').unwrap_or_default();
                !flags.starts_with('-') && flags.contains('q') || word == "--quiet"
            }),
            _ => false,
        }
    })
}

#[test]
fn no_script_with_pipefail_ends_a_pipe_early() {
    assert!(may_break("ls | head -n 1") && may_break("a && b | grep -qF x"));
    assert!(may_break("first() { awk '/x/ { exit } { print }'; }"));
    assert!(!may_break("ls || head x") && !may_break("ls | sed -n 1p | grep -F quiet"));
    let mut git = Command::new("git");
    let listed = git.arg("ls-files").current_dir(root()).output();
    let listed = listed.expect("git");
    let listed = String::from_utf8(listed.stdout).expect("names in UTF-8");
    let mut looked_at = 0;
    for name in listed.lines() {
        let Ok(text) = std::fs::read_to_string(root().join(name)) else {
            continue;
        };
        let is_script = text.starts_with("#!") && text.contains("pipefail");
        if !is_script || name.ends_with(".py") {
            continue;
        }
        looked_at += 1;
        for (number, line) in text.lines().enumerate() {
            let is_comment = line.trim_start().starts_with('#');
            assert!(
                is_comment || !may_break(line),
                "{name}:{}: reads not all of a pipe; use `sed -n 1p`, or grep with >/dev/null: {line}",
                number + 1
            );
        }
    }
    assert!(looked_at > 20, "{looked_at} scripts");
}
