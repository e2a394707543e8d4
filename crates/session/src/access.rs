//! Checks topic names, and which users may publish and subscribe to which topics.

use crate::config::{AccessRule, Principal};
use crate::Credentials;
use rgaps_layout::MAX_TOPIC_NAME;

/// Name of the class of topics that no rule names: open to all who can open the socket.
pub const DEFAULT_CLASS: &str = "default";

/// The text is not a valid topic name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a valid topic name: {reason}")]
pub struct TopicNameError {
    /// The text.
    pub name: String,
    /// Why it is refused.
    pub reason: &'static str,
}

/// The full name of a topic that was written where there is no namespace, as in configuration files: `/camera`, as ROS 2 writes
/// it, means `camera`. Nodes use [`TopicNames`](crate::TopicNames).
pub fn bare_topic_name(name: &str) -> &str {
    name.strip_prefix('/').unwrap_or(name)
}

/// Checks a bare topic name: 1 to 255 bytes of UTF-8 without control characters; parts between
/// slashes are not empty, and a part is not `.` or `..`. `*` and `?` are reserved for patterns.
pub fn check_topic_name(name: &str) -> Result<(), TopicNameError> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_TOPIC_NAME {
        "it is longer than 255 bytes"
    } else if name.chars().any(char::is_control) {
        "it has control characters"
    } else if is_pattern(name) {
        "'*' and '?' are reserved for patterns"
    } else if name.split('/').any(str::is_empty) {
        "it has an empty part: remove a slash at the end, or one of two in a row"
    } else if name.split('/').any(|part| matches!(part, "." | "..")) {
        "'.' and '..' are not allowed as parts"
    } else {
        return Ok(());
    };
    Err(TopicNameError {
        name: name.chars().take(MAX_TOPIC_NAME).collect(),
        reason,
    })
}

/// Whether a name is a pattern, which stands for all topics that match it ([`pattern_matches`]).
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Whether `pattern` matches `name`, a bare topic name. `*` matches any characters within a part, `?` matches
/// one, a part `**` matches any number of parts. A leading slash of the pattern is ignored, as in names.
pub fn pattern_matches(pattern: &str, name: &str) -> bool {
    let patterns: Vec<&str> = bare_topic_name(pattern).split('/').collect();
    let parts: Vec<&str> = name.split('/').collect();
    matches_with(
        &patterns,
        &parts,
        |p| *p == "**",
        |p, part| part_matches(p, part),
    )
}

fn part_matches(pattern: &str, part: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let part: Vec<char> = part.chars().collect();
    matches_with(&pattern, &part, |p| *p == '*', |p, c| *p == '?' || p == c)
}

