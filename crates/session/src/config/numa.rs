//! The NUMA node of host memory.

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A NUMA node: its number, or a device that is near it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaChoice {
    /// The node with this number.
    Node(u32),
    /// The node of the network card with the address `links.listen`.
    Nic,
    /// The node of the GPU with this number.
    Gpu(u32),
}

impl fmt::Display for NumaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NumaChoice::Node(node) => write!(f, "{node}"),
            NumaChoice::Nic => f.write_str("nic"),
            NumaChoice::Gpu(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl Serialize for NumaChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            NumaChoice::Node(node) => serializer.serialize_u32(*node),
            other => serializer.collect_str(other),
        }
    }
}

impl<'de> Deserialize<'de> for NumaChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumaVisitor;
        impl de::Visitor<'_> for NumaVisitor {
            type Value = NumaChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a NUMA node, \"nic\" or \"cuda:0\"")
            }

            fn visit_i64<E: de::Error>(self, node: i64) -> Result<NumaChoice, E> {
                let known = u32::try_from(node).map(NumaChoice::Node);
                known.map_err(|_| E::invalid_value(de::Unexpected::Signed(node), &self))
            }

            fn visit_u64<E: de::Error>(self, node: u64) -> Result<NumaChoice, E> {
                let known = u32::try_from(node).map(NumaChoice::Node);
                known.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(node), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<NumaChoice, E> {
                let number = text.strip_prefix("cuda:").map(str::parse);
                match (text, number) {
                    ("nic", _) => Ok(NumaChoice::Nic),
                    ("cuda", _) => Ok(NumaChoice::Gpu(0)),
                    (_, Some(Ok(number))) => Ok(NumaChoice::Gpu(number)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(NumaVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Key {
        key: NumaChoice,
    }

    fn parse(text: &str) -> Result<NumaChoice, String> {
        let key: Result<Key, _> = toml::from_str(&format!("key = {text}"));
        key.map(|key| key.key).map_err(|error| error.to_string())
    }

    #[test]
    fn nodes_are_named_by_number_or_by_what_they_are_near() {
        for (text, place) in [
            ("0", NumaChoice::Node(0)),
            ("\"nic\"", NumaChoice::Nic),
            ("\"cuda:3\"", NumaChoice::Gpu(3)),
        ] {
            assert_eq!(parse(text), Ok(place));
            let written = toml::to_string(&Key { key: place }).unwrap();
            assert_eq!(written.trim(), format!("key = {text}"));
        }
        assert_eq!(parse("\"cuda\""), Ok(NumaChoice::Gpu(0)));
        for text in ["-1", "\"gpu\"", "\"cuda:x\"", "4294967296", "1.5"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("\"nic\" or \"cuda:0\""), "{text}: {error}");
        }
    }
}
