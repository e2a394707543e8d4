//! The configuration as a list of keys and values, to compare that of a client with the daemon's.

use super::Config;
use std::collections::BTreeMap;

/// Keys that clients themselves follow. All others take effect in the daemon.
const CLIENT_KEYS: [&str; 5] = ["realm", "socket", "autostart", "namespace", "remap"];

impl Config {
    /// All keys that are set, with dots (`pool.host.cap`), and their values as TOML.
    pub fn leaves(&self) -> BTreeMap<String, String> {
        let mut leaves = BTreeMap::new();
        // A configuration always serializes to a table; `to_inline` relies on that, too.
        if let Ok(table) = toml::Table::try_from(self) {
            collect(&table, "", &mut leaves);
        }
        leaves
    }

    /// Those of the given keys that take effect only in the daemon, with their values in this configuration. The key of a table
    /// stands for all keys in the table.
    pub fn daemon_leaves<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
        let keys: Vec<&str> = keys.filter(|key| !CLIENT_KEYS.contains(key)).collect();
        let is_named = |leaf: &str| {
            keys.iter().any(|key| {
                let rest = leaf.strip_prefix(key);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        let leaves = self.leaves().into_iter();
        leaves.filter(|(leaf, _)| is_named(leaf)).collect()
    }
}

fn collect(table: &toml::Table, prefix: &str, leaves: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            toml::Value::Table(inner) => collect(inner, &format!("{key}."), leaves),
            value => {
                leaves.insert(key, value.to_string());
            }
        }
    }
}