/// Greedy wildcard matching that backtracks only to the last wildcard, in at most `pattern * text` steps. An earlier wildcard
/// never needs to match more, because the later one can match anything that the earlier one left.
fn matches_with<P, T>(
    pattern: &[P],
    text: &[T],
    is_wildcard: impl Fn(&P) -> bool,
    is_match: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(one) if is_wildcard(one) => {
                back = Some((p, t));
                p += 1;
            }
            Some(one) if is_match(one, &text[t]) => {
                p += 1;
                t += 1;
            }
            _ => match back {
                Some((wildcard, taken)) => {
                    p = wildcard + 1;
                    t = taken + 1;
                    back = Some((wildcard, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(is_wildcard)
}

/// An access rule names a user or group that this machine does not know, or has no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("access rule '{rule}': {reason}")]
pub struct AccessError {
    /// The rule.
    pub rule: String,
    /// What is wrong, and what to do.
    pub reason: String,
}

/// Topics with the same access rules. They share pools; others do not, since a process that maps a pool can read all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessClass {
    name: String,
    topics: Vec<String>,
    subscribe: Members,
    publish: Members,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Members {
    /// Both lists empty: the rule names nobody.
    users: Vec<u32>,
    groups: Vec<u32>,
}

impl Members {
    fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    fn include(&self, peer: &Credentials, groups: &[u32]) -> bool {
        self.users.contains(&peer.uid)
            || self
                .groups
                .iter()
                .any(|group| *group == peer.gid || groups.contains(group))
    }
}

impl AccessClass {
    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a peer with these supplementary groups may subscribe. Everyone may if the rule names no `users` or `groups`.
    /// Those who may publish also may, since they map the pool anyway.
    pub fn may_subscribe(&self, peer: &Credentials, groups: &[u32]) -> bool {
        self.subscribe.is_empty()
            || self.subscribe.include(peer, groups)
            || self.publish.include(peer, groups)
    }

    /// Whether a peer may publish: if the rule names it for publishing, or, if the rule names nobody for that, if it may
    /// subscribe.
    pub fn may_publish(&self, peer: &Credentials, groups: &[u32]) -> bool {
        if self.publish.is_empty() {
            self.may_subscribe(peer, groups)
        } else {
            self.publish.include(peer, groups)
        }
    }
}

/// The access classes of a realm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    classes: Vec<AccessClass>,
    default: AccessClass,
}

impl Access {
    /// The access classes of the configuration's rules. Looks up the names of users and groups.
    pub fn new(rules: &[AccessRule]) -> Result<Access, AccessError> {
        let mut classes: Vec<AccessClass> = Vec::new();
        for rule in rules {
            let wrong = |reason: &str| AccessError {
                rule: rule.name.clone(),
                reason: reason.into(),
            };
            if rule.name.is_empty() {
                return Err(wrong("give it a name"));
            }
            if rule.name == DEFAULT_CLASS || classes.iter().any(|c| c.name == rule.name) {
                return Err(wrong("another rule has this name; choose another"));
            }
            if rule.topics.is_empty() {
                return Err(wrong(
                    "it has no topics; write for example topics = [\"camera/**\"]",
                ));
            }
            classes.push(AccessClass {
                name: rule.name.clone(),
                topics: rule.topics.clone(),
                subscribe: members(rule, &rule.users, &rule.groups)?,
                publish: members(rule, &rule.publish_users, &rule.publish_groups)?,
            });
        }
        let default = AccessClass {
            name: DEFAULT_CLASS.to_owned(),
            topics: Vec::new(),
            subscribe: Members::default(),
            publish: Members::default(),
        };
        Ok(Access { classes, default })
    }

    /// Whether there are no rules: all topics are of one class, which everyone may use.
    pub fn is_open(&self) -> bool {
        self.classes.is_empty()
    }

    /// The class of a topic: that of the first rule with a pattern that matches it.
    pub fn class_of(&self, topic: &str) -> &AccessClass {
        self.classes
            .iter()
            .find(|class| {
                class
                    .topics
                    .iter()
                    .any(|pattern| pattern_matches(pattern, topic))
            })
            .unwrap_or(&self.default)
    }

    /// The class of this name.
    pub fn class(&self, name: &str) -> Option<&AccessClass> {
        std::iter::once(&self.default)
            .chain(&self.classes)
            .find(|class| class.name == name)
    }
}

fn members(
    rule: &AccessRule,
    users: &[Principal],
    groups: &[Principal],
) -> Result<Members, AccessError> {
    let unknown = |what: &str, name: &str, why: &str| AccessError {
        rule: rule.name.clone(),
        reason: format!("there is no {what} '{name}' here{why}; correct it or write its number"),
    };
    let user = |principal: &Principal| match principal {
        Principal::Id(id) => Ok(*id),
        Principal::Name(name) => match nix::unistd::User::from_name(name) {
            Ok(Some(user)) => Ok(user.uid.as_raw()),
            Ok(None) => Err(unknown("user", name, "")),
            Err(errno) => Err(unknown("user", name, &format!(" ({errno})"))),
        },
    };
    let group = |principal: &Principal| match principal {
        Principal::Id(id) => Ok(*id),
        Principal::Name(name) => match nix::unistd::Group::from_name(name) {
            Ok(Some(group)) => Ok(group.gid.as_raw()),
            Ok(None) => Err(unknown("group", name, "")),
            Err(errno) => Err(unknown("group", name, &format!(" ({errno})"))),
        },
    };
    Ok(Members {
        users: users.iter().map(user).collect::<Result<_, _>>()?,
        groups: groups.iter().map(group).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32) -> Credentials {
        Credentials {
            pid: Some(1),
            uid,
            gid,
        }
    }

    #[test]
    fn topic_names() {
        for good in [
            "a",
            "camera/left/image",
            "größe",
            &"x".repeat(255),
            "a b",
            "...",
            "a.b/c-d_e",
        ] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/a",
            "a/",
            "a//b",
            "a\nb",
            "a\0",
            "a/*",
            "what?",
            "..",
            "a/../b",
            &"x".repeat(256),
        ] {
            assert!(check_topic_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_leading_slash_means_the_same_name_without_it() {
        for (written, bare) in [("/a/b", "a/b"), ("a/b", "a/b"), ("/", ""), ("//a", "/a")] {
            assert_eq!(bare_topic_name(written), bare);
        }
        // One slash is a habit, two are a mistake.
        assert!(check_topic_name(bare_topic_name("//a")).is_err());
        assert!(check_topic_name(bare_topic_name("/")).is_err());
    }

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", "a"),
            ("a/*", "a/b"),
            ("a*c*e", "abcde"),
            ("a*b", "aXbXb"),
            ("**", "a/b/c"),
            ("a/**", "a"),
            ("a/**", "a/b/c"),
            ("**/c", "c"),
            ("**/c", "a/b/c"),
            ("a/**/d", "a/d"),
            ("a/**/d", "a/b/c/d"),
            ("a/**/c/**/e", "a/c/c/d/e"),
            ("?a", "äa"),
            ("/a", "a"),
            ("/a/**", "a/b"),
            ("/**", "a/b"),
        ] {
            assert!(pattern_matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "b"),
            ("a", "ab"),
            ("*", "a/b"),
            ("a/*", "a"),
            ("a/*", "a/b/c"),
            ("a*b", "aXbX"),
            ("**/c", "a/b"),
            ("a/**/d", "a/b/c"),
            ("?", "ab"),
            ("", "a"),
            ("//a", "a"),
        ] {
            assert!(!pattern_matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_ends() {
        let pattern = "*a".repeat(120) + "b";
        // Backtracking to every wildcard would take exponential time.
        assert!(!pattern_matches(&pattern, &"a".repeat(255)));
    }

    #[test]
    fn rules_in_order_with_the_rest_open() {
        let rule = |name: &str, topics: &[&str]| AccessRule {
            name: name.into(),
            topics: topics.iter().map(|t| t.to_string()).collect(),
            ..AccessRule::default()
        };
        let mut secret = rule("secret", &["secret/**"]);
        secret.users = vec![Principal::Id(10)];
        secret.groups = vec![Principal::Id(500)];
        let mut camera = rule("camera", &["camera/*", "secret/camera"]);
        camera.publish_users = vec![Principal::Id(20)];
        camera.publish_groups = vec![Principal::Name("root".into())];
        let access = Access::new(&[secret, camera]).unwrap();

        let secret = access.class_of("secret/camera");
        assert_eq!(secret.name(), "secret");
        assert!(secret.may_subscribe(&peer(10, 1), &[]));
        assert!(secret.may_publish(&peer(10, 1), &[]));
        assert!(secret.may_publish(&peer(11, 500), &[]));
        assert!(secret.may_subscribe(&peer(11, 1), &[2, 500]));
        assert!(!secret.may_subscribe(&peer(0, 0), &[0]));
        assert!(!secret.may_publish(&peer(11, 1), &[2]));

        let camera = access.class_of("camera/left");
        assert_eq!(camera.name(), "camera");
        assert!(camera.may_subscribe(&peer(99, 99), &[]));
        assert!(!camera.may_publish(&peer(99, 99), &[]));
        assert!(camera.may_publish(&peer(20, 99), &[]));
        assert!(camera.may_publish(&peer(99, 99), &[0]));

        let open = access.class_of("camera/left/raw");
        assert_eq!(open.name(), DEFAULT_CLASS);
        assert!(open.may_subscribe(&peer(99, 99), &[]) && open.may_publish(&peer(99, 99), &[]));
        assert_eq!(
            access.class("camera").map(AccessClass::name),
            Some("camera")
        );
        assert!(access.class("nothing").is_none());
    }

    #[test]
    fn rules_that_cannot_be() {
        let rule = AccessRule {
            name: "r".into(),
            topics: vec!["a".into()],
            users: vec![Principal::Name("no-such-user-here".into())],
            ..AccessRule::default()
        };
        let error = Access::new(std::slice::from_ref(&rule))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no-such-user-here"), "{error}");
        let plain = AccessRule {
            users: vec![],
            ..rule
        };
        assert!(Access::new(&[plain.clone(), plain.clone()]).is_err());
        assert!(Access::new(&[AccessRule {
            topics: vec![],
            ..plain.clone()
        }])
        .is_err());
        assert!(Access::new(&[AccessRule {
            name: "default".into(),
            ..plain
        }])
        .is_err());
    }
}
