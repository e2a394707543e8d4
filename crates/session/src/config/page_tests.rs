//! Tests that the documentation page of the configuration has the same keys and defaults as the code.

use super::*;
use std::collections::BTreeMap;

/// Keys and values of a table, with dots.
fn flat(prefix: &str, table: &toml::Table, rows: &mut Vec<(String, toml::Value)>) {
    for (key, value) in table {
        let name = format!("{prefix}{key}");
        match value {
            toml::Value::Table(inner) => flat(&format!("{name}."), inner, rows),
            value => rows.push((name, value.clone())),
        }
    }
}

#[test]
fn the_page_of_the_configuration_has_every_key_with_its_default() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let told: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let key = cells.next()?.strip_suffix('`')?;
            Some((key, cells.nth(1)?.trim_matches('`')))
        })
        .collect();
    let mut keys = Vec::new();
    let text = toml::to_string(&Config::default()).unwrap();
    flat("", &toml::from_str(&text).unwrap(), &mut keys);
    assert!(keys.len() > 30, "{keys:?}");
    for (key, value) in keys {
        // Lists of tables have tables of their own.
        if [
            "access",
            "links.rules",
            "links.quotas",
            "links.landing",
            "bridge.zenoh",
            "bridge.ros2",
        ]
        .contains(&key.as_str())
        {
            assert!(page.contains(&format!("[[{key}]]")), "{key}");
            continue;
        }
        assert_eq!(
            told.get(key.as_str()),
            Some(&value.to_string().as_str()),
            "{key}"
        );
    }
    for key in told.keys().filter(|key| key.contains('.')) {
        let text = format!("{key} = true");
        let error = toml::from_str::<Config>(&text)
            .err()
            .map_or_else(String::new, |e| e.to_string());
        assert!(
            !error.contains("unknown field"),
            "the page names {key}: {error}"
        );
    }
}
