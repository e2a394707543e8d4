//! The data of the page: the report of `rgaps top`, and the publishers and subscribers of each topic.

use crate::hub::{Figures, Hub, Shown};
use crate::options::Options;
use crate::overview::RealmReport;
use crate::protocol::Users;
use rgaps::TopicInfo;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After a page's last request, `look` asks the daemon for this long.
const ASKED: Duration = Duration::from_secs(3);
/// Older answers of the daemon are not shown. Also limits how long a page waits for the first answer.
const STALE: Duration = Duration::from_secs(3);

/// A publisher or subscriber.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Member {
    topic: String,
    role: &'static str,
    process: String,
    pub(crate) pid: u32,
}

/// The answers of the daemon at a moment.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) report: RealmReport,
    pub(crate) members: Vec<Member>,
    /// Topics whose members are not in `members`.
    pub(crate) topics_without_members: usize,
}

impl Answers {
    /// The users of each topic.
    pub(crate) fn graph(&self) -> BTreeMap<String, Users> {
        let topics = self.report.topics.iter();
        let mut graph: BTreeMap<String, Users> = topics
            .map(|topic| (topic.topic.clone(), Users::default()))
            .collect();
        for member in &self.members {
            let (publishers, subscribers) = graph.entry(member.topic.clone()).or_default();
            let process = format!("{} ({})", member.process, member.pid);
            match member.role {
                "publisher" => publishers.insert(process),
                "left" => continue,
                _ => subscribers.insert(process),
            };
        }
        graph
    }
}

#[derive(Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    report: &'a RealmReport,
    members: &'a [Member],
    topics_without_members: usize,
    shown: Vec<Shown>,
    view: Figures,
}

#[derive(Default)]
struct ViewState {
    answers: Answers,
    taken: Option<Instant>,
    /// When a page last asked.
    asked: Option<Instant>,
    /// Why the last look failed.
    error: Option<String>,
}

impl ViewState {
    fn is_fresh(&self) -> bool {
        self.taken.is_some_and(|taken| taken.elapsed() < STALE)
    }
}

/// The last answers of the daemon, which all pages share, so that no page waits for the daemon.
#[derive(Default)]
pub(crate) struct Overview {
    state: Mutex<ViewState>,
    changed: Condvar,
}

impl Overview {
    fn lock(&self) -> MutexGuard<'_, ViewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a page has asked recently.
    pub(crate) fn is_asked(&self) -> bool {
        let asked = self.lock().asked;
        asked.is_some_and(|asked| asked.elapsed() < ASKED)
    }

    pub(crate) fn set(&self, answers: Answers) {
        let mut state = self.lock();
        (state.answers, state.error) = (answers, None);
        state.taken = Some(Instant::now());
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn set_error(&self, error: String) {
        self.lock().error = Some(error);
    }

    /// The page's data as JSON; or why there is none.
    pub(crate) fn json(&self, options: &Options, hub: &Hub) -> Result<Vec<u8>, String> {
        let mut state = self.lock();
        state.asked = Some(Instant::now());
        // `look` answers soon after the first request of a page.
        let until = Instant::now() + STALE;
        while !state.is_fresh() && state.error.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if !state.is_fresh() {
            let silent = || "the daemon does not answer; messages go on without it".to_owned();
            return Err(state.error.clone().unwrap_or_else(silent));
        }
        let Answers {
            report,
            members,
            topics_without_members,
        } = &state.answers;
        let page = Page {
            report,
            members,
            topics_without_members: *topics_without_members,
            shown: hub.shown(),
            view: hub.figures(options.rate, options.bytes_max),
        };
        serde_json::to_vec(&page).map_err(|error| error.to_string())
    }
}

pub(crate) fn members(info: &TopicInfo) -> impl Iterator<Item = Member> + '_ {
    let member = |role, process: &str, pid| Member {
        topic: info.row.name.clone(),
        role,
        process: process.to_owned(),
        pid,
    };
    let publishers = info.publishers.iter().map(move |row| match row.orphan {
        true => member("left", &row.client, row.pid),
        false => member("publisher", &row.client, row.pid),
    });
    let subscribers = info.subscribers.iter().map(move |row| match row.observer {
        true => member("observer", &row.client, row.pid),
        false => member("subscriber", &row.client, row.pid),
    });
    publishers.chain(subscribers)
}
