//! Rules for the domain in which messages of other hosts arrive.

use super::rules;
use rgaps_layout::{Domain, GpuUuid};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest number of rules.
const MAX_RULES: usize = 256;

/// In which domain topics of other hosts arrive. The first rule that matches decides; a topic without a matching rule
/// arrives in host memory, and the links copy it to the GPUs on which subscribers read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LandingRule {
    /// Its name, in listings and logs.
    pub name: String,
    /// Patterns of topics, as in access rules.
    pub topics: Vec<String>,
    /// In which domain they arrive.
    pub domain: LandIn,
}

/// A domain in which topics arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LandIn {
    /// The domain that all subscribers of this host name; host memory if they name different domains.
    Readers,
    /// Host memory.
    Host,
    /// The memory of the GPU with this number among those that the links see.
    Gpu(u32),
    /// The memory of this GPU.
    Uuid(GpuUuid),
}

impl fmt::Display for LandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LandIn::Readers => f.write_str("readers"),
            LandIn::Host => f.write_str("host"),
            LandIn::Gpu(number) => write!(f, "cuda:{number}"),
            LandIn::Uuid(uuid) => write!(f, "{}", Domain::Cuda(*uuid)),
        }
    }
}

impl From<LandIn> for String {
    fn from(land_in: LandIn) -> String {
        land_in.to_string()
    }
}

impl TryFrom<String> for LandIn {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "readers" => return Ok(LandIn::Readers),
            "host" => return Ok(LandIn::Host),
            "cuda" => return Ok(LandIn::Gpu(0)),
            _ => {}
        }
        let of_gpu = text.strip_prefix("cuda:");
        if let Some(number) = of_gpu.and_then(|rest| rest.parse().ok()) {
            return Ok(LandIn::Gpu(number));
        }
        of_gpu
            .and_then(|rest| rest.parse().ok())
            .map(LandIn::Uuid)
            .ok_or_else(|| {
                format!(
                    "'{text}' is not a domain for arriving messages; write \"host\", \"readers\", \"cuda:0\" or \
                     \"cuda:GPU-<uuid>\""
                )
            })
    }
}

pub(super) fn landing<'a>(all: &'a [LandingRule], topic: &str) -> Option<&'a LandingRule> {
    all.iter().find(|rule| rules::matches(&rule.topics, topic))
}

pub(super) fn check(all: &[LandingRule]) -> Result<(), String> {
    if all.len() > MAX_RULES {
        return Err(format!("links.landing can have at most {MAX_RULES} rules"));
    }
    all.iter()
        .try_for_each(|rule| rules::check_patterns("landing", &rule.name, "*", &rule.topics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct All {
        landing: Vec<LandingRule>,
    }

    fn parse(domain: &str, topics: &str) -> Result<Vec<LandingRule>, String> {
        let text = format!(
            "[[landing]]\nname = \"one\"\ntopics = [{topics}]\ndomain = \"{domain}\"\n\
             [[landing]]\nname = \"two\"\ntopics = [\"camera/*\"]\ndomain = \"host\""
        );
        let all: All = toml::from_str(&text).map_err(|error| error.to_string())?;
        check(&all.landing).map(|()| all.landing)
    }

    #[test]
    fn the_first_that_fits_decides() {
        let all = parse("cuda", "\"camera/left\"").unwrap();
        let of = |topic| landing(&all, topic).map(|rule| (rule.name.as_str(), rule.domain));
        assert_eq!(of("camera/left"), Some(("one", LandIn::Gpu(0))));
        assert_eq!(of("camera/right"), Some(("two", LandIn::Host)));
        assert_eq!(of("lidar"), None);
    }

    #[test]
    fn places_are_written_as_they_are_read() {
        let gpu = "cuda:GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";
        for text in ["host", "readers", "cuda:3", gpu] {
            let all = parse(text, "\"a\"").unwrap();
            assert_eq!(all[0].domain.to_string(), text);
            let all = All { landing: all };
            let again: All = toml::from_str(&toml::to_string(&all).unwrap()).unwrap();
            assert_eq!(again.landing, all.landing);
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (domain, topics, word) in [
            ("gpu", "\"a\"", "cuda:0"),
            ("cuda:x", "\"a\"", "cuda:0"),
            ("cuda:-1", "\"a\"", "is not a domain for arriving messages"),
            ("host", "", "links.landing 'one'"),
        ] {
            let why = parse(domain, topics).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
