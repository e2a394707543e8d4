//! Publishing and subscribing against a real daemon.

use rgaps::{DType, Late, LoanError, Node, PublishError, PutError, RecvError, SlowReaderPolicy};
use rgaps_testkit::Daemon;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(120);

#[test]
fn what_is_published_is_received_without_a_copy() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("greetings").create().unwrap();
    let publisher = node.publisher("greetings").create().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON).unwrap());
    assert!(!publisher
        .wait_for_subscribers(2, Duration::from_millis(10))
        .unwrap());
    let mut loan = publisher.loan_tensor(DType::U8, &[5]).unwrap();
    loan.as_mut_slice().unwrap().copy_from_slice(b"hello");
    loan.set_tag(7);
    assert_eq!(loan.publish().unwrap(), 0);
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert_eq!(sample.as_slice().unwrap(), b"hello");
    assert_eq!(
        (sample.tag(), sample.sequence(), sample.missed()),
        (7, 0, 0)
    );
    assert_eq!(sample.tensor().unwrap().shape[0], 5);
    assert!(matches!(subscriber.try_recv(), Ok(None)));
    let error = subscriber
        .recv_timeout(Duration::from_millis(20))
        .unwrap_err();
    assert!(matches!(error, RecvError::TimedOut(_)));
    // The sample keeps its bytes while the publisher goes on, and after the publisher is dropped.
    for n in 0..100u8 {
        publisher.put(&[n; 5]).unwrap();
    }
    drop(publisher);
    let copy = sample.clone();
    drop(sample);
    assert_eq!(copy.as_slice().unwrap(), b"hello");
}

#[test]
fn messages_of_every_size_arrive_intact() {
    let daemon = Daemon::start_with("[pool.host]\ncap = \"1GiB\"\n");
    let node = daemon.node("test");
    let subscriber = node.subscriber("sizes").reliable().create().unwrap();
    let publisher = node.publisher("sizes").keep_last(2).create().unwrap();
    for bytes in [
        0u64,
        1,
        255,
        256,
        257,
        4096,
        1 << 20,
        (64 << 20) + 1,
        200 << 20,
    ] {
        let mut loan = publisher.loan(bytes).unwrap();
        let seed = bytes as u8;
        for (at, byte) in loan
            .as_mut_slice()
            .unwrap()
            .iter_mut()
            .step_by(4093)
            .enumerate()
        {
            *byte = seed.wrapping_add(at as u8);
        }
        loan.publish().unwrap();
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert_eq!(sample.len(), bytes);
        let read = sample.as_slice().unwrap().iter().step_by(4093).enumerate();
        assert!(read
            .into_iter()
            .all(|(at, byte)| *byte == seed.wrapping_add(at as u8)));
    }
    assert!(matches!(
        publisher.loan(2 << 30),
        Err(LoanError::TooLarge { .. })
    ));
}

#[test]
fn a_full_pool_is_a_clear_error_and_comes_right_again() {
    let daemon = Daemon::start_with("[pool.host]\ncap = \"64MiB\"\nsegment = \"16MiB\"\n");
    let node = daemon.node("test");
    let subscriber = node.subscriber("full").create().unwrap();
    let publisher = node.publisher("full").keep_last(4).create().unwrap();
    let mut samples = Vec::new();
    let error = loop {
        match publisher.put(&vec![1; 10 << 20]) {
            Ok(_) => samples.push(subscriber.recv_timeout(SOON).unwrap()),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, PutError::Loan(LoanError::PoolFull { .. })),
        "{error}"
    );
    assert!(samples.len() >= 4, "{}", samples.len());
    drop(samples);
    publisher.put(&vec![2; 30 << 20]).unwrap();
    assert_eq!(
        subscriber.recv_timeout(SOON).unwrap().as_slice().unwrap()[30 << 19],
        2
    );
}

