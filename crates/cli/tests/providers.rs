//! Providers of host memory and the kernel module, on machines without their devices.

mod support;

use serde_json::Value;
use std::path::Path;
use support::{Realm, Run};

/// The check of this name from `rgaps doctor`, with this provider configured.
fn check(provider: &str, name: &str) -> Value {
    let realm = Realm::new();
    let mut command = realm.command(&["doctor", "--json"]);
    command.env("RGAPS_POOL__HOST__PROVIDER", provider);
    let run: Run = command.output().unwrap().into();
    let report: Value = serde_json::from_str(run.stdout.lines().next().unwrap()).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("no check '{name}'")).clone()
}

#[test]
fn doctor_says_which_provider_is_in_use_and_what_it_costs() {
    let memfd = check("memfd", "provider memfd");
    assert_eq!(memfd["verdict"], "ok", "{memfd}");
    assert!(
        memfd["found"].as_str().unwrap().starts_with("in use"),
        "{memfd}"
    );
}

#[test]
fn a_provider_that_is_not_there_fails_with_advice() {
    for (provider, device) in [
        ("udmabuf", "/dev/udmabuf"),
        ("dmaplane", "/dev/dmaplane-pool"),
    ] {
        let name = format!("provider {provider}");
        // The configuration does not use this provider, so the check passes.
        assert_eq!(check("memfd", &name)["verdict"], "ok");
        if Path::new(device).exists() {
            println!("left out: {device} is there");
            continue;
        }
        let found = check(provider, &name);
        assert_eq!(found["verdict"], "fail", "{found}");
        assert!(found["found"].as_str().unwrap().contains(device), "{found}");
        let advice = found["advice"].as_str().unwrap();
        assert!(advice.contains("pool.host.provider"), "{advice}");

        let realm = Realm::new();
        let mut command = realm.command(&["topic", "pub", "t", "--text", "x"]);
        command.env("RGAPS_POOL__HOST__PROVIDER", provider);
        let run: Run = command.output().unwrap().into();
        assert!(run.stderr.contains(device), "{run:?}");
        assert!(run.stderr.contains("pool.host.provider"), "{run:?}");
    }
}

#[test]
fn commands_of_the_module_say_how_to_load_it() {
    if Path::new("/dev/dmaplane").exists() {
        println!("left out: /dev/dmaplane is there");
        return;
    }
    let realm = Realm::new();
    for command in ["status", "bench"] {
        let run: Run = realm
            .command(&["dmaplane", command])
            .output()
            .unwrap()
            .into();
        assert!(run.stderr.contains("open(/dev/dmaplane) failed"), "{run:?}");
        assert!(run.stderr.contains("insmod"), "{run:?}");
        run.fails_with(1);
    }
}
