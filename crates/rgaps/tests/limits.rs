//! Reaches the documented limits: members of a topic, and thousands of topics.

use rgaps::{LoanError, OpenError, Publisher, PublisherQos, Subscriber};
use rgaps_testkit::Daemon;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(120);
/// The most publishers and subscribers that a topic has on one host.
const PUBLISHERS: usize = 16;
const SUBSCRIBERS: usize = 60;
const TOPICS: usize = 2000;

#[track_caller]
fn is_refused(result: Result<impl Sized, OpenError>, limit: &str) {
    let error = result.err().expect("the limit is kept");
    let said = error.to_string();
    assert!(said.contains(limit), "'{said}' does not name {limit}");
}

#[test]
fn a_loan_that_is_only_tried_asks_for_no_memory() {
    let daemon = Daemon::start();
    let node = daemon.node("tries");
    let qos = PublisherQos {
        max_loans: 2,
        ..PublisherQos::default()
    };
    let publisher = node.publisher("tried").qos(qos).create().unwrap();
    assert!(publisher.try_loan(1 << 20).unwrap().is_none());
    assert_eq!(publisher.leased_bytes(), 0);
    drop(publisher.loan(1 << 20).unwrap());
    let leased = publisher.leased_bytes();
    let mut loan = publisher.try_loan(1 << 20).unwrap().expect("it is free");
    loan.write(0, b"here").unwrap();
    loan.publish().unwrap();
    assert!(publisher.try_loan(2 * leased).unwrap().is_none());
    assert_eq!(publisher.leased_bytes(), leased);
    let loans = [publisher.loan(1).unwrap(), publisher.loan(1).unwrap()];
    let error = publisher.try_loan(1).expect_err("two are open");
    assert!(
        matches!(error, LoanError::TooManyLoans { limit: 2, .. }),
        "{error}"
    );
    drop(loans);
    let error = publisher.try_loan(u64::MAX).expect_err("it never fits");
    assert!(matches!(error, LoanError::TooLarge { .. }), "{error}");
}

#[test]
fn sixteen_publishers_and_sixty_subscribers_share_a_topic() {
    let daemon = Daemon::start();
    let nodes = [daemon.node("one"), daemon.node("two")];
    let node = |at: usize| &nodes[at % 2];
    let subscribers: Vec<Subscriber> = (0..SUBSCRIBERS)
        .map(|at| {
            let builder = node(at).subscriber("crowded").reliable().max_held(128);
            builder.create().unwrap()
        })
        .collect();
    let publishers: Vec<Publisher> = (0..PUBLISHERS)
        .map(|at| node(at).publisher("crowded").create().unwrap())
        .collect();
    is_refused(node(0).subscriber("crowded").create(), "60");
    is_refused(node(1).publisher("crowded").create(), "16");
    for publisher in &publishers {
        assert!(publisher.wait_for_subscribers(60, SOON).unwrap());
    }
    for round in 0..3u8 {
        for (at, publisher) in publishers.iter().enumerate() {
            publisher.put(&[round, at as u8]).unwrap();
        }
    }
    for subscriber in &subscribers {
        let mut next = [0u8; PUBLISHERS];
        let mut at_once = Vec::new();
        for _ in 0..3 * PUBLISHERS {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            let &[round, at] = sample.as_slice().unwrap() else {
                panic!("{} bytes", sample.len());
            };
            assert_eq!(next[at as usize], round, "each publisher's order is kept");
            next[at as usize] += 1;
            at_once.push(sample);
        }
        assert_eq!(next, [3; PUBLISHERS]);
        assert!(subscriber.try_recv().unwrap().is_none());
    }
    // A new member can join after another has left.
    drop(subscribers);
    drop(publishers);
    let end = Instant::now() + SOON;
    let late = loop {
        match node(0).publisher("crowded").create() {
            Ok(publisher) => break publisher,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    let subscriber = node(1).subscriber("crowded").create().unwrap();
    late.put(b"late").unwrap();
    assert_eq!(
        subscriber.recv_timeout(SOON).unwrap().as_slice().unwrap(),
        b"late"
    );
}

#[test]
fn thousands_of_topics() {
    let daemon = Daemon::start_with(&format!(
        "[pool.host]\ncap = \"16GiB\"\n[limits]\ntopics = {TOPICS}\n"
    ));
    let (here, there) = (daemon.node("here"), daemon.node("there"));
    let name = |at: usize| format!("many/{}/{at}", at % 7);
    let subscribers: Vec<Subscriber> = (0..TOPICS)
        .map(|at| there.subscriber(&name(at)).create().unwrap())
        .collect();
    is_refused(here.subscriber("one/more").create(), &TOPICS.to_string());
    assert_eq!(here.topics().unwrap().len(), TOPICS);
    // Messages pass on the first topic, the last, and every 149th between them; a wait set tells them apart.
    let mut set = there.wait_set();
    let step = 149;
    let watched: Vec<usize> = (0..TOPICS).step_by(step).chain([TOPICS - 1]).collect();
    let tokens: Vec<_> = watched
        .iter()
        .map(|at| set.attach(&subscribers[*at]).unwrap())
        .collect();
    for (at, token) in watched.iter().zip(&tokens) {
        let publisher = here.publisher(&name(*at)).create().unwrap();
        publisher.put(name(*at).as_bytes()).unwrap();
        assert_eq!(set.wait(SOON).unwrap(), [*token]);
        let sample = subscribers[*at].recv_timeout(SOON).unwrap();
        assert_eq!(sample.as_slice().unwrap(), name(*at).as_bytes());
    }
    let row = here.topic(&name(149)).unwrap().row;
    assert_eq!((row.name, row.subscribers), (name(149), 1));
    drop(set);
    drop(subscribers);
    let end = Instant::now() + SOON;
    while !here.topics().unwrap().is_empty() {
        assert!(Instant::now() < end, "topics that nobody is in are gone");
        std::thread::sleep(Duration::from_millis(20));
    }
}
