//! Match events, against a real daemon.

use rgaps::{Listener, Matched, Node};
use rgaps_testkit::{Daemon, LIMIT};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};

fn channels() -> (impl FnMut(Matched) + Send + 'static, Receiver<Matched>) {
    let (told, heard): (Sender<Matched>, _) = channel();
    (move |matched| told.send(matched).unwrap(), heard)
}

/// The next event's current count, change, total and change of the total.
fn next(heard: &Receiver<Matched>) -> (u32, i32, u64, u32) {
    let m = heard.recv_timeout(LIMIT).unwrap();
    let changes = (m.current_count_change, m.total_count_change);
    (m.current_count, changes.0, m.total_count, changes.1)
}

#[test]
fn a_publisher_hears_of_subscribers_that_match() {
    let daemon = Daemon::start();
    let (node, other) = (daemon.node("one"), daemon.node("other"));
    let first = node.subscriber("t").create().unwrap();
    let publisher = node.publisher("t").type_name("image").create().unwrap();
    let (handler, heard) = channels();
    let listener = publisher.on_matched(handler).unwrap();
    // The first event reports the subscriber that joined before the listener.
    assert_eq!(next(&heard), (1, 1, 1, 1));
    let clouds = other.subscriber("t").type_name("cloud").create().unwrap();
    let echo = other.subscriber("t").observer().create().unwrap();
    // `clouds` does not match, so only `echo` counts.
    assert_eq!(next(&heard), (2, 1, 2, 1));
    assert_eq!((publisher.subscribers(), publisher.mismatched()), (2, 1));
    drop((first, clouds));
    assert_eq!(next(&heard), (1, -1, 2, 0));
    drop(listener);
    drop(echo);
    // The listener's thread has ended, and has dropped the handler.
    assert!(heard.recv().is_err());
}

#[test]
fn a_subscriber_hears_of_publishers_also_of_dead_ones() {
    let daemon = Daemon::start();
    let node = daemon.node("one");
    let subscriber = node.subscriber("t").create().unwrap();
    let (handler, heard) = channels();
    let _listener = subscriber.on_matched(handler).unwrap();
    let publisher = node.publisher("t").transient_local().create().unwrap();
    assert_eq!(next(&heard), (1, 1, 1, 1));
    publisher.put(b"kept").unwrap();
    drop(publisher);
    // The history that the publisher leaves does not count as a publisher.
    assert_eq!(next(&heard), (0, -1, 1, 0));
    drop(subscriber);
    assert!(
        heard.recv().is_err(),
        "the listener ends with its subscriber"
    );
}

/// The handler drops its listener during the first event. The thread then ends, and drops the handler.
#[test]
fn a_handler_may_drop_its_own_listener() {
    let daemon = Daemon::start();
    let node: Node = daemon.node("one");
    let publisher = node.publisher("t").create().unwrap();
    let kept: Arc<Mutex<Option<Listener>>> = Arc::default();
    let (told, heard) = channel();
    let own = kept.clone();
    let mut slot = kept.lock().unwrap();
    let handler = move |matched: Matched| {
        drop(own.lock().unwrap().take());
        told.send(matched.current_count).unwrap();
    };
    *slot = Some(publisher.on_matched(handler).unwrap());
    drop(slot);
    let subscriber = node.subscriber("t").create().unwrap();
    assert_eq!(heard.recv_timeout(LIMIT), Ok(1));
    drop(subscriber);
    assert!(heard.recv().is_err());
}
