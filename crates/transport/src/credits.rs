//! Who may put how much in flight. A topic that takes all it can get leaves every other its own share.
//!
//! [`Shares`] divides memory (staging at the sender, landing at the receiver) among topics: each has a
//! *reserve* that nobody else can take, and may grow to a *cap* into what no reserve needs. So
//! `sum of max(reserve, used) <= total` always holds, and a topic below its reserve never waits for another.
//!
//! A *window* is the right of one publisher to send small messages without asking: the receiver has
//! set their landing bytes aside. Both ends count bytes from the start of the link and never back, so a
//! limit that arrives twice or late does no harm.

use std::collections::BTreeMap;
use thiserror::Error;

/// Topics with a share at most.
pub const TOPICS_MAX: usize = 4096;

/// Memory divided among topics.
#[derive(Clone, Debug)]
pub struct Shares {
    name: &'static str,
    total: u64,
    topics: BTreeMap<u64, Share>,
    /// The sum of max(reserve, used).
    bound: u64,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    reserve: u64,
    cap: u64,
    used: u64,
}

impl Share {
    fn bound(self) -> u64 {
        self.reserve.max(self.used)
    }
}

/// Why a topic gets no share.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShareError {
    /// What is not promised to others is less than the reserve.
    #[error("{name}: a topic needs a reserve of {reserve} bytes, but only {free} of {total} are free; raise the quota, or carry fewer topics")]
    Quota {
        /// The quota.
        name: &'static str,
        /// Its size.
        total: u64,
        /// What was asked for.
        reserve: u64,
        /// What is not bound.
        free: u64,
    },
    /// The cap is smaller than the reserve or larger than the whole.
    #[error("{name}: a cap of {cap} bytes is outside the limits, which are the reserve and the quota of {total} bytes")]
    Cap {
        /// The quota.
        name: &'static str,
        /// Its size.
        total: u64,
        /// What was asked for.
        cap: u64,
    },
    /// There are [`TOPICS_MAX`] already.
    #[error("{name}: the limit of {TOPICS_MAX} topics is reached")]
    Topics {
        /// The quota.
        name: &'static str,
    },
    /// It has one.
    #[error("{name}: topic {topic} already has a share")]
    Twice {
        /// The quota.
        name: &'static str,
        /// The topic.
        topic: u64,
    },
}

/// What came of taking bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// They are taken.
    Taken,
    /// Not before something is given back: by this topic if it is at its cap, else by any.
    Full,
    /// Never: the topic has no share, or its cap is smaller.
    Never,
}

impl Shares {
    /// Divides `total` bytes; `name` is the quota's name in messages.
    pub fn new(name: &'static str, total: u64) -> Self {
        Self {
            name,
            total,
            topics: BTreeMap::new(),
            bound: 0,
        }
    }

    /// Gives a topic its share.
    pub fn open(&mut self, topic: u64, reserve: u64, cap: u64) -> Result<(), ShareError> {
        let (name, total) = (self.name, self.total);
        if self.topics.contains_key(&topic) {
            return Err(ShareError::Twice { name, topic });
        }
        if self.topics.len() == TOPICS_MAX {
            return Err(ShareError::Topics { name });
        }
        if cap < reserve || cap > total {
            return Err(ShareError::Cap { name, total, cap });
        }
        let free = total - self.bound;
        if reserve > free {
            return Err(ShareError::Quota {
                name,
                total,
                reserve,
                free,
            });
        }
        self.bound += reserve;
        self.topics.insert(
            topic,
            Share {
                reserve,
                cap,
                used: 0,
            },
        );
        Ok(())
    }

