//! The thread that asks the daemon for the topics, and, while a page is open, for everything that the page draws.
//!
//! A question takes long while the daemon is away, so the other threads leave their questions to this one where they can.

use crate::hub::Hub;
use crate::options::Options;
use crate::overview::{Look, RealmReport, Window};
use crate::state::{members, Answers, Overview};
use rgaps::{ClientError, Node, TopicRow};
use rgaps_session::{explain, pattern_matches};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two searches for topics. Also the time between the first two looks at the daemon, which give the first rates.
const DISCOVERY: Duration = Duration::from_millis(250);
/// Time between two looks at the daemon for an open page.
const EVERY: Duration = Duration::from_millis(1000);
/// Most topics whose members this thread asks for: each costs the daemon a request.
const TOPICS_MAX: usize = 64;

pub(crate) struct Looker {
    node: Node,
    options: Options,
    hub: Arc<Hub>,
    overview: Arc<Overview>,
    window: Window,
    looked: Option<Instant>,
}

impl Looker {
    pub(crate) fn new(
        node: Node,
        options: Options,
        hub: Arc<Hub>,
        overview: Arc<Overview>,
    ) -> Looker {
        Looker {
            node,
            options,
            hub,
            overview,
            window: Window::default(),
            looked: None,
        }
    }

    pub(crate) fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.turn() {
                // Messages flow without a daemon, and the node finds the next daemon by itself.
                self.hub.set_away();
                self.overview.set_error(explain(&error));
            }
            std::thread::sleep(DISCOVERY);
        }
    }

    fn turn(&mut self) -> Result<(), ClientError> {
        let rows = self.node.topics()?;
        let is_wanted = |row: &&TopicRow| !row.is_device && is_shown(&self.options, &row.name);
        let rows: Vec<&TopicRow> = rows.iter().filter(is_wanted).collect();
        let names = rows.iter().map(|row| row.name.clone()).collect();
        let published = rows.iter().filter(|row| row.publishers + row.orphans > 0);
        let published = published.map(|row| row.name.clone()).collect();
        self.hub.set_topics(&names, published);
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= EVERY);
        let is_wanted = self.overview.is_asked() || self.hub.is_graph_followed();
        if !is_due || !is_wanted {
            return Ok(());
        }
        if let Some(report) = self.window.add(Look::take(&self.node)?) {
            self.looked = Some(Instant::now());
            let answers = self.answers(report);
            self.hub.set_graph(answers.graph());
            self.overview.set(answers);
        }
        Ok(())
    }

    fn answers(&self, mut report: RealmReport) -> Answers {
        let topics = &mut report.topics;
        topics.retain(|topic| is_shown(&self.options, &topic.topic));
        let mut all = Vec::new();
        for topic in topics.iter().take(TOPICS_MAX) {
            // The topic may have disappeared a moment ago.
            if let Ok(info) = self.node.topic(&topic.topic) {
                all.extend(members(&info));
            }
        }
        let topics_without_members = topics.len().saturating_sub(TOPICS_MAX);
        if !self.options.patterns.is_empty() {
            // Leaves out processes that are not among `all`: they use none of the topics whose members this thread asked for.
            let pids: BTreeSet<u32> = all.iter().map(|member| member.pid).collect();
            report.clients.retain(|client| pids.contains(&client.pid));
        }
        Answers {
            report,
            members: all,
            topics_without_members,
        }
    }
}

/// Whether the server shows a topic.
fn is_shown(options: &Options, name: &str) -> bool {
    let mut patterns = options.patterns.iter();
    options.patterns.is_empty() || patterns.any(|pattern| pattern_matches(pattern, name))
}
