//! Every subscriber counts exactly the messages that were lost between hosts, whatever process was killed, stopped or ended meanwhile.
#![forbid(unsafe_code)]
mod support;

use rgaps::{PublishError, Publisher, SlowReaderPolicy, Subscriber};
use rgaps_testkit::{resume, stop};
use rustix::process::{kill_process, Pid, Signal};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use support::{
    content, hosts, is_last, last_message, ports, receive, try_put, until, wait_for_subscribers,
    Host, LOOK_AGAIN, SHORT,
};

const BYTES: usize = 1000;
/// How often a test disturbs the hosts.
const TIMES: usize = 5;

/// A subscriber that reads until the last message. `next`: the number of its latest message, plus one. The thread returns how many
/// messages it received and missed.
struct Reader {
    next: Arc<AtomicU64>,
    thread: JoinHandle<(u64, u64)>,
}

impl Reader {
    /// Starts a reader that checks `Sample::missed` of each message against the gap in the numbers.
    fn start(subscriber: Subscriber) -> Reader {
        let next: Arc<AtomicU64> = Arc::default();
        let told = next.clone();
        let thread = std::thread::spawn(move || {
            let (mut received, mut missed) = (0, 0);
            loop {
                let sample = receive(&subscriber);
                let (number, next) = (sample.tag(), told.load(Ordering::SeqCst));
                assert!(number >= next, "message {number} came after {}", next - 1);
                let lost = number - next;
                assert_eq!(sample.missed(), lost, "before message {number}");
                received += 1;
                missed += lost;
                told.store(number + 1, Ordering::SeqCst);
                let payload = sample.as_slice().unwrap();
                if is_last(payload) {
                    return (received, missed);
                }
                assert!(payload == content(number, BYTES), "message {number}");
            }
        });
        Reader { next, thread }
    }
}

/// Publishes messages with increasing tags until `end` is set, and then last messages until `stop` is set: a single last message may be
/// lost, too. Retries a message that is back-pressured for longer than its deadline.
fn publish_on(
    publisher: Publisher,
    published: Arc<AtomicU64>,
    [end, stop]: [Arc<AtomicBool>; 2],
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let send = |tag: u64, payload: &[u8]| loop {
            let mut loan = publisher.loan(payload.len() as u64).unwrap();
            loan.write(0, payload).unwrap();
            loan.set_tag(tag);
            match loan.publish() {
                Ok(_) => return published.store(tag + 1, Ordering::SeqCst),
                Err(unpublished) => match unpublished.error {
                    PublishError::BackPressured { .. } => {}
                    error => panic!("message {tag}: {error}"),
                },
            }
        };
        let mut number = 0;
        while !stop.load(Ordering::SeqCst) {
            match end.load(Ordering::SeqCst) {
                false => send(number, &content(number, BYTES)),
                true => send(number, last_message()),
            }
            number += 1;
            // Leaves the processor to the hosts; nothing depends on how long.
            std::thread::sleep(LOOK_AGAIN);
        }
    })
}

