//! Rules for topics that may cross between hosts, by host and topic; and quotas.

use super::ByteSize;
use crate::access::pattern_matches;
use serde::{Deserialize, Serialize};

/// Largest number of rules, and of quotas.
const MAX_RULES: usize = 256;
/// Largest number of patterns of a rule or quota.
const MAX_PATTERNS: usize = 64;
/// Longest name of a rule or quota.
const MAX_NAME: usize = 64;

/// Which topics may be sent to, or received from, which hosts. The first rule that matches decides; a topic without a matching
/// rule is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRule {
    /// Its name, in listings and logs.
    pub name: String,
    /// A pattern for the name of the other host, with `*` and `?`.
    #[serde(default = "anyone")]
    pub peer: String,
    /// Patterns of topics, as in access rules.
    pub topics: Vec<String>,
    /// Whether the rule concerns topics that go to that host, or that come from it.
    #[serde(default)]
    pub direction: Direction,
    /// Whether the rule allows or denies them.
    pub action: Action,
}

fn anyone() -> String {
    "*".to_owned()
}

/// The direction in which messages cross.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Both directions.
    #[default]
    Both,
    /// To the other host.
    Send,
    /// From the other host.
    Receive,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The topic may cross.
    Allow,
    /// The topic may not cross.
    Deny,
}

/// How much topics may use together. The first quota that matches a topic and a host applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Its name, in listings and logs.
    pub name: String,
    /// A pattern for the name of the other host.
    #[serde(default = "anyone")]
    pub peer: String,
    /// Patterns of topics.
    pub topics: Vec<String>,
    /// Longest message; longer ones do not cross. A publisher needs this size times the number of messages that it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_max: Option<ByteSize>,
    /// Bytes that this host holds for messages to other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging_max: Option<ByteSize>,
    /// Bytes that messages from other hosts may take here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landing_max: Option<ByteSize>,
    /// Bytes per second that each of the topics may send to each of the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_max: Option<ByteSize>,
}

/// `*` for all topics, which matches every topic.
fn fits(patterns: &[String], peer: &str, host: &str, topic: &str) -> bool {
    pattern_matches(peer, host) && matches(patterns, topic)
}

pub(super) fn matches(patterns: &[String], topic: &str) -> bool {
    patterns.iter().any(|one| pattern_matches(one, topic))
}

/// Whether a topic may cross in this direction, to or from this host; if not, the rule that forbids it.
pub(super) fn may_cross(
    rules: &[LinkRule],
    direction: Direction,
    host: &str,
    topic: &str,
) -> Result<(), String> {
    let mut of_direction = rules
        .iter()
        .filter(|rule| rule.direction == Direction::Both || rule.direction == direction);
    match of_direction.find(|rule| fits(&rule.topics, &rule.peer, host, topic)) {
        Some(rule) if rule.action == Action::Deny => Err(format!(
            "links.rules '{}' does not let this topic {}",
            rule.name,
            match direction {
                Direction::Send => format!("go to '{host}'"),
                _ => format!("come from '{host}'"),
            }
        )),
        _ => Ok(()),
    }
}

/// Whether a topic may come from some host, known or not; if not, the rule that forbids it.
pub(super) fn may_arrive(rules: &[LinkRule], topic: &str) -> Result<(), String> {
    for rule in rules {
        let about = rule.direction != Direction::Send;
        if !about || !matches(&rule.topics, topic) {
            continue;
        }
        match rule.action {
            Action::Allow => return Ok(()),
            Action::Deny if rule.peer.chars().all(|c| c == '*') => {
                return Err(format!(
                    "links.rules '{}' does not let this topic come from other hosts",
                    rule.name
                ))
            }
            Action::Deny => {}
        }
    }
    Ok(())
}

pub(super) fn quota<'a>(quotas: &'a [Quota], host: &str, topic: &str) -> Option<&'a Quota> {
    let mut quotas = quotas.iter();
    quotas.find(|quota| fits(&quota.topics, &quota.peer, host, topic))
}

pub(super) fn check_patterns(
    what: &str,
    name: &str,
    peer: &str,
    topics: &[String],
) -> Result<(), String> {
    let named = !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
    if !named {
        return Err(format!(
            "links.{what}: name = {name:?}: a name has 1 to {MAX_NAME} characters"
        ));
    }
    if peer.is_empty() || peer.contains('/') {
        return Err(format!(
            "links.{what} '{name}': peer = {peer:?} is not a host; write \"robot-*\", or \"*\" for all"
        ));
    }
    if topics.is_empty() || topics.len() > MAX_PATTERNS || topics.iter().any(String::is_empty) {
        return Err(format!(
            "links.{what} '{name}': topics must have 1 to {MAX_PATTERNS} patterns, such as \"camera/**\""
        ));
    }
    Ok(())
}

