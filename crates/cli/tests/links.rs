//! Links that do not run: every command gives the advice first, then the reason.

mod support;

use rgaps_testkit::programs;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use support::{Realm, Run};

/// A command in a realm whose configuration enables links, with `links` as their program.
fn command(realm: &Realm, arguments: &[&str], links: Option<&Path>) -> Command {
    let mut command = realm.command(arguments);
    command
        .env("RGAPS_LINKS__ENABLED", "true")
        .env("RGAPS_LINKS__LISTEN", "127.0.0.1:0")
        .env("RGAPS_LINKS__SCOUTING", "true")
        .env("RGAPS_LINKS__HOST", "here")
        .env_remove("RGAPS_LINKS_PROGRAM");
    if let Some(program) = links {
        command.env("RGAPS_LINKS_PROGRAM", program);
    }
    command
}

/// Checks that each command prints the advice, then the reason.
fn told_by_all(
    realm: &Realm,
    links: Option<&Path>,
    environment: &[(&str, &Path)],
    advice: &str,
    reason: &str,
) {
    let run = |arguments: &[&str]| -> Run {
        let mut command = command(realm, arguments, links);
        command.envs(environment.iter().copied());
        command.output().unwrap().into()
    };
    // Listings wrap long texts.
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let in_order = |text: &str| {
        let text = flat(text);
        let (advice, reason) = (text.find(advice), text.find(&flat(reason)));
        assert!(advice.is_some() && advice < reason, "{text}");
    };
    let up = run(&["up"]);
    assert!(
        up.stdout.contains("rgapsd"),
        "the daemon runs all the same: {up:?}"
    );
    in_order(&up.fails_with(1));
    in_order(&run(&["peers"]).fails_with(1));
    in_order(&run(&["status"]).ok());
    let doctor = run(&["doctor"]).stdout;
    assert!(
        doctor.contains("lack  links") && doctor.contains(&format!("-> {advice}")),
        "{doctor}"
    );
    assert!(flat(&doctor).contains(&flat(reason)), "{doctor}");
    let last = reason.lines().last().unwrap();
    for text in [doctor, run(&["status"]).ok()] {
        assert!(!text.lines().any(|line| line.starts_with(last)), "{text}");
    }
    let status: Value = serde_json::from_str(&run(&["status", "--json"]).ok()).unwrap();
    assert_eq!(status["links"]["state"], "failed");
    assert_eq!(status["links"]["failure"]["advice"].as_str(), Some(advice));
}

#[test]
fn without_the_links_program_every_command_says_so_and_what_to_do() {
    let realm = Realm::new();
    // A daemon that has no rgaps-links beside it or on its PATH.
    let alone = realm.path("bin");
    std::fs::create_dir(&alone).unwrap();
    let program = alone.join("rgapsd");
    if std::fs::hard_link(programs::rgapsd(), &program).is_err() {
        std::fs::copy(programs::rgapsd(), &program).unwrap();
    }
    told_by_all(
        &realm,
        None,
        &[("RGAPS_DAEMON", &program), ("PATH", &alone)],
        "install rgaps-links beside rgapsd, or set RGAPS_LINKS_PROGRAM to its path, then 'rgaps down' and 'rgaps up'",
        "the program 'rgaps-links' was not found in",
    );
}

#[test]
fn a_links_program_that_the_variable_names_and_that_is_none_is_told() {
    let realm = Realm::new();
    told_by_all(
        &realm,
        Some(Path::new("/nowhere/rgaps-links")),
        &[],
        "set RGAPS_LINKS_PROGRAM to the program rgaps-links, or unset it, then 'rgaps down' and 'rgaps up'",
        "'/nowhere/rgaps-links', which cannot be run",
    );
}

#[test]
fn links_that_end_are_told_with_their_exit_code_and_last_lines() {
    let realm = Realm::new();
    let program = realm.path("rgaps-links");
    std::fs::write(
        &program,
        "#!/bin/sh\necho 'the certificate /x.pem is missing' >&2\nexit 3\n",
    )
    .unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    told_by_all(
        &realm,
        Some(&program),
        &[],
        "correct what rgaps-links reports, then run 'rgaps down' and 'rgaps up'",
        "rgaps-links ended (exit status: 3); its last lines are:\nthe certificate /x.pem is missing",
    );
}

#[test]
fn a_daemon_that_was_started_without_links_is_told() {
    let realm = Realm::new();
    realm.json(&["up"]);
    for arguments in [&["up"][..], &["peers"]] {
        let run: Run = command(&realm, arguments, None).output().unwrap().into();
        let said = run.fails_with(1);
        assert!(
            said.starts_with("rgaps: 'rgaps down', then 'rgaps up': "),
            "{said}"
        );
        assert!(said.contains("links.enabled = true"), "{said}");
    }
    let run = realm.run(&["peers"]);
    assert!(run.ok().contains("set links.enabled = true in rgaps.toml"));
}

#[test]
fn hosts_that_are_named_where_links_are_off_are_told_by_doctor() {
    let realm = Realm::new();
    let mut doctor = realm.command(&["doctor"]);
    let run: Run = doctor
        .env("RGAPS_LINKS__CONNECT", "[\"tcp/127.0.0.1:7447\"]")
        .output()
        .unwrap()
        .into();
    let said = run.ok();
    assert!(said.contains("lack  links"), "{said}");
    assert!(said.contains("-> set links.enabled = true"), "{said}");
}
