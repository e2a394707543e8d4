//! Whether another host is there, whether the link with it has lanes, and when it is asked for them.

use crate::control_plane::versions;
use crate::keys::{HostLife, Token, PLANE_VERSION};
use crate::wire::clip;
use rgaps_client::PeerState;
use std::time::{Duration, Instant};

/// The control plane is opened anew if a host that is there has not answered for so long.
pub const UNANSWERED_LIMIT: Duration = Duration::from_secs(10);

/// What is known of another host: it has no clock and does nothing.
#[derive(Debug)]
pub struct Reach {
    /// The host's last life.
    node: HostLife,
    protocol: u32,
    /// When it was there last: its token came, or it asked for lanes.
    seen: Instant,
    /// Since when it is gone.
    lost: Option<Instant>,
    /// Since when its link has no lanes.
    away: Option<Instant>,
    /// When it is asked for its lanes again. None: while it is being asked.
    ask_at: Option<Instant>,
    /// Since when it does not answer.
    unanswered: Option<Instant>,
    /// It was away for so long that nothing is kept for it.
    given_up: bool,
    /// Why there are no lanes.
    detail: String,
}

impl Reach {
    /// A host that is there and has no lanes.
    pub fn new(token: Token, now: Instant) -> Reach {
        Reach {
            node: token.node,
            protocol: token.protocol,
            seen: now,
            lost: None,
            away: Some(now),
            ask_at: Some(now),
            unanswered: None,
            given_up: false,
            detail: String::new(),
        }
    }

    /// Its token came, or it asked for lanes before its token came.
    pub fn appeared(&mut self, Token { node, protocol }: Token, now: Instant) {
        (self.node, self.protocol) = (node, protocol);
        (self.seen, self.lost, self.unanswered) = (now, None, None);
        self.given_up = false;
        self.ask_at = Some(now);
    }

    /// Its token is gone.
    pub fn left(&mut self, now: Instant) {
        self.lost = Some(now);
    }

    /// It asked for lanes.
    pub fn asked(&mut self, now: Instant) {
        self.seen = now;
    }

    /// It answered.
    pub fn answered(&mut self) {
        self.unanswered = None;
    }

    /// It did not answer. Whether that has lasted too long.
    pub fn did_not_answer(&mut self, why: &str, now: Instant) -> bool {
        self.detail = clip(why);
        let since = *self.unanswered.get_or_insert(now);
        self.lost.is_none() && now - since >= UNANSWERED_LIMIT
    }

    pub fn ask_again(&mut self, at: Instant) {
        self.ask_at = Some(at);
    }

    /// There are no lanes for this reason. Whether another one was known.
    pub fn failed(&mut self, why: &str) -> bool {
        let why = clip(why);
        let before = std::mem::replace(&mut self.detail, why);
        before != self.detail
    }

    pub fn lanes_up(&mut self) {
        self.away = None;
    }

    pub fn lanes_lost(&mut self, why: String, now: Instant) {
        self.detail = why;
        self.away.get_or_insert(now);
    }

    /// Whether to ask it for its lanes now, `pause` after it was due. `is_linked`: the link is with this life of it.
    pub fn ask(&mut self, is_linked: bool, pause: Duration, now: Instant) -> bool {
        let is_due = self.ask_at.is_some_and(|at| now >= at + pause);
        let has_lanes = is_linked && self.is_up();
        let asks = is_due && !has_lanes && self.speaks_same() && self.lost.is_none();
        if asks {
            self.ask_at = None;
        }
        asks
    }

    /// Whether it is given up now: it was away for longer than `outage`. It is not, as long as there are lanes, whatever the
    /// control plane says. A token that never came cannot go.
    pub fn give_up(&mut self, has_token: bool, outage: Duration, now: Instant) -> bool {
        let lost = self.lost.or((!has_token).then_some(self.seen));
        let since = lost.zip(self.away).map(|(lost, away)| lost.max(away));
        let is_over = !self.given_up && since.is_some_and(|since| now - since > outage);
        if is_over {
            (self.given_up, self.lost) = (true, lost);
        }
        is_over
    }

    pub fn node(&self) -> &HostLife {
        &self.node
    }

    pub fn protocol(&self) -> u32 {
        self.protocol
    }

    /// Whether it speaks the version of this host.
    pub fn speaks_same(&self) -> bool {
        self.protocol == PLANE_VERSION
    }