pub(super) fn check(
    rules: &[LinkRule],
    quotas: &[Quota],
    rate_max: Option<ByteSize>,
) -> Result<(), String> {
    if rules.len() > MAX_RULES || quotas.len() > MAX_RULES {
        return Err(format!(
            "links.rules and links.quotas can have at most {MAX_RULES} entries each"
        ));
    }
    for rule in rules {
        check_patterns("rules", &rule.name, &rule.peer, &rule.topics)?;
    }
    let mut names = std::collections::BTreeSet::new();
    for quota in quotas {
        let name = &quota.name;
        check_patterns("quotas", name, &quota.peer, &quota.topics)?;
        if !names.insert(name) {
            return Err(format!("links.quotas: two are called '{name}'"));
        }
        let sizes = [
            ("message_max", quota.message_max),
            ("staging_max", quota.staging_max),
            ("landing_max", quota.landing_max),
            ("rate_max", quota.rate_max),
        ];
        for (key, bytes) in sizes {
            if bytes == Some(ByteSize(0)) {
                return Err(format!(
                    "links.quotas '{name}': {key} = 0: it must be more than 0"
                ));
            }
        }
        if quota.message_max.is_none()
            && (quota.staging_max.is_some() || quota.landing_max.is_some())
        {
            return Err(format!(
                "links.quotas '{name}': staging_max and landing_max need message_max; without it nobody \
                 knows what a topic needs"
            ));
        }
        if let (Some(rate), Some(all)) = (quota.rate_max, rate_max) {
            if rate > all {
                return Err(format!(
                    "links.quotas '{name}': rate_max = {rate} is more than links.rate_max = {all}"
                ));
            }
        }
    }
    if rate_max == Some(ByteSize(0)) {
        return Err("links.rate_max = 0: it must be more than 0".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, peer: &str, topic: &str, direction: Direction, action: Action) -> LinkRule {
        LinkRule {
            name: name.to_owned(),
            peer: peer.to_owned(),
            topics: vec![topic.to_owned()],
            direction,
            action,
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = [
            rule(
                "one",
                "robot-1",
                "camera/raw",
                Direction::Send,
                Action::Allow,
            ),
            rule(
                "raw",
                "robot-*",
                "camera/raw",
                Direction::Send,
                Action::Deny,
            ),
            rule("in", "*", "command/**", Direction::Receive, Action::Deny),
        ];
        let send = |host, topic| may_cross(&rules, Direction::Send, host, topic);
        let receive = |host, topic| may_cross(&rules, Direction::Receive, host, topic);
        send("robot-1", "camera/raw").unwrap();
        let why = send("robot-2", "camera/raw").unwrap_err();
        assert!(
            why.contains("'raw'") && why.contains("go to 'robot-2'"),
            "{why}"
        );
        send("desk", "camera/raw").unwrap();
        receive("robot-2", "camera/raw").unwrap();
        send("desk", "command/go").unwrap();
        let why = receive("desk", "command/go").unwrap_err();
        assert!(
            why.contains("'in'") && why.contains("come from 'desk'"),
            "{why}"
        );
        send("robot-2", "camera/small").unwrap();
    }

    #[test]
    fn a_topic_is_asked_for_as_long_as_somebody_may_send_it() {
        let deny = |peer| rule("no", peer, "a", Direction::Both, Action::Deny);
        let allow = |peer| rule("yes", peer, "a", Direction::Receive, Action::Allow);
        may_arrive(&[], "a").unwrap();
        may_arrive(&[deny("robot-*")], "a").unwrap();
        may_arrive(&[allow("robot-1"), deny("*")], "a").unwrap();
        may_arrive(&[deny("*"), allow("robot-1")], "a").unwrap_err();
        may_arrive(&[deny("*")], "b").unwrap();
        may_arrive(&[rule("no", "*", "a", Direction::Send, Action::Deny)], "a").unwrap();
    }

    #[test]
    fn what_cannot_be_is_named() {
        let quota = Quota {
            name: "q".to_owned(),
            peer: "*".to_owned(),
            topics: vec!["a".to_owned()],
            message_max: Some(ByteSize(1)),
            staging_max: None,
            landing_max: Some(ByteSize(1)),
            rate_max: Some(ByteSize(10)),
        };
        let one = std::slice::from_ref(&quota);
        check(&[], one, Some(ByteSize(10))).unwrap();
        let why = check(&[], one, Some(ByteSize(9))).unwrap_err();
        assert!(why.contains("links.rate_max"), "{why}");
        let twice = [quota.clone(), quota.clone()];
        assert!(check(&[], &twice, None).unwrap_err().contains("two"));
        for (change, word) in [
            (
                Quota {
                    message_max: None,
                    ..quota.clone()
                },
                "message_max",
            ),
            (
                Quota {
                    landing_max: Some(ByteSize(0)),
                    ..quota.clone()
                },
                "landing_max = 0",
            ),
            (
                Quota {
                    topics: vec![],
                    ..quota.clone()
                },
                "patterns",
            ),
            (
                Quota {
                    name: String::new(),
                    ..quota.clone()
                },
                "name",
            ),
            (
                Quota {
                    peer: "a/b".to_owned(),
                    ..quota.clone()
                },
                "is not a host",
            ),
        ] {
            let why = check(&[], &[change], None).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