/// Publishes while `what` happens [`TIMES`] times, and checks that each subscriber has received or missed every message. Returns how many
/// all subscribers together missed.
fn all_is_counted(
    publisher: Publisher,
    subscribers: Vec<Subscriber>,
    mut what: impl FnMut(),
) -> u64 {
    let published: Arc<AtomicU64> = Arc::default();
    let ends: [Arc<AtomicBool>; 2] = Default::default();
    let readers: Vec<_> = subscribers.into_iter().map(Reader::start).collect();
    let publishing = publish_on(publisher, published.clone(), ends.clone());
    let flows = || {
        let sent = published.load(Ordering::SeqCst);
        until("messages to come through", || {
            let mut all = readers.iter();
            all.all(|reader| {
                reader.thread.is_finished() || reader.next.load(Ordering::SeqCst) > sent
            })
        });
    };
    flows();
    for _ in 0..TIMES {
        what();
        flows();
    }
    ends[0].store(true, Ordering::SeqCst);
    until("the last message", || {
        readers.iter().all(|reader| reader.thread.is_finished())
    });
    ends[1].store(true, Ordering::SeqCst);
    until("the publisher", || publishing.is_finished());
    publishing.join().unwrap();
    let mut missed_by_all = 0;
    for reader in readers {
        let published = reader.next.load(Ordering::SeqCst);
        let (received, missed) = reader.thread.join().unwrap();
        assert_eq!(received + missed, published);
        println!("{received} of {published} were received, {missed} missed");
        missed_by_all += missed;
    }
    missed_by_all
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// How many messages a publisher keeps if at times more than these are on their way.
const FEW: u32 = 16;
/// How many messages a publisher keeps if never more are on their way.
const MANY: u32 = 4096;

/// The topic's publisher on the first host, and two subscribers on the second.
fn members(hosts: &[Host]) -> (Publisher, Vec<Subscriber>) {
    members_with(hosts, FEW, SlowReaderPolicy::Fail)
}

fn members_with(
    hosts: &[Host],
    keeps: u32,
    policy: SlowReaderPolicy,
) -> (Publisher, Vec<Subscriber>) {
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = || there.subscriber("stream").reliable().create().unwrap();
    let subscribers = vec![subscriber(), subscriber()];
    let publisher = here.publisher("stream").keep_last(keeps).deadline(SHORT);
    let publisher = publisher.slow_reader(policy).create().unwrap();
    wait_for_subscribers(&publisher, 2);
    (publisher, subscribers)
}

#[test]
fn what_is_lost_when_the_publishers_own_links_are_killed_is_counted() {
    let mut hosts = hosts(2, "");
    let (publisher, subscribers) = members(&hosts);
    all_is_counted(publisher, subscribers, || {
        hosts[0].kill_links();
        hosts[0].start_links();
    });
}

#[test]
fn what_is_lost_when_the_sending_links_are_stopped_is_counted() {
    // The other host gives them up while they are stopped, and the publisher goes on without them.
    let hosts = hosts(2, "outage_ms = 300\nlease_ms = 300\nheld_max = 8\n");
    let (publisher, subscribers) = members_with(&hosts, FEW, SlowReaderPolicy::Drop);
    let there = hosts[1].node("looks");
    all_is_counted(publisher, subscribers, || {
        let links = hosts[0].links.as_ref().unwrap().id();
        stop(links);
        support::stream::lost(&there, "host-a");
        resume(links);
        hosts[1].wait_for_peers(1);
    });
}

#[test]
fn a_host_that_was_given_up_while_it_was_stopped_is_linked_anew() {
    let hosts = hosts(2, "outage_ms = 300\nlease_ms = 300\n");
    let (publisher, mut subscribers) = members_with(&hosts, MANY, SlowReaderPolicy::Drop);
    let subscriber = subscribers.pop().unwrap();
    let links = hosts[0].links.as_ref().unwrap().id();
    for round in 0..TIMES {
        stop(links);
        // The links' publisher of that host's messages has left: the host is given up.
        until("the host to be given up", || subscriber.publishers() == 0);
        resume(links);
        until("the host to be back", || subscriber.publishers() == 1);
        until("a message of this round", || {
            publisher.put(&[round as u8]).unwrap();
            let received = subscriber.try_recv().unwrap();
            received.is_some_and(|sample| sample.as_slice().unwrap() == [round as u8])
        });
    }
}

/// Hosts whose daemons start their links.
fn whole_hosts() -> Vec<Host> {
    let ports = ports(2);
    let start = |at: usize| {
        let name = ["host-a", "host-b"][at];
        let links = format!(
            "enabled = true\nhost = \"{name}\"\nlisten = \"127.0.0.1:0\"\n\
             control = [\"tcp/127.0.0.1:{}\"]\nconnect = [\"tcp/127.0.0.1:{}\"]",
            ports[at],
            ports[1 - at]
        );
        Host::start_whole(name, &links)
    };
    vec![start(0), start(1)]
}

#[test]
fn what_is_lost_when_the_publishers_daemon_is_killed_is_counted() {
    let mut hosts = whole_hosts();
    let (publisher, subscribers) = members(&hosts);
    all_is_counted(publisher, subscribers, || {
        hosts[0].kill_daemon();
        hosts[0].start_daemon();
    });
}

#[test]
fn what_is_lost_when_the_publishers_daemon_ends_is_counted() {
    let mut hosts = whole_hosts();
    let (publisher, subscribers) = members(&hosts);
    all_is_counted(publisher, subscribers, || {
        signal(hosts[0].daemon.id(), Signal::TERM);
        hosts[0].daemon.wait();
        hosts[0].start_daemon();
    });
}

#[test]
fn what_is_lost_when_links_are_killed_at_both_ends_is_counted() {
    let mut hosts = hosts(2, "");
    let (publisher, subscribers) = members(&hosts);
    let mut turn = 0;
    all_is_counted(publisher, subscribers, || {
        turn += 1;
        hosts[turn % 2].kill_links();
        hosts[1 - turn % 2].kill_links();
        hosts.iter_mut().for_each(Host::start_links);
    });
}

#[test]
fn a_subscriber_that_skips_the_message_after_a_gap_counts_the_gap() {
    const KEEPS: u64 = 4;
    let mut hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let stream = || there.subscriber("stream");
    let prompt = stream().create().unwrap();
    let slow = stream().create().unwrap();
    let newest = stream().depth(1).create().unwrap();
    let publisher = here.publisher("stream").keep_last(KEEPS as u32);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 3);
    let send = |number: u64| {
        let payload = content(number, BYTES);
        let mut loan = publisher.loan(BYTES as u64).unwrap();
        loan.write(0, &payload).unwrap();
        loan.set_tag(number);
        loan.publish().unwrap();
    };
    send(0);
    for subscriber in [&prompt, &slow, &newest] {
        let sample = receive(subscriber);
        assert_eq!((sample.tag(), sample.missed()), (0, 0));
    }
    let mut next = 1;
    for _ in 0..TIMES {
        // No links take the messages that are published meanwhile.
        let before = next;
        hosts[0].kill_links();
        (0..10 * KEEPS).for_each(|number| send(before + number));
        hosts[0].start_links();
        next += 10 * KEEPS;
        // More messages come after the gap than the ring on the other host holds.
        let (mut lost, mut read, mut after_gap) = (0, before, 0);
        until("messages after the gap", || {
            send(next);
            next += 1;
            while let Some(sample) = prompt.try_recv().unwrap() {
                assert_eq!(sample.missed(), sample.tag() - read);
                lost += sample.missed();
                read = sample.tag() + 1;
                after_gap += u64::from(lost > 0);
            }
            after_gap > 2 * KEEPS
        });
        // The last message arrives before the others look.
        while read < next {
            read = receive(&prompt).tag() + 1;
        }
        let sample = receive(&newest);
        assert_eq!(
            (sample.tag(), sample.missed()),
            (next - 1, next - 1 - before)
        );
        let mut expected = before;
        while expected < next {
            let sample = receive(&slow);
            assert_eq!(sample.missed(), sample.tag() - expected);
            if expected == before {
                assert!(sample.missed() > lost, "it read the message after the gap");
            }
            expected = sample.tag() + 1;
        }
    }
}

