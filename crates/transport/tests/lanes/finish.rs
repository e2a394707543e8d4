//! A link's configuration with short waits, and the checks at the end of a test.
use super::hosts::{Event, Flow, Host, Link};
use rgaps_transport::machine::LinkLimits;
use rgaps_transport::LinkConfig;

pub fn config() -> LinkConfig {
    LinkConfig {
        limits: LinkLimits {
            chunk_bytes: 64 << 10,
            ..LinkLimits::default()
        },
        beat_ms: 50,
        quiet_ms: 400,
        backoff_ms: (5, 100),
        ..LinkConfig::default()
    }
}

pub fn finish(link: &Link, from: &Host, to: &Host, flows: &[Flow], count: u64) {
    let all: Vec<u64> = (0..count).collect();
    for flow in flows {
        link.close_flow(*flow);
    }
    for flow in flows {
        from.has("the end of a flow", |event| {
            *event == Event::Ended { flow: *flow }
        });
        to.has("the end of it there", |event| {
            *event == Event::Closed { flow: *flow }
        });
        assert_eq!(
            to.seen.lock().unwrap().committed[flow],
            all,
            "in order, each once"
        );
        assert_eq!(from.seen.lock().unwrap().acknowledged(*flow), all);
    }
    assert!(to.seen.lock().unwrap().missed.is_empty());
    to.gives_back();
    assert_eq!(link.status().retained_bytes, 0);
}
