//! This host's daemon: the topics, publishers and subscribers that it lists.

use super::report::Report;
use rgaps_client::links::{InterestRow, LinksNode};
use rgaps_client::Node;
use std::collections::BTreeMap;

pub(super) struct Daemon {
    pub(super) node: Node,
    /// By topics, as it said last.
    rows: BTreeMap<String, InterestRow>,
    /// Of the rows, and of the daemon that told them.
    version: (u64, u64),
    /// What the links have reported to it.
    pub(super) report: Report,
}

/// What has changed since the daemon was asked last.
pub(super) struct Changes {
    pub(super) rows: bool,
    /// The daemon was replaced: the new one knows none of the links' reports.
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

    /// Asks it for publishers and subscribers.
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

    /// Publishers here that stand for others, also those of a former life of the links.
    pub(super) fn landed(&self) -> impl Iterator<Item = &u64> {
        self.rows.values().flat_map(|row| &row.landed)
    }
}