// The links' seat in a topic saves messages while their process is away: see docs/decisions/0035-seats-of-the-links.md.

#[test]
fn links_that_are_killed_where_messages_leave_lose_nothing_that_the_publisher_keeps() {
    let mut hosts = hosts(2, "");
    let (publisher, subscribers) = members_with(&hosts, MANY, SlowReaderPolicy::Fail);
    let missed = all_is_counted(publisher, subscribers, || {
        hosts[0].kill_links();
        hosts[0].start_links();
    });
    assert_eq!(missed, 0);
}

#[test]
fn a_daemon_that_is_killed_where_messages_leave_loses_nothing_that_the_publisher_keeps() {
    let mut hosts = whole_hosts();
    let (publisher, subscribers) = members_with(&hosts, MANY, SlowReaderPolicy::Fail);
    let missed = all_is_counted(publisher, subscribers, || {
        hosts[0].kill_daemon();
        hosts[0].start_daemon();
    });
    assert_eq!(missed, 0);
}

#[test]
fn a_daemon_that_ends_where_messages_leave_loses_nothing_that_the_publisher_keeps() {
    let mut hosts = whole_hosts();
    let (publisher, subscribers) = members_with(&hosts, MANY, SlowReaderPolicy::Fail);
    let missed = all_is_counted(publisher, subscribers, || {
        signal(hosts[0].daemon.id(), Signal::TERM);
        hosts[0].daemon.wait();
        hosts[0].start_daemon();
    });
    assert_eq!(missed, 0);
}

#[test]
fn a_reliable_publisher_waits_for_its_links_which_are_away() {
    let mut hosts = hosts(2, "");
    let (publisher, subscribers) = members(&hosts);
    let first = content(0, BYTES);
    publisher.put(&first).unwrap();
    for subscriber in &subscribers {
        assert!(receive(subscriber).as_slice().unwrap() == first);
    }
    hosts[0].kill_links();
    let mut published = 1;
    while try_put(&publisher, &content(published, BYTES)) {
        published += 1;
        assert!(published < 1 + u64::from(FEW) * 4, "nobody holds it back");
    }
    assert!(published > u64::from(FEW));
    hosts[0].start_links();
    for subscriber in &subscribers {
        for number in 1..published {
            let sample = receive(subscriber);
            assert!(sample.as_slice().unwrap() == content(number, BYTES));
            assert_eq!(sample.missed(), 0);
        }
    }
    until("the publisher to go on", || {
        try_put(&publisher, &content(published, BYTES))
    });
    for subscriber in &subscribers {
        assert!(receive(subscriber).as_slice().unwrap() == content(published, BYTES));
    }
}