#[test]
fn a_publisher_gets_the_memory_that_another_does_not_need() {
    let daemon = Daemon::start_with("[pool.host]\ncap = \"64MiB\"\nsegment = \"16MiB\"\n");
    let (here, there) = (daemon.node("here"), daemon.node("there"));
    let greedy = here.publisher("greedy").create().unwrap();
    let mut loans = Vec::new();
    while let Ok(loan) = greedy.loan(6 << 20) {
        loans.push(loan);
    }
    assert!(loans.len() >= 8, "{}", loans.len());
    let modest = |node: &Node| {
        let builder = node.publisher("modest").loan_timeout(SOON);
        builder.create().unwrap()
    };
    // A publisher of another node gets the memory, and one of the same node.
    loans.truncate(2);
    let kept = greedy.leased_bytes();
    modest(&there).put(&vec![3; 20 << 20]).unwrap();
    assert!(greedy.leased_bytes() < kept);
    modest(&here).put(&vec![4; 20 << 20]).unwrap();
    // The greedy publisher keeps its open loans, and can lease more again.
    for mut loan in loans {
        loan.as_mut_slice().unwrap().fill(5);
        loan.publish().unwrap();
    }
    greedy.put(&[6; 100]).unwrap();
}

#[test]
fn what_came_before_the_first_message_that_is_received_was_missed() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("lags").create().unwrap();
    let publisher = node.publisher("lags").keep_last(4).create().unwrap();
    for number in 0..20u8 {
        publisher.put(&[number]).unwrap();
    }
    let first = subscriber.recv_timeout(SOON).unwrap();
    assert_eq!((first.sequence(), first.missed()), (16, 16));
    assert_eq!(subscriber.missed(), 16);
    // A subscriber that joins later has missed nothing.
    let late = node.subscriber("lags").create().unwrap();
    publisher.put(&[20]).unwrap();
    let first = late.recv_timeout(SOON).unwrap();
    assert_eq!(
        (first.sequence(), first.missed(), late.missed()),
        (20, 0, 0)
    );
}

#[test]
fn a_reliable_subscriber_holds_the_publisher_back_until_the_deadline() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("reliable").reliable().create().unwrap();
    let builder = node.publisher("reliable").keep_last(3);
    let publisher = builder
        .deadline(Duration::from_millis(100))
        .create()
        .unwrap();
    for n in 0..3 {
        publisher.put(&[n]).unwrap();
    }
    let begun = Instant::now();
    let unpublished = publisher.loan(1).unwrap().publish().unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(100));
    // The error names the slow subscriber.
    let who = format!(
        "topic 'reliable' is back-pressured: reliable subscriber 'test' (process {}) did not make room \
         within 100ms. Nothing was published.",
        std::process::id()
    );
    assert!(unpublished.to_string().starts_with(&who), "{unpublished}");
    assert!(!publisher.wait_for_room(1, Duration::ZERO).unwrap());
    assert_eq!(
        subscriber.recv_timeout(SOON).unwrap().as_slice().unwrap(),
        [0]
    );
    let mut loan = *unpublished.loan.unwrap();
    loan.as_mut_slice().unwrap()[0] = 3;
    loan.publish().unwrap();
    // A subscriber that reads while the publisher waits lets the publisher go on.
    let reader = std::thread::spawn(move || {
        let all = (1..5).map(|_| subscriber.recv_timeout(SOON).unwrap());
        all.map(|sample| sample.as_slice().unwrap()[0])
            .collect::<Vec<_>>()
    });
    // A slow machine may need several deadlines.
    while let Err(error) = publisher.put(&[4]) {
        let PutError::Publish(PublishError::BackPressured { .. }) = error else {
            panic!("{error}");
        };
    }
    assert_eq!(reader.join().unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_publisher_that_drops_slow_readers_goes_on_without_them_until_they_have_caught_up() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("slow").reliable().create().unwrap();
    let builder = node.publisher("slow").keep_last(4);
    let builder = builder.slow_reader(SlowReaderPolicy::Drop);
    let publisher = builder.deadline(Duration::ZERO).create().unwrap();
    for n in 0..10 {
        publisher.put(&[n]).unwrap();
    }
    let info = node.topic("slow").unwrap();
    assert_eq!(
        (info.publishers[0].drops, info.subscribers[0].dropped_by),
        (1, 1)
    );
    for n in 6..10 {
        let sample = subscriber.try_recv().unwrap().unwrap();
        assert_eq!(sample.as_slice().unwrap(), [n]);
        assert_eq!(sample.missed(), if n == 6 { 6 } else { 0 });
    }
    publisher.put(&[10]).unwrap();
    let info = node.topic("slow").unwrap();
    assert_eq!(
        (info.publishers[0].drops, info.subscribers[0].dropped_by),
        (1, 0)
    );
    assert_eq!((subscriber.missed(), info.subscribers[0].missed), (6, 6));
}

