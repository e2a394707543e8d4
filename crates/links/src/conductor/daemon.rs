//! This host's daemon: the topics, publishers and subscribers that it lists.

use super::report::Report;
use rgaps_client::links::{InterestRow, LinksNode};
use rgaps_client::Node;
use std::collections::BTreeMap;

pub(super) struct Daemon {
    pub(super) node: Node,
    /// The daemon's last list, by topics.
    rows: BTreeMap<String, InterestRow>,
    /// The version of the rows, and the number of the daemon that they come from.
    version: (u64, u64),
    /// The links' last reports to the daemon.
    pub(super) report: Report,
}

/// What has changed since the daemon was asked last.
pub(super) struct Changes {
    /// Whether the daemon sent another list.
    pub(super) rows: bool,
    /// Whether another daemon answered, which knows none of the links' reports.
    pub(super) daemon: bool,
}

impl Daemon {
    pub(super) fn new(node: Node) -> Daemon {
        Daemon {
            node,
            rows: BTreeMap::new(),
            version: (0, 0),
            report: Report::default(),
        }
    }

    /// Asks the daemon for publishers and subscribers.
    pub(super) fn look(&mut self) -> anyhow::Result<Changes> {
        let interest = self.node.interest(self.version.0)?;
        let changes = Changes {
            rows: interest.rows.is_some(),
            daemon: interest.daemon != self.version.1,
        };
        if changes.daemon {
            self.report = Report::default();
        }
        self.version = (interest.version, interest.daemon);
        if let Some(rows) = interest.rows {
            let rows = rows.into_iter();
            self.rows = rows.map(|row| (row.name.clone(), row)).collect();
        }
        Ok(changes)
    }

    pub(super) fn row(&self, topic: &str) -> Option<&InterestRow> {
        self.rows.get(topic)
    }

    /// Topics that somebody here subscribes to.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &InterestRow> {
        self.rows.values().filter(|row| row.subscribers > 0)
    }

    /// The publishers of landings, also those of a former life of the links.
    pub(super) fn landed(&self) -> impl Iterator<Item = &u64> {
        self.rows.values().flat_map(|row| &row.landed)
    }
}
