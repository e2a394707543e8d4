//! Resolves the name of a topic that a user wrote to its full name, which the registry, the wire and listings use.
//!
//! The rules are those of ROS 2: the namespace precedes a relative name, but not a name with a leading slash. Then the first rule
//! of remapping for the result replaces it. A node resolves each name once, when the user passes it.

use crate::access::{bare_topic_name, check_topic_name};
use serde::{de, Deserialize, Deserializer};

/// The separator between the two names of a rule.
const ASSIGN: &str = ":=";

/// The namespace and the remapping of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicNames {
    /// A full name; empty: no namespace.
    namespace: String,
    /// Pairs of full names: the name to replace, and its replacement.
    remap: Vec<(String, String)>,
}

impl TopicNames {
    /// Reads a namespace (`robot1`, also `/robot1`; empty: none) and rules of remapping (`camera:=front/camera`). The error
    /// begins with the name of the key.
    pub fn new(namespace: &str, rules: &[String]) -> Result<TopicNames, String> {
        let mut names = TopicNames {
            namespace: bare_topic_name(namespace).to_owned(),
            remap: Vec::new(),
        };
        if !names.namespace.is_empty() {
            check_topic_name(&names.namespace)
                .map_err(|error| format!("namespace = {namespace:?}: {}", error.reason))?;
        }
        for rule in rules {
            let wrong = |reason: &str| format!("remap = {rule:?}: {reason}");
            let (from, to) = rule
                .split_once(ASSIGN)
                .ok_or_else(|| wrong("write a rule as FROM:=TO, such as camera:=front/camera"))?;
            if from == "__ns" {
                return Err(wrong(
                    "set the namespace with the key namespace, RGAPS_NAMESPACE or --namespace",
                ));
            }
            let (from, to) = (names.below(from), names.below(to));
            for name in [&from, &to] {
                check_topic_name(name).map_err(|error| wrong(&error.to_string()))?;
            }
            names.remap.push((from, to));
        }
        Ok(names)
    }

    /// The full name of a topic, or the full pattern. An invalid name stays invalid.
    pub fn resolve(&self, written: &str) -> String {
        let full = self.below(written);
        let mut rules = self.remap.iter();
        match rules.find(|(from, _)| *from == full) {
            Some((_, to)) => to.clone(),
            None => full,
        }
    }

    fn below(&self, written: &str) -> String {
        let is_relative = !written.starts_with('/') && !written.is_empty();
        match is_relative && !self.namespace.is_empty() {
            true => format!("{}/{written}", self.namespace),
            false => bare_topic_name(written).to_owned(),
        }
    }
}

/// Deserializes rules from a list of texts, or from one text, which is easier to write in an environment variable.
pub(crate) fn rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Rules {
        One(String),
        Many(Vec<String>),
    }
    match Rules::deserialize(deserializer) {
        Ok(Rules::One(rule)) => Ok(vec![rule]),
        Ok(Rules::Many(rules)) => Ok(rules),
        Err(_) => Err(de::Error::custom(
            "write a rule of remapping as a text, such as \"camera:=front/camera\", or several as a list of texts",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(namespace: &str, rules: &[&str]) -> Result<TopicNames, String> {
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        TopicNames::new(namespace, &rules)
    }

    #[test]
    fn without_namespace_and_rules_only_a_leading_slash_goes() {
        let names = TopicNames::default();
        for (written, full) in [
            ("/a/b", "a/b"),
            ("a/b", "a/b"),
            ("/**", "**"),
            ("", ""),
            ("//a", "/a"),
        ] {
            assert_eq!(names.resolve(written), full, "{written}");
        }
    }

    #[test]
    fn relative_names_and_patterns_get_the_namespace() {
        for namespace in ["robot1", "/robot1"] {
            let names = names(namespace, &[]).unwrap();
            for (written, full) in [
                ("camera", "robot1/camera"),
                ("/camera", "camera"),
                ("camera/*", "robot1/camera/*"),
                ("**", "robot1/**"),
                ("/**", "**"),
                // Each is as invalid as before.
                ("", ""),
                ("//camera", "/camera"),
            ] {
                assert_eq!(names.resolve(written), full, "{written}");
            }
        }
        assert_eq!(names("/", &[]), Ok(TopicNames::default()));
    }

    #[test]
    fn the_first_rule_for_a_full_name_is_used_once() {
        let names = names(
            "robot1",
            &[
                "camera:=front/camera",
                "/clock:=/sim/clock",
                "front/camera:=x",
                "camera:=y",
            ],
        )
        .unwrap();
        for (written, full) in [
            ("camera", "robot1/front/camera"),
            ("/robot1/camera", "robot1/front/camera"),
            ("/camera", "camera"),
            ("/clock", "sim/clock"),
            ("clock", "robot1/clock"),
            ("front/camera", "robot1/x"),
            ("camera/info", "robot1/camera/info"),
        ] {
            assert_eq!(names.resolve(written), full, "{written}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_key() {
        for (namespace, rule, said) in [
            ("a//b", "a:=b", "namespace = \"a//b\": it has an empty part"),
            (
                "a/*",
                "a:=b",
                "namespace = \"a/*\": '*' and '?' are reserved",
            ),
            (
                "",
                "camera=front",
                "remap = \"camera=front\": write a rule as FROM:=TO",
            ),
            (
                "",
                ":=front",
                "remap = \":=front\": \"\" is not a valid topic name: it is empty",
            ),
            (
                "",
                "camera/*:=front",
                "'*' and '?' are reserved for patterns",
            ),
            ("", "__ns:=/robot1", "RGAPS_NAMESPACE"),
        ] {
            let error = names(namespace, &[rule]).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
