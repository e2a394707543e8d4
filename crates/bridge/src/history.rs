//! What transient-local publishers keep for late joiners, as `rmw_zenoh` offers and asks for it (`AdvancedPublisher` and
//! `AdvancedSubscriber` of the crate `zenoh-ext`, whose interface is not stable):
//!
//! ```text
//! <key>/@adv/pub/<session>/<publisher>/_     the key of a liveliness token, and of a queryable that answers with the messages
//! ```
//! A subscriber asks each publisher whose token it sees. A message may come twice, live and as an answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zenoh::bytes::ZBytes;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::query::{ConsolidationMode, Query, Queryable};
use zenoh::sample::{Sample, SampleKind};
use zenoh::time::Timestamp;
use zenoh::{Session, Wait as _};

/// A message that is kept.
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

/// The last messages of a publisher of the bridge, for subscribers that come later.
pub(crate) struct Kept {
    messages: Messages,
    depth: usize,
    _token: LivelinessToken,
    _queryable: Queryable<()>,
}

impl Kept {
    /// `number`: tells the publishers of this session apart.
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
            // Last: who sees it asks.
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

    /// Forgets all: the next subscriber gets them live.
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

/// Has `take` called with the messages that publishers of `key` kept, as soon as each publisher is there, but for those of this session.
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
        // The answers have the key of the topic, and not that of the question.
        let question = format!("{}?_anyke;_max={depth}", token.key_expr());
        let take = take.clone();
        let asked = asking.get(question);
        // All answers, and not the newest of a key.
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
