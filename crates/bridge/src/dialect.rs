//! A dialect translates between messages of rgaps and those of another system that uses Zenoh.

use rgaps_client::bindings::Beside;
use rgaps_client::Sample;
use zenoh::bytes::{Encoding, ZBytes};

/// The rules, keys and encodings of another system that uses Zenoh. "The other side" is that system.
pub(crate) trait Dialect: Send + Sync + 'static {
    /// The key that the bridge sets in the header of each message from the other side. A bridge sends back no message with this key.
    fn mark(&self) -> &'static str;

    /// The liveliness tokens that show the bridge in the other system's graph. `session`: the id of the bridge's Zenoh session.
    fn tokens(&self, _session: &str) -> Vec<String> {
        Vec::new()
    }

    /// The outgoing rules: topics or patterns, and whether to read them reliably.
    fn outgoing(&self) -> Vec<(String, bool)>;

    /// The Zenoh key of a topic, by an outgoing rule.
    fn key(&self, rule: usize, topic: &str) -> String;

    /// Encodes a message, which is in host memory. `type_name`: what its publisher declares. `published_ns`: nanoseconds since 1970.
    ///
    /// # Errors
    /// Why the other system has no such message.
    fn encode(
        &self,
        rule: usize,
        type_name: &str,
        published_ns: u64,
        sample: Sample,
    ) -> Result<Outbound, String>;

    /// The key expressions of the incoming rules.
    fn incoming(&self) -> Vec<String>;

    /// The quality of service of the publishers of an incoming rule.
    fn offer(&self, _rule: usize) -> Offer {
        Offer::default()
    }

    /// How many messages of each topic the bridge keeps for late subscribers on the other side, by an outgoing rule. None: it keeps none.
    fn keeps(&self, _rule: usize) -> Option<u32> {
        None
    }

    /// How many kept messages to ask each publisher on the other side for, by an incoming rule. None: it asks for none.
    fn asks(&self, _rule: usize) -> Option<u32> {
        None
    }

    /// Whether this message or a newer one of its publisher came before by this rule, live or from the publisher's history.
    fn is_repeated(&self, _rule: usize, _sample: &zenoh::sample::Sample) -> bool {
        false
    }

    /// Decodes a message from the other side, by an incoming rule.
    ///
    /// # Errors
    /// Why the message is invalid.
    fn decode(&self, rule: usize, sample: &zenoh::sample::Sample) -> Result<Inbound, String>;
}

/// The quality of service of a publisher of the bridge.
pub(crate) struct Offer {
    pub(crate) transient_local: bool,
    pub(crate) keep_last: u32,
}

impl Default for Offer {
    fn default() -> Offer {
        Offer {
            transient_local: false,
            keep_last: 16,
        }
    }
}

/// A message for Zenoh.
pub(crate) struct Outbound {
    /// Its bytes.
    pub(crate) payload: ZBytes,
    /// Zenoh's encoding, which names the type of the bytes.
    pub(crate) encoding: Encoding,
    /// Zenoh's attachment.
    pub(crate) attachment: Vec<u8>,
}

/// A message from Zenoh.
pub(crate) struct Inbound {
    /// The topic.
    pub(crate) topic: String,
    /// The type that the bridge's publisher declares.
    pub(crate) type_name: String,
    /// Zenoh's bytes, which contain the message.
    pub(crate) payload: ZBytes,
    /// Where the message begins in `payload`.
    pub(crate) skip: usize,
    /// The length of the message.
    pub(crate) len: usize,
    /// Everything besides the bytes: tag, element type and shape, attachment, parts.
    pub(crate) beside: Beside,
}