    /// Takes the share back; false as long as some of it is used.
    pub fn close(&mut self, topic: u64) -> bool {
        match self.topics.get(&topic) {
            Some(share) if share.used == 0 => {
                self.bound -= share.reserve;
                self.topics.remove(&topic);
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    /// Takes bytes for a topic.
    pub fn take(&mut self, topic: u64, bytes: u64) -> Take {
        let Some(share) = self.topics.get_mut(&topic) else {
            return Take::Never;
        };
        if bytes > share.cap {
            return Take::Never;
        }
        if bytes > share.cap - share.used {
            return Take::Full;
        }
        let grown = Share {
            used: share.used + bytes,
            ..*share
        };
        let growth = grown.bound() - share.bound();
        if growth > self.total - self.bound {
            return Take::Full;
        }
        self.bound += growth;
        *share = grown;
        Take::Taken
    }

    /// Gives bytes back that were taken.
    ///
    /// # Panics
    /// If they were not: our own books are wrong.
    pub fn give(&mut self, topic: u64, bytes: u64) {
        let share = self
            .topics
            .get_mut(&topic)
            .expect("a topic that took has a share");
        let left = share
            .used
            .checked_sub(bytes)
            .expect("nobody gives back more than was taken");
        let shrunk = Share {
            used: left,
            ..*share
        };
        self.bound -= share.bound() - shrunk.bound();
        *share = shrunk;
    }

    /// What is neither promised nor used.
    pub fn free(&self) -> u64 {
        self.total - self.bound
    }

    /// What a topic uses.
    pub fn used(&self, topic: u64) -> u64 {
        self.topics.get(&topic).map_or(0, |share| share.used)
    }
}

/// The sender's end of a publisher's window.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendWindow {
    charged: u64,
    limit: u64,
}

impl SendWindow {
    /// Charges a message; the sum after it travels with it. `None` before the limit rises.
    pub fn charge(&mut self, bytes: u64) -> Option<u64> {
        let charged = self.charged.checked_add(bytes)?;
        if charged > self.limit {
            return None;
        }
        self.charged = charged;
        Some(charged)
    }

    /// The receiver's limit; a lower one than the last came late.
    pub fn raise(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// The sum of what was charged.
    pub fn charged(&self) -> u64 {
        self.charged
    }
}

/// A peer that charges what it has no right to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer charges {bytes} bytes up to {end}, but has charged {seen} before and may charge up to {limit}")]
pub struct WindowLie {
    /// The message's bytes.
    pub bytes: u64,
    /// The sum that it names.
    pub end: u64,
    /// The sum before it.
    pub seen: u64,
    /// The limit that it was told, or will be.
    pub limit: u64,
}

/// The receiver's end, which sees the publisher's messages in their order.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWindow {
    seen: u64,
    limit: u64,
    held: u64,
}

impl ReceiveWindow {
    /// A window of so many bytes.
    pub fn new(window_bytes: u64) -> Self {
        Self {
            seen: 0,
            limit: window_bytes,
            held: 0,
        }
    }

    /// Checks a charge before its order is known: whether it lies below the limit.
    pub fn admits(&self, bytes: u64, end: u64) -> Result<(), WindowLie> {
        let lie = WindowLie {
            bytes,
            end,
            seen: self.seen,
            limit: self.limit,
        };
        let start = end.checked_sub(bytes).ok_or(lie)?;
        if start < self.seen || end > self.limit {
            return Err(lie);
        }
        Ok(())
    }

    /// The next message in order. What was charged between the last one and this one was given up by the
    /// sender and never arrives: it comes back at once.
    pub fn arrive(&mut self, bytes: u64, end: u64) -> Result<(), WindowLie> {
        self.admits(bytes, end)?;
        self.skip_to(end - bytes);
        self.seen = end;
        self.held += bytes;
        Ok(())
    }

    /// The sender gave up everything charged below `end` that did not arrive.
    pub fn give_up(&mut self, end: u64) -> Result<(), WindowLie> {
        self.admits(0, end)?;
        self.skip_to(end);
        Ok(())
    }

    fn skip_to(&mut self, start: u64) {
        self.limit += start - self.seen;
        self.seen = start;
    }

    /// The bytes of a message that arrived are free again, in any order.
    ///
    /// # Panics
    /// If they did not arrive: our own books are wrong.
    pub fn release(&mut self, bytes: u64) {
        self.held = self
            .held
            .checked_sub(bytes)
            .expect("only what arrived is released");
        self.limit += bytes;
    }

    /// Gives more, once.
    pub fn widen(&mut self, bytes: u64) {
        self.limit += bytes;
    }

    /// What may be charged behind the last message in order.
    pub fn open(&self) -> u64 {
        self.limit - self.seen
    }

    /// The peer counts from zero again; what is held from before is not free for it.
    pub fn restart(&mut self, window_bytes: u64) {
        self.seen = 0;
        self.limit = window_bytes.saturating_sub(self.held);
    }

    /// What the sender may charge up to.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What is held of it.
    pub fn held(&self) -> u64 {
        self.held
    }
}

#[cfg(test)]
#[path = "credits_tests.rs"]
mod tests;
