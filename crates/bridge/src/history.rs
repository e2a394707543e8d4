//! History for late joiners of transient-local topics. It speaks the protocol of `rmw_zenoh`, which is that of `AdvancedPublisher`
//! and `AdvancedSubscriber` of the crate `zenoh-ext`. This module does not use that crate, since its interface is not stable.
//!
//! ```text
//! <key>/@adv/pub/<session>/<publisher>/_     key of a publisher's liveliness token, and of its queryable, which answers with messages
//! ```
//! A subscriber queries each publisher whose token it sees. A message may come twice, live and as an answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zenoh::bytes::ZBytes;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::query::{ConsolidationMode, Query, Queryable};
use zenoh::sample::{Sample, SampleKind};
use zenoh::time::Timestamp;
use zenoh::{Session, Wait as _};

/// A message of a history.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) payload: ZBytes,
    pub(crate) attachment: Vec<u8>,
    pub(crate) timestamp: Timestamp,
}

type Messages = Arc<Mutex<VecDeque<Message>>>;

fn lock(messages: &Messages) -> MutexGuard<'_, VecDeque<Message>> {
    messages.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The history of one of the bridge's Zenoh publishers, for late subscribers on the other side.
pub(crate) struct Kept {
    messages: Messages,
    depth: usize,
    _token: LivelinessToken,
    _queryable: Queryable<()>,
}

impl Kept {
    /// Declares the queryable and the token of an empty history. `number`: differs for each publisher of this session.
    pub(crate) fn declare(
        session: &Session,
        key: &str,
        number: usize,
        depth: u32,
    ) -> zenoh::Result<Kept> {
        let messages = Messages::default();
        let own = format!("{key}/@adv/pub/{}/{number}/_", session.zid());
        let (kept, to) = (messages.clone(), key.to_owned());
        let queryable = session.declare_queryable(own.clone());
        let queryable = queryable.callback(move |query| answer(&query, &to, &kept));
        Ok(Kept {
            messages,
            depth: depth as usize,
            _queryable: queryable.wait()?,
            // Declared last: a subscriber that sees the token queries at once.
            _token: session.liveliness().declare_token(own).wait()?,
        })
    }

    pub(crate) fn push(&self, message: Message) {
        let mut messages = lock(&self.messages);
        messages.push_back(message);
        while messages.len() > self.depth {
            messages.pop_front();
        }
    }

    /// Drops all messages. The next subscriber gets them live, when the bridge joins the topic again.
    pub(crate) fn clear(&self) {
        lock(&self.messages).clear();
    }
}

fn answer(query: &Query, key: &str, kept: &Messages) {
    let most = query.parameters().get("_max");
    let most = most
        .and_then(|most| most.parse().ok())
        .unwrap_or(usize::MAX);
    let messages = lock(kept).clone();
    for message in messages.iter().skip(messages.len().saturating_sub(most)) {
        let reply = query.reply(key, message.payload.clone());
        let reply = reply.attachment(message.attachment.clone());
        if let Err(error) = reply.timestamp(message.timestamp).wait() {
            tracing::debug!(%error, "a kept message cannot be sent");
        }
    }
}

/// Queries the history of each publisher of `key`, except for this session's, as soon as its token is seen, for at most `depth`
/// messages. Calls `take` with each message, from a thread of Zenoh.
pub(crate) fn ask(
    session: &Session,
    key: &str,
    depth: u32,
    take: impl Fn(Sample) + Clone + Send + Sync + 'static,
) -> zenoh::Result<Subscriber<()>> {
    let asking = session.clone();
    let own = format!("/{}/", session.zid());
    let liveliness = session.liveliness();
    let tokens = liveliness.declare_subscriber(format!("{key}/@adv/pub/**"));
    let tokens = tokens.history(true).callback(move |token| {
        let is_own = token.key_expr().contains(&own);
        if is_own || token.kind() == SampleKind::Delete {
            return;
        }
        // `_anyke` allows answers with another key than the query's: they have the topic's key.
        let question = format!("{}?_anyke;_max={depth}", token.key_expr());
        let take = take.clone();
        let asked = asking.get(question);
        // By default Zenoh passes on only the newest answer of each key.
        let asked = asked.consolidation(ConsolidationMode::None);
        let asked = asked.callback(move |reply| {
            if let Ok(sample) = reply.into_result() {
                take(sample);
            }
        });
        if let Err(error) = asked.wait() {
            tracing::debug!(%error, "kept messages cannot be asked for");
        }
    });
    tokens.wait()
}