#[test]
fn publishing_by_who_must_not_wait_fails_at_once_and_keeps_the_loan() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("try").reliable().create().unwrap();
    let publisher = node.publisher("try").keep_last(1).create().unwrap();
    publisher.loan(1).unwrap().try_publish().unwrap();
    let unpublished = publisher.loan(1).unwrap().try_publish().unwrap_err();
    let PublishError::BackPressured {
        readers, waited, ..
    } = unpublished.error
    else {
        panic!("{}", unpublished.error);
    };
    assert_eq!((readers.len(), waited), (0, Duration::ZERO));
    drop(subscriber.try_recv().unwrap().unwrap());
    assert!(publisher.wait_for_room(1, SOON).unwrap());
    unpublished.loan.unwrap().try_publish().unwrap();
}

#[test]
fn late_joiners_get_the_history_also_of_a_publisher_that_left() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let early = node.subscriber("map").create().unwrap();
    let publisher = node
        .publisher("map")
        .keep_last(3)
        .transient_local()
        .create()
        .unwrap();
    for n in 0..5 {
        publisher.put(&[n]).unwrap();
    }
    drop(publisher);
    for (late, expected) in [
        (Late::AllKept, vec![2, 3, 4]),
        (Late::Last(2), vec![3, 4]),
        (Late::Latest, vec![4]),
    ] {
        let subscriber = node.subscriber("map").late(late).create().unwrap();
        for byte in expected {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!(
                (sample.as_slice().unwrap(), sample.missed()),
                (&[byte][..], 0)
            );
        }
        assert!(subscriber.try_recv().unwrap().is_none());
    }
    assert_eq!(
        early.recv_timeout(SOON).unwrap().sequence(),
        2,
        "best effort, three kept"
    );
}

/// The links need this order: after a restart they continue a remote publisher with a new local one.
#[test]
fn unread_messages_of_a_publisher_that_has_ended_come_before_those_of_another() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("steps").reliable().create().unwrap();
    // This publisher has the first slot, so the order of slots would give another result.
    let others = [node.publisher("steps").create().unwrap()];
    let mut expected = Vec::new();
    for round in 0..4u8 {
        let publisher = node.publisher("steps").create().unwrap();
        for step in 0..3 {
            publisher.put(&[round, step]).unwrap();
            expected.push([round, step]);
        }
    }
    others[0].put(&[4, 0]).unwrap();
    others[0].put(&[4, 1]).unwrap();
    expected.extend([[4, 0], [4, 1]]);
    let mut received = Vec::new();
    while received.len() < expected.len() {
        let sample = subscriber.recv_timeout(SOON).unwrap();
        received.push(<[u8; 2]>::try_from(sample.as_slice().unwrap()).unwrap());
    }
    let rounds = |of: &[[u8; 2]], round: u8| -> Vec<u8> {
        let steps = of.iter().filter(|message| message[0] == round);
        steps.map(|message| message[1]).collect()
    };
    for round in 0..5 {
        assert_eq!(rounds(&received, round), rounds(&expected, round));
    }
    // The messages of the publisher that still lives came last.
    assert_eq!(received[12..], expected[12..]);
}

