//! Whether two hosts know the same of what one of them wants. The control plane says it topic by topic, and loses a word of
//! it now and then (Zenoh 1.10 did so with one token in some 25,000). So each host says the sum of all that it wants over the
//! link, where nothing is lost, and who knows something else asks for all of it there.

use crate::wire::Said;
use std::time::{Duration, Instant};

/// What a host wants is summed up when it has not changed for so long.
const SETTLED: Duration = Duration::from_millis(500);
/// Another host is asked when its tokens have not said for so long what it says.
const DIFFERS: Duration = Duration::from_secs(1);
/// The same when it says nothing: what it wants changes all the time.
const SAYS_NOTHING: Duration = Duration::from_secs(5);

/// This host's own sum.
pub struct OwnSum {
    sum: u64,
    since: Instant,
}

impl OwnSum {
    /// Of a host that wants nothing yet.
    pub fn new() -> OwnSum {
        OwnSum {
            sum: 0,
            since: Instant::now(),
        }
    }

    /// What is to be said of it now; none: it changes.
    pub fn settled(&mut self, sum: u64, now: Instant) -> Option<u64> {
        if self.sum != sum {
            (self.sum, self.since) = (sum, now);
        }
        (now - self.since >= SETTLED).then_some(sum)
    }
}

/// With another host.
#[derive(Default)]
pub struct Agreement {
    /// What it says.
    said: Option<u64>,
    /// Since when its tokens say something else.
    differs: Option<Instant>,
    /// It is asked what it wants itself.
    pub asks: bool,
    /// Its tokens have said all that it wants; what changes since comes as it changes.
    pub is_whole: bool,
    /// What it was told.
    told: Option<u64>,
}

impl Agreement {
    /// It says the sum of all that it wants.
    pub fn hear(&mut self, sum: u64) {
        self.said = Some(sum);
    }

    /// `known`: the sum of what its tokens say. Whether it is to be asked from now on.
    pub fn look(&mut self, known: u64, now: Instant) -> bool {
        let agrees = self.said == Some(known);
        self.is_whole |= agrees;
        if self.asks || agrees {
            self.differs = None;
            return false;
        }
        let since = *self.differs.get_or_insert(now);
        let patience = match self.said {
            Some(_) => DIFFERS,
            None => SAYS_NOTHING,
        };
        self.asks = now - since >= patience;
        self.asks
    }

    /// Says this host's sum, if that is something new.
    pub fn tell(&mut self, sum: u64) -> Option<Said> {
        let is_new = self.told != Some(sum);
        self.told = Some(sum);
        is_new.then_some(Said::Wanting(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_asked_when_its_tokens_say_something_else_for_long() {
        let mut agreement = Agreement::default();
        let begun = Instant::now();
        assert!(!agreement.look(7, begun) && !agreement.look(7, begun + DIFFERS));
        agreement.hear(8);
        assert!(!agreement.look(7, begun + DIFFERS / 2) && !agreement.is_whole);
        // The token was only late.
        assert!(!agreement.look(8, begun + DIFFERS) && agreement.is_whole);
        assert!(!agreement.look(7, begun + DIFFERS));
        assert!(!agreement.asks && agreement.is_whole);
        assert!(agreement.look(7, begun + 2 * DIFFERS));
        // Once.
        assert!(agreement.asks && !agreement.look(7, begun + 4 * DIFFERS));
    }

    #[test]
    fn a_host_that_says_no_sum_is_asked() {
        let mut agreement = Agreement::default();
        let begun = Instant::now();
        assert!(!agreement.look(7, begun) && !agreement.look(8, begun + DIFFERS));
        assert!(agreement.look(7, begun + SAYS_NOTHING) && !agreement.is_whole);
    }

    #[test]
    fn a_sum_is_said_once_when_it_has_settled() {
        let mut own = OwnSum::new();
        let begun = Instant::now();
        assert_eq!(own.settled(3, begun), None);
        assert_eq!(own.settled(4, begun + SETTLED), None);
        assert_eq!(own.settled(4, begun + 2 * SETTLED), Some(4));
        let mut agreement = Agreement::default();
        assert_eq!(agreement.tell(4), Some(Said::Wanting(4)));
        assert_eq!(agreement.tell(4), None);
    }
}
