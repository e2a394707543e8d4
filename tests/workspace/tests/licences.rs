//! Licences of this repository and of everything it links, against the list in `deny.toml`.
//!
//! `cargo deny` checks the same and more, where it is installed; this runs everywhere.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::{root, Workspace};
use spdx::{Expression, Licensee, ParseMode};
use std::collections::HashMap;

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