#[test]
fn the_latest_is_the_newest_of_all_publishers_and_restarts_leave_one_history() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let publish = |byte: u8| {
        let publisher = node.publisher("state").keep_last(4).transient_local();
        let publisher = publisher.create().unwrap();
        publisher.put(&[byte]).unwrap();
        publisher
    };
    let expect = |late: Late, expected: &[u8]| {
        let subscriber = node.subscriber("state").late(late).create().unwrap();
        for byte in expected {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!(
                (sample.as_slice().unwrap(), sample.missed()),
                (&[*byte][..], 0)
            );
        }
        assert!(subscriber.try_recv().unwrap().is_none());
    };
    let first = publish(0);
    for restart in 1..=20 {
        drop(publish(restart));
        expect(Late::Latest, &[restart]);
    }
    // The first publisher lives, so its message stays. Of the publishers that left, the last four messages stay.
    expect(Late::AllKept, &[0, 17, 18, 19, 20]);
    expect(Late::Last(2), &[19, 20]);
    first.put(&[21]).unwrap();
    expect(Late::Latest, &[21]);
    let forgotten = node.forget_topic("state").unwrap();
    assert!(forgotten.messages >= 3, "{forgotten:?}");
    expect(Late::AllKept, &[0, 21]);
    drop(first);
    assert_eq!(node.forget_topic("state").unwrap().messages, 2);
    let error = node.forget_topic("state").unwrap_err();
    assert!(error.to_string().contains("rgaps topic list"), "{error}");
}

#[test]
fn a_wait_set_a_listener_and_a_descriptor_tell_of_messages() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let topics = ["a", "b", "c"];
    let publishers = topics.map(|topic| node.publisher(topic).create().unwrap());
    let subscribers = topics.map(|topic| node.subscriber(topic).create().unwrap());
    let mut set = node.wait_set();
    for timeout in [Duration::ZERO, SOON] {
        let error = set.wait(timeout).unwrap_err().to_string();
        assert!(error.contains("the wait set is empty"), "{error}");
    }
    let error = daemon.node("other").wait_set().attach(&subscribers[0]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("of another node"), "{error}");
    let tokens: Vec<_> = subscribers.iter().map(|s| set.attach(s).unwrap()).collect();
    assert!(set.wait(Duration::from_millis(10)).unwrap().is_empty());
    // A subscriber can be in only one wait set.
    let mut other = node.wait_set();
    for set in [&mut other, &mut set] {
        let error = set.attach(&subscribers[1]).unwrap_err().to_string();
        assert!(error.contains("'b' is in a wait set"), "{error}");
    }
    let late = publishers[1].clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        late.put(b"x").unwrap();
    });
    assert_eq!(set.wait(SOON).unwrap(), [tokens[1]]);
    thread.join().unwrap();
    drop(set);
    let token = other.attach(&subscribers[1]).unwrap();
    assert_eq!(other.wait(SOON).unwrap(), [token]);
    assert!(other.detach(token));
    assert_eq!(
        subscribers[1]
            .recv_timeout(SOON)
            .unwrap()
            .as_slice()
            .unwrap(),
        b"x"
    );

    let (sender, receiver) = std::sync::mpsc::channel();
    let listener = subscribers[0]
        .listen(move |sample| sender.send(sample).unwrap())
        .unwrap();
    publishers[0].put(b"y").unwrap();
    let heard = receiver.recv_timeout(SOON).unwrap().unwrap();
    assert_eq!(heard.as_slice().unwrap(), b"y");
    drop(listener);

    let fd = subscribers[2].readiness().unwrap();
    let poll = |timeout_ms: i64| {
        let mut fds = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        let timeout = rustix::event::Timespec {
            tv_sec: timeout_ms / 1000,
            tv_nsec: timeout_ms % 1000 * 1_000_000,
        };
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap()
    };
    for _ in 0..3 {
        assert_eq!(poll(20), 0);
        publishers[2].put(b"z").unwrap();
        publishers[2].put(b"z").unwrap();
        assert_eq!(poll(120_000), 1);
        assert!(subscribers[2].try_recv().unwrap().is_some());
        assert_eq!(poll(120_000), 1, "there is another");
        assert!(subscribers[2].try_recv().unwrap().is_some());
        assert!(subscribers[2].try_recv().unwrap().is_none());
    }
}

