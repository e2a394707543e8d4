//! What is fuzzed of that which hosts say to each other beside messages: bytes in, and nothing but panics if something is
//! wrong. Used by `fuzz/` (libFuzzer) and by `crates/links/tests/fuzz.rs` (seeded, everywhere).
use rgaps_links::control_plane::{read_question, read_reply};
use rgaps_links::keys::HostToken;
use rgaps_links::wire::{FlowDescription, LinkMessage, MessageDescription};
use rgaps_transport::machine::frame::DESCRIPTION_BYTES_MAX;

/// The first byte chooses what the others are: the key of a token, a question for lanes, its answer, what is said over a
/// link, a message's description, or a flow's. What is taken for one says the same when it is said again; returns whether it was.
pub fn control(data: &[u8]) -> bool {
    let Some((kind, bytes)) = data.split_first() else {
        return false;
    };
    match kind % 6 {
        0 => token(&String::from_utf8_lossy(bytes)),
        1 => read_question(bytes)
            .is_ok_and(|node| token(&HostToken { node, protocol: 1 }.key("lab"))),
        2 => read_reply(bytes).is_ok_and(|address| !address.lanes.is_empty()),
        3 => said(bytes),
        4 => description(bytes),
        _ => flow(bytes),
    }
}

fn token(key: &str) -> bool {
    let Some(token) = HostToken::parse("lab", key) else {
        return false;
    };
    let again = token.key("lab");
    assert_eq!(HostToken::parse("lab", &again), Some(token));
    assert!(!again.contains(['$', '#', '?', '*', ' ']), "{again}");
    true
}

fn said(bytes: &[u8]) -> bool {
    let Ok(said) = LinkMessage::decode(bytes) else {
        return false;
    };
    let again = said.encode();
    assert_eq!(LinkMessage::decode(&again).unwrap(), said);
    true
}

fn flow(bytes: &[u8]) -> bool {
    let Ok(description) = FlowDescription::decode(5, bytes) else {
        return false;
    };
    let again = description.encode();
    assert_eq!(FlowDescription::decode(5, &again), Ok(description));
    // It fits into OPEN, whatever it says.
    assert!(again.len() + 28 <= DESCRIPTION_BYTES_MAX);
    true
}

fn description(bytes: &[u8]) -> bool {
    let Some(meta) = MessageDescription::decode(bytes) else {
        return false;
    };
    assert_eq!(meta.encode(), bytes, "two ways to write {meta:?}");
    true
}
