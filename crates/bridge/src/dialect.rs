//! What messages become on the other side, and what messages from there become here.

use rgaps_client::bindings::Beside;
use rgaps_client::Sample;
use zenoh::bytes::{Encoding, ZBytes};

/// The messages of another system that uses Zenoh.
pub(crate) trait Dialect: Send + Sync + 'static {
    /// The key in the header of a message that came from there.
    fn mark(&self) -> &'static str;

    /// The liveliness tokens by which others see what the bridge does. `session`: its id in Zenoh.
    fn tokens(&self, _session: &str) -> Vec<String> {
        Vec::new()
    }

    /// The rules by which topics leave: patterns, and whether to read them reliably.
    fn outgoing(&self) -> Vec<(String, bool)>;

    /// The key of a topic that leaves by a rule.
    fn key(&self, rule: usize, topic: &str) -> String;

    /// What a message in host memory becomes. `type_name`: what its publisher declares. `published_ns`: nanoseconds since 1970.
    ///
    /// # Errors
    /// The other system has no such message; why.
    fn encode(
        &self,
        rule: usize,
        type_name: &str,
        published_ns: u64,
        sample: Sample,
    ) -> Result<Outbound, String>;

    /// The key expressions of the rules by which messages come in.
    fn incoming(&self) -> Vec<String>;

    /// What publishers offer that publish what came in by a rule.
    fn offer(&self, _rule: usize) -> Offer {
        Offer::default()
    }

    /// How many messages of a topic that leaves by a rule are kept for subscribers that come later. None: none.
    fn keeps(&self, _rule: usize) -> Option<u32> {
        None
    }

    /// How many messages to ask publishers for that kept them before the bridge came. None: none.
    fn asks(&self, _rule: usize) -> Option<u32> {
        None
    }

    /// Whether a message came in by this rule before: live, or as one that its publisher kept.
    fn is_repeated(&self, _rule: usize, _sample: &zenoh::sample::Sample) -> bool {
        false
    }

    /// What a message from there becomes that came in by a rule.
    ///
    /// # Errors
    /// The message is invalid; why.
    fn decode(&self, rule: usize, sample: &zenoh::sample::Sample) -> Result<Inbound, String>;
}

/// What a publisher of the bridge offers.
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
    /// What they are.
    pub(crate) encoding: Encoding,
    /// What travels beside them.
    pub(crate) attachment: Vec<u8>,
}

/// A message from Zenoh.
pub(crate) struct Inbound {
    /// The topic.
    pub(crate) topic: String,
    /// What its publisher declares.
    pub(crate) type_name: String,
    /// Bytes of Zenoh's that hold the message.
    pub(crate) payload: ZBytes,
    /// Where the message begins in them.
    pub(crate) skip: usize,
    /// How many bytes it has.
    pub(crate) len: usize,
    /// What lies beside it.
    pub(crate) beside: Beside,
}