#[test]
fn too_many_held_samples_are_an_error_that_loses_nothing() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("held").max_held(2).create().unwrap();
    let publisher = node.publisher("held").create().unwrap();
    for n in 0..3 {
        publisher.put(&[n]).unwrap();
    }
    let held = [subscriber.recv().unwrap(), subscriber.recv().unwrap()];
    let clone = held[0].clone();
    assert_eq!(subscriber.held(), 2);
    assert!(matches!(
        subscriber.try_recv(),
        Err(RecvError::TooManyHeld { limit: 2, .. })
    ));
    drop(held);
    assert_eq!(subscriber.held(), 1);
    assert_eq!(
        subscriber.try_recv().unwrap().unwrap().as_slice().unwrap(),
        [2]
    );
    drop(clone);
}

#[test]
fn traffic_goes_on_without_the_daemon_and_the_next_one_adopts_what_is_there() {
    let mut daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("go-on").reliable().create().unwrap();
    let publisher = node.publisher("go-on").create().unwrap();
    let receive = |subscriber: &rgaps::Subscriber| {
        let sample = subscriber.recv_timeout(SOON).unwrap();
        sample.as_slice().unwrap().to_vec()
    };
    publisher.put(b"before").unwrap();
    assert_eq!(receive(&subscriber), b"before");
    daemon.kill();
    for n in 0..100u8 {
        publisher.put(&[n; 1000]).unwrap();
        assert_eq!(receive(&subscriber), [n; 1000]);
    }
    daemon.restart();
    // A new node joins the same topic, and exchanges messages with the members from before.
    let other = daemon.node("other");
    let newcomer = other.publisher("go-on").create().unwrap();
    let latecomer = other.subscriber("go-on").reliable().create().unwrap();
    newcomer.put(b"after").unwrap();
    publisher.put(b"on").unwrap();
    for subscriber in [&subscriber, &latecomer] {
        let mut two = [receive(subscriber), receive(subscriber)];
        two.sort();
        assert_eq!(two, [&b"after"[..], b"on"]);
    }
}

#[test]
fn a_forked_childs_handles_refuse() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let subscriber = node.subscriber("fork").create().unwrap();
    let publisher = node.publisher("fork").create().unwrap();
    publisher.put(b"x").unwrap();
    let sample = subscriber.recv_timeout(SOON).unwrap();
    // SAFETY: the child only calls into handles that refuse at once, and ends without unwinding.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = [
            publisher.loan(1).is_err(),
            subscriber.try_recv().is_err(),
            sample.as_slice().is_err(),
            node.topics().is_err(),
            node.publisher("fork").create().is_err(),
        ];
        drop((sample, subscriber, publisher, node));
        // SAFETY: `_exit` ends the child at once, and runs no destructors or exit handlers.
        unsafe { libc::_exit(refused.iter().filter(|refused| !**refused).count() as i32) };
    }
    let mut status = 0;
    // SAFETY: `pid` is our own child, which nobody else waits for, and `status` outlives the call.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "a handle did not refuse, or crashed");
    assert_eq!(sample.as_slice().unwrap(), b"x");
    publisher.put(b"y").unwrap();
    assert_eq!(
        subscriber.recv_timeout(SOON).unwrap().as_slice().unwrap(),
        b"y"
    );
}
