//! The rules of `deny.toml`: licences, banned crates and sources of everything that is linked or used in tests.
//!
//! `cargo deny check licenses bans sources` finds the same. Decision 0003 says why `make test` does not run it.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::{root, Workspace};
use spdx::{Expression, Licensee, ParseMode};
use std::collections::{BTreeSet, HashMap};

fn rules() -> toml::Table {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml is there");
    text.parse().expect("deny.toml is TOML")
}

fn allowed() -> Vec<Licensee> {
    licensees(&rules()["licenses"]["allow"])
}

/// What single packages may have besides.
fn exceptions() -> HashMap<String, Vec<Licensee>> {
    let rules = rules();
    let list = rules["licenses"]["exceptions"].as_array();
    let list = list.expect("licenses.exceptions is a list");
    let entry = |entry: &toml::Value| {
        let package = entry["crate"].as_str().expect("crates have names");
        (package.to_owned(), licensees(&entry["allow"]))
    };
    list.iter().map(entry).collect()
}

fn licensees(list: &toml::Value) -> Vec<Licensee> {
    let list = list.as_array().expect("licences are a list");
    let licensee = |entry: &toml::Value| {
        let name = entry.as_str().expect("licences are strings");
        Licensee::parse(name).unwrap_or_else(|error| panic!("{name} in deny.toml: {error}"))
    };
    list.iter().map(licensee).collect()
}

fn is_allowed(expression: &str, allowed: &[Licensee]) -> bool {
    // Lax: older manifests write "MIT/Apache-2.0".
    let parsed = Expression::parse_mode(expression, ParseMode::LAX)
        .unwrap_or_else(|error| panic!("licence {expression:?}: {error}"));
    parsed.evaluate(|wanted| allowed.iter().any(|licensee| licensee.satisfies(wanted)))
}

#[test]
fn our_packages_carry_our_licence() {
    for package in Workspace::load().members() {
        assert_eq!(
            package.license.as_deref(),
            Some("Apache-2.0 OR MIT"),
            "{}",
            package.name
        );
    }
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        assert!(root().join(file).is_file(), "{file} is missing");
    }
}

#[test]
fn everything_linked_or_used_in_tests_has_an_allowed_licence() {
    let (allowed, mut exceptions) = (allowed(), exceptions());
    for package in &Workspace::load().packages {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref();
        let licence = licence.unwrap_or_else(|| panic!("{name} names no licence"));
        let more = exceptions.remove(&package.name).unwrap_or_default();
        let allowed = [allowed.clone(), more].concat();
        assert!(
            is_allowed(licence, &allowed),
            "{name}: {licence} is not allowed by deny.toml"
        );
    }
    assert!(
        exceptions.is_empty(),
        "nobody needs {exceptions:?} any more"
    );
}

#[test]
fn copyleft_is_refused() {
    let allowed = allowed();
    assert!(is_allowed("MIT/Apache-2.0", &allowed));
    assert!(is_allowed("GPL-3.0-only OR MIT", &allowed));
    assert!(!is_allowed("GPL-3.0-only", &allowed));
    assert!(!is_allowed("MIT AND LGPL-2.1-only", &allowed));
}

#[test]
fn banned_crates_are_used_by_their_wrappers_alone() {
    let (rules, workspace) = (rules(), Workspace::load());
    let names = |list: Option<&toml::Value>| -> BTreeSet<String> {
        let list = list.and_then(toml::Value::as_array).into_iter().flatten();
        list.map(|name| name.as_str().expect("crates have names").to_owned())
            .collect()
    };
    let bans = rules["bans"]["deny"]
        .as_array()
        .expect("bans.deny is a list");
    for ban in bans {
        let banned = ban["crate"].as_str().expect("crates have names");
        let (wrappers, users) = (names(ban.get("wrappers")), workspace.dependents(banned));
        let others: Vec<_> = users.difference(&wrappers).collect();
        assert!(
            others.is_empty(),
            "{others:?} use {banned}, which deny.toml bans"
        );
        let unused: Vec<_> = wrappers.difference(&users).collect();
        assert!(unused.is_empty(), "{unused:?} do not use {banned} any more");
    }
}

#[test]
fn everything_comes_from_crates_io_in_a_version_that_is_named() {
    for package in &Workspace::load().packages {
        let source = package.source.as_deref();
        assert!(
            source.is_none_or(
                |source| source == "registry+https://github.com/rust-lang/crates.io-index"
            ),
            "{} {} comes from {source:?}",
            package.name,
            package.version
        );
        let any = package
            .dependencies
            .iter()
            .find(|of| of.req == "*" && of.path.is_none());
        assert!(
            any.is_none() || source.is_some(),
            "{} names no version of {:?}",
            package.name,
            any.map(|of| &of.name)
        );
    }
}
