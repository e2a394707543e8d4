//! Whether another host is there, whether the link with it has lanes, and when to ask for its lanes' address.

use crate::control_plane::versions;
use crate::keys::{HostLife, HostToken, PLANE_VERSION};
use crate::wire::clip;
use rgaps_client::PeerState;
use std::time::{Duration, Instant};

/// If a host with a token has not answered for this long, the control plane is reopened.
pub const UNANSWERED_LIMIT: Duration = Duration::from_secs(10);

/// The state of another host's presence and lanes. It has no clock and does no I/O: callers pass the time.
#[derive(Debug)]
pub struct Reach {
    /// The host's last life.
    node: HostLife,
    /// The [`PLANE_VERSION`] that the host speaks.
    protocol: u32,
    /// When this host last noticed the other: its token came, or it asked for lanes.
    seen: Instant,
    /// Since when the host's token is gone. None: the token is there, or has not come yet.
    lost: Option<Instant>,
    /// Since when the link with the host has no lanes. None: it has some.
    away: Option<Instant>,
    /// When to ask the host for its lanes' address again. None: it is being asked.
    ask_at: Option<Instant>,
    /// Since when the host has not answered. None: it has answered the last question.
    unanswered: Option<Instant>,
    /// Whether the host was away for so long that no messages are kept for it.
    given_up: bool,
    /// Why there are no lanes. Empty: unknown.
    detail: String,
}

impl Reach {
    /// A host that is there and has no lanes.
    pub fn new(token: HostToken, now: Instant) -> Reach {
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

    /// Call when the host's token came, or when it asked for lanes before its token came.
    pub fn appeared(&mut self, HostToken { node, protocol }: HostToken, now: Instant) {
        (self.node, self.protocol) = (node, protocol);
        (self.seen, self.lost, self.unanswered) = (now, None, None);
        self.given_up = false;
        self.ask_at = Some(now);
    }

    /// Call when the host's token is gone.
    pub fn left(&mut self, now: Instant) {
        self.lost = Some(now);
    }

    /// Call when the host asked for lanes.
    pub fn asked(&mut self, now: Instant) {
        self.seen = now;
    }

    /// Call when the host answered.
    pub fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Call when the host did not answer. Returns whether that has lasted too long.
    pub fn did_not_answer(&mut self, why: &str, now: Instant) -> bool {
        self.detail = clip(why);
        let since = *self.unanswered.get_or_insert(now);
        self.lost.is_none() && now - since >= UNANSWERED_LIMIT
    }

    pub fn ask_again(&mut self, at: Instant) {
        self.ask_at = Some(at);
    }

    /// Sets why there are no lanes. Returns whether the reason is another one than before.
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

    /// Whether to ask the host for its lanes now, `pause` after that was due. `is_linked`: the link leads to this life of the host.
    pub fn ask(&mut self, is_linked: bool, pause: Duration, now: Instant) -> bool {
        let is_due = self.ask_at.is_some_and(|at| now >= at + pause);
        let has_lanes = is_linked && self.is_up();
        let asks = is_due && !has_lanes && self.speaks_same() && self.lost.is_none();
        if asks {
            self.ask_at = None;
        }
        asks
    }

    /// Gives the host up if it has had neither token nor lanes for longer than `outage`. Returns whether it did now. A host that asked for
    /// lanes, but whose token never came, counts as gone since it asked.
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

    /// The state for listings, and why the host is not linked. `error`: the link's own reason, which is newer.
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

    fn token(incarnation: u64) -> HostToken {
        let host = "there".to_owned();
        HostToken {
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
            HostToken {
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