    pub fn is_up(&self) -> bool {
        self.away.is_none()
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// As it is listed: the state, and why it is not linked. `error`: the link's own reason, which is newer.
    pub fn listed(&self, error: Option<&str>) -> (PeerState, String) {
        let state = match (self.speaks_same(), self.lost, self.is_up()) {
            (false, ..) => PeerState::Refused,
            (true, Some(_), false) => PeerState::Lost,
            (true, _, true) => PeerState::Linked,
            (true, None, false) => PeerState::Joining,
        };
        let detail = match state {
            PeerState::Refused => versions(&self.node.host, self.protocol),
            PeerState::Linked => String::new(),
            _ => error.unwrap_or(&self.detail).to_owned(),
        };
        (state, clip(&detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTAGE: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    fn token(incarnation: u64) -> Token {
        let host = "there".to_owned();
        Token {
            node: HostLife { host, incarnation },
            protocol: PLANE_VERSION,
        }
    }

    #[test]
    fn a_host_is_asked_once_until_it_is_due_again() {
        let now = Instant::now();
        let mut reach = Reach::new(token(1), now);
        assert!(!reach.ask(false, SECOND, now), "the pause is not over");
        assert!(reach.ask(false, Duration::ZERO, now));
        assert!(!reach.ask(false, Duration::ZERO, now + OUTAGE));
        reach.ask_again(now + SECOND);
        assert!(!reach.ask(false, Duration::ZERO, now));
        assert!(reach.ask(false, Duration::ZERO, now + SECOND));
    }

    #[test]
    fn a_host_with_lanes_is_asked_only_as_another_life() {
        let now = Instant::now();
        let mut reach = Reach::new(token(1), now);
        reach.lanes_up();
        assert!(!reach.ask(true, Duration::ZERO, now));
        reach.appeared(token(2), now);
        assert!(reach.ask(false, Duration::ZERO, now));
    }

    #[test]
    fn a_host_that_is_gone_or_speaks_another_version_is_not_asked() {
        let now = Instant::now();
        let mut reach = Reach::new(token(1), now);
        reach.left(now);
        assert!(!reach.ask(false, Duration::ZERO, now));
        assert_eq!(reach.listed(None).0, PeerState::Lost);
        reach.appeared(
            Token {
                protocol: PLANE_VERSION + 1,
                ..token(2)
            },
            now,
        );
        assert!(!reach.ask(false, Duration::ZERO, now));
        assert_eq!(reach.listed(None).0, PeerState::Refused);
    }

    #[test]
    fn a_host_is_given_up_once_when_neither_its_token_nor_lanes_are_there() {
        let now = Instant::now();
        let late = now + OUTAGE + SECOND;
        let mut reach = Reach::new(token(1), now);
        assert!(!reach.give_up(true, OUTAGE, late), "its token is there");
        reach.lanes_up();
        reach.left(now);
        assert!(!reach.give_up(false, OUTAGE, late), "its lanes are there");
        reach.lanes_lost("cut".to_owned(), now + SECOND);
        assert!(!reach.give_up(false, OUTAGE, late), "they were, just now");
        assert!(reach.give_up(false, OUTAGE, late + SECOND));
        assert!(reach.is_given_up());
        assert!(!reach.give_up(false, OUTAGE, late + OUTAGE));
        reach.appeared(token(2), late);
        assert!(!reach.is_given_up());
    }

    #[test]
    fn a_host_whose_token_never_came_is_given_up_after_it_asked_last() {
        let now = Instant::now();
        let mut reach = Reach::new(token(1), now);
        reach.asked(now + SECOND);
        assert!(!reach.give_up(false, OUTAGE, now + OUTAGE + SECOND));
        assert!(reach.give_up(false, OUTAGE, now + OUTAGE + 2 * SECOND));
        assert!(reach.is_lost());
    }

    #[test]
    fn a_host_that_does_not_answer_for_long_is_overdue_unless_it_is_gone() {
        let now = Instant::now();
        let late = now + UNANSWERED_LIMIT;
        let mut reach = Reach::new(token(1), now);
        assert!(!reach.did_not_answer("no answer", now));
        reach.answered();
        assert!(!reach.did_not_answer("no answer", late));
        assert!(reach.did_not_answer("no answer", late + UNANSWERED_LIMIT));
        assert_eq!(reach.listed(None).1, "no answer");
        reach.left(late);
        assert!(!reach.did_not_answer("no answer", late + UNANSWERED_LIMIT));
    }
}
