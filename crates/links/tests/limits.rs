//! Limits of what crosses between hosts: rules and quotas; and what an outage loses.
#![forbid(unsafe_code)]
mod support;

use rgaps::{Node, PathKind, Publisher, RemoteRow, Subscriber};
use std::time::Instant;
use support::{
    content, noted, nothing_more, ports, receive, try_put, until, wait_for_subscribers, Host,
    LIMIT, LOOK_AGAIN, SHORT,
};

/// Starts `host-a` and `host-b`, each with these further lines in its `[links]`.
fn two(more: [&str; 2]) -> [Host; 2] {
    two_with_pools(more, ["cap = \"2GiB\""; 2])
}

fn two_with_pools(more: [&str; 2], pools: [&str; 2]) -> [Host; 2] {
    let ports = ports(2);
    let start = |at: usize| {
        let name = ["host-a", "host-b"][at];
        let links = format!(
            "host = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
             connect = [\"tcp/127.0.0.1:{}\"]\n{}",
            ports[at],
            ports[1 - at],
            more[at]
        );
        Host::start_with_pool(name, &links, pools[at], Vec::new())
    };
    [start(0), start(1)]
}

/// Waits until `topic info` has a row with this text, and returns the row.
fn told(node: &Node, topic: &str, says: &str) -> RemoteRow {
    let begun = Instant::now();
    loop {
        let rows = node
            .topic(topic)
            .map(|topic| topic.remote)
            .unwrap_or_default();
        if let Some(row) = rows.iter().find(|row| row.path.contains(says)) {
            return row.clone();
        }
        assert!(
            begun.elapsed() < LIMIT,
            "waited for '{says}' in 'topic info': {rows:?}"
        );
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Checks that messages of the first topic do not cross, while those of the second, published right after them, do.
fn does_not_cross(refused: (&Publisher, &Subscriber), allowed: (&Publisher, &Subscriber)) {
    for _ in 0..20 {
        refused.0.put(b"no").unwrap();
        allowed.0.put(b"yes").unwrap();
        assert_eq!(receive(allowed.1).as_slice().unwrap(), b"yes");
    }
    let more = refused.1.try_recv();
    assert!(matches!(more, Ok(None)), "{more:?}");
}

fn rule(name: &str, peer: &str, topics: &str, direction: &str, action: &str) -> String {
    format!(
        "[[links.rules]]\nname = \"{name}\"\npeer = \"{peer}\"\ntopics = [\"{topics}\"]\n\
         direction = \"{direction}\"\naction = \"{action}\"\n"
    )
}

#[test]
fn a_topic_that_may_not_go_to_a_host_does_not_and_others_do() {
    let rules = rule("small", "*", "camera/small", "send", "allow")
        + &rule("no-cameras", "host-b*", "camera/**", "send", "deny");
    let hosts = two([&rules, ""]);
    let (a, b) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let subscriber = |topic: &str| b.subscriber(topic).reliable().create().unwrap();
    let (raw, small) = (subscriber("camera/raw"), subscriber("camera/small"));
    let publisher = |topic: &str| a.publisher(topic).deadline(LIMIT).create().unwrap();
    let (raw_out, small_out) = (publisher("camera/raw"), publisher("camera/small"));
    wait_for_subscribers(&small_out, 1);
    let row = told(&a, "camera/raw", "links.rules 'no-cameras'");
    assert_eq!(
        (row.host.as_str(), row.subscribers, row.ready),
        ("host-b", 1, false)
    );
    raw_out.put(b"raw").unwrap();
    small_out.put(b"small").unwrap();
    assert_eq!(receive(&small).as_slice().unwrap(), b"small");
    does_not_cross((&raw_out, &raw), (&small_out, &small));
    assert_eq!(raw_out.subscribers(), 0);
    // A publisher that waits for subscribers is told why it waits in vain.
    let missing = raw_out.missing_subscribers(1);
    assert_eq!(
        missing,
        "topic 'camera/raw' has 0 of 1 subscribers; 1 on host 'host-b' cannot be reached: not: links.rules 'no-cameras' \
         does not let this topic go to 'host-b'"
    );
    noted(&a, "camera/raw", "the rule", |row| {
        row.why.contains("no-cameras")
    });
}

#[test]
fn a_topic_that_may_not_come_from_a_host_is_refused_here_also_if_it_is_sent() {
    let hosts = two([
        "",
        &rule("no-commands", "host-a", "command/**", "receive", "deny"),
    ]);
    let (a, b) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    // host-b asks for the topic, since other hosts might send it, and host-a sends topics that it is asked for.
    let command = b.subscriber("command/go").reliable().create().unwrap();
    let state = b.subscriber("state").reliable().create().unwrap();
    let command_out = a.publisher("command/go").deadline(LIMIT).create().unwrap();
    let state_out = a.publisher("state").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&state_out, 1);
    let row = told(&a, "command/go", "links.rules 'no-commands'");
    assert_eq!((row.host.as_str(), row.ready), ("host-b", false));
    // On this host, the listing says which host the topic does not come from.
    let row = told(&b, "command/go", "come from 'host-a'");
    assert_eq!(
        (row.host.as_str(), row.subscribers, row.ready),
        ("host-a", 0, false)
    );
    command_out.put(b"go").unwrap();
    state_out.put(b"1").unwrap();
    assert_eq!(receive(&state).as_slice().unwrap(), b"1");
    does_not_cross((&command_out, &command), (&state_out, &state));
    assert_eq!(command_out.subscribers(), 0);
    noted(&b, "command/go", "the rule", |row| {
        row.why.contains("no-commands")
    });
}

#[test]
fn what_may_come_from_nobody_is_not_asked_for() {
    let hosts = two(["", &rule("closed", "*", "secret/**", "receive", "deny")]);
    let (a, b) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let secret = b.subscriber("secret/key").create().unwrap();
    let open = b.subscriber("open").reliable().create().unwrap();
    let secret_out = a.publisher("secret/key").create().unwrap();
    let open_out = a.publisher("open").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&open_out, 1);
    let row = told(&b, "secret/key", "links.rules 'closed'");
    assert_eq!((row.host.as_str(), row.ready), ("*", false));
    secret_out.put(b"k").unwrap();
    open_out.put(b"o").unwrap();
    assert_eq!(receive(&open).as_slice().unwrap(), b"o");
    does_not_cross((&secret_out, &secret), (&open_out, &open));
    // The other host was not told of the topic.
    assert_eq!(a.topic("secret/key").unwrap().remote, []);
}

#[test]
fn a_publisher_that_needs_more_than_is_left_of_a_quota_waits_until_there_is_some() {
    const QUOTA: &str = "[[links.quotas]]\nname = \"cameras\"\ntopics = [\"camera/**\"]\n\
                         message_max = \"1MiB\"\nlanding_max = \"4MiB\"\n";
    let hosts = two(["", QUOTA]);
    let (a, b) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let subscriber = |topic: &str| b.subscriber(topic).reliable().create().unwrap();
    let (left, right) = (subscriber("camera/left"), subscriber("camera/right"));
    let publisher = |topic: &str| {
        let publisher = a.publisher(topic).keep_last(3).deadline(LIMIT);
        publisher.create().unwrap()
    };
    let left_out = publisher("camera/left");
    wait_for_subscribers(&left_out, 1);
    let right_out = publisher("camera/right");
    let row = told(
        &a,
        "camera/right",
        "quota 'cameras': landing_max: topic needs 3MiB, 1MiB left of 4MiB",
    );
    assert_eq!((row.host.as_str(), row.ready), ("host-b", false));
    assert_eq!(right_out.subscribers(), 0);
    let missing = right_out.missing_subscribers(1);
    assert!(
        missing.contains("on host 'host-b'") && missing.contains("quota 'cameras': landing_max"),
        "{missing}"
    );
    noted(&b, "camera/right", "the quota", |row| {
        row.why.contains("landing_max")
    });
    let sent = content(1, 900_000);
    left_out.put(&sent).unwrap();
    assert!(receive(&left).as_slice().unwrap() == sent);
    // Longer than the quota's messages may be.
    left_out.put(&content(2, 1_100_000)).unwrap();
    left_out.put(&sent).unwrap();
    let sample = receive(&left);
    assert!(sample.as_slice().unwrap() == sent);
    assert_eq!(sample.missed(), 1);
    noted(&b, "camera/left", "a message that was too long", |row| {
        row.refused >= 1
    });
    drop(sample);
    // The other topic gets the part of the quota that the first one had.
    drop((left, left_out));
    wait_for_subscribers(&right_out, 1);
    right_out.put(&sent).unwrap();
    assert!(receive(&right).as_slice().unwrap() == sent);
}

#[test]
fn a_message_longer_than_what_may_be_in_flight_is_left_out_and_said() {
    for key in ["in_flight_max", "outage_max"] {
        let hosts = two([&format!("{key} = \"1MiB\"\n"), ""]);
        let (a, b) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
        let subscriber = b.subscriber("weights").reliable().create().unwrap();
        let publisher = a.publisher("weights").keep_last(3).deadline(LIMIT);
        let publisher = publisher.create().unwrap();
        wait_for_subscribers(&publisher, 1);
        let sent = content(1, 900_000);
        publisher.put(&content(2, 1_100_000)).unwrap();
        publisher.put(&sent).unwrap();
        assert!(receive(&subscriber).as_slice().unwrap() == sent);
        noted(&a, "weights", "the message that was too long", |row| {
            row.refused == 1 && row.why.contains(&format!("raise links.{key}"))
        });
    }
}

#[test]
fn shares_of_a_link_add_up_to_no_more_than_it_has_and_a_topic_has_no_more_than_its_share() {
    const RATE: u64 = 4_000_000;
    const BYTES: usize = 200_000;
    const COUNT: u64 = 30;
    let quota = format!(
        "rate_max = 6000000\n[[links.quotas]]\nname = \"slow\"\ntopics = [\"slow/*\"]\nrate_max = {RATE}\n"
    );
    let hosts = two([&quota, ""]);
    let (a, b) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let one = b.subscriber("slow/1").reliable().create().unwrap();
    let one_out = a
        .publisher("slow/1")
        .keep_last(4)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&one_out, 1);
    let _two = b.subscriber("slow/2").reliable().create().unwrap();
    let _two_out = a.publisher("slow/2").create().unwrap();
    told(
        &a,
        "slow/2",
        "quota 'slow': rate_max: topic needs 4000000 a second, 2000000 left of links.rate_max = 6000000",
    );
    let begun = Instant::now();
    let publishing = std::thread::spawn(move || {
        for number in 0..COUNT {
            one_out.put(&content(number, BYTES)).unwrap();
        }
        one_out
    });
    for number in 0..COUNT {
        let sample = receive(&one);
        assert_eq!((sample.sequence(), sample.missed()), (number, 0));
        assert!(sample.as_slice().unwrap() == content(number, BYTES));
        // This is an upper limit, so a slow machine does not fail it.
        let came = (number + 1) * BYTES as u64;
        let most = begun.elapsed().as_secs_f64() * RATE as f64 + RATE as f64 / 20.0 + BYTES as f64;
        assert!(came as f64 <= most, "{came} bytes in {:?}", begun.elapsed());
    }
    until("the publisher", || publishing.is_finished());
    publishing.join().unwrap();
}

#[test]
fn what_is_staged_has_a_quota_too() {
    const QUOTA: &str = "[[links.quotas]]\nname = \"out\"\ntopics = [\"log/**\"]\n\
                         message_max = 1000\nstaging_max = 5000\n";
    let hosts = two([QUOTA, ""]);
    let (a, b) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let (big, fits) = (b.subscriber("log/big"), b.subscriber("log/fits"));
    let (_big, fits) = (big.create().unwrap(), fits.reliable().create().unwrap());
    let big_out = a.publisher("log/big").keep_last(6).create().unwrap();
    told(
        &a,
        "log/big",
        "quota 'out': staging_max: topic needs 6000, 5000 left of 5000",
    );
    let fits_out = a
        .publisher("log/fits")
        .keep_last(5)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&fits_out, 1);
    assert_eq!(big_out.subscribers(), 0);
    for number in 0..50 {
        fits_out.put(&content(number, 1000)).unwrap();
        let sample = receive(&fits);
        assert!(sample.as_slice().unwrap() == content(number, 1000));
    }
}

#[test]
fn a_path_to_another_host_is_not_used_where_a_faster_one_is_required() {
    let hosts = two(["", ""]);
    let (a, b) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let reader = |topic: &str| b.subscriber(topic).reliable();
    let (fast, any) = (
        reader("fast").create().unwrap(),
        reader("any").create().unwrap(),
    );
    let picky = reader("picky").require(PathKind::Pinned).create().unwrap();
    let writer = |topic: &str| a.publisher(topic).deadline(LIMIT);
    let fast_out = writer("fast").require(PathKind::ZeroCopy).create().unwrap();
    let any_out = writer("any").require(PathKind::Tcp).create().unwrap();
    let picky_out = writer("picky").create().unwrap();
    wait_for_subscribers(&any_out, 1);
    let row = told(
        &a,
        "fast",
        "not: the publisher requires a path of zero_copy or better",
    );
    assert_eq!((row.host.as_str(), row.ready), ("host-b", false));
    // The other host's daemon refuses the publisher that its links would have for this one.
    let row = told(
        &a,
        "picky",
        "requires a path of pinned or better, and this one is tcp",
    );
    assert_eq!((row.host.as_str(), row.ready), ("host-b", false));
    for publisher in [&fast_out, &picky_out, &any_out] {
        publisher.put(b"1").unwrap();
    }
    assert_eq!(receive(&any).as_slice().unwrap(), b"1");
    for refused in [(&fast_out, &fast), (&picky_out, &picky)] {
        does_not_cross(refused, (&any_out, &any));
    }
    assert_eq!((fast_out.subscribers(), picky_out.subscribers()), (0, 0));
    // If messages already come from another host, a subscriber that requires a better path is refused at once.
    let refused = reader("any").require(PathKind::Rdma).create().unwrap_err();
    assert!(refused.to_string().contains("another host"), "{refused}");
}

#[test]
fn what_an_outage_lost_is_told_with_the_next_message_and_in_the_listing() {
    const LOST: u64 = 5;
    let short = "outage_ms = 300\nlease_ms = 300\n";
    let mut hosts = two([short, short]);
    let (a, b) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = b.subscriber("state").reliable().create().unwrap();
    let publisher = a
        .publisher("state")
        .keep_last(16)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 1);
    publisher.put(&content(0, 1000)).unwrap();
    assert!(receive(&subscriber).as_slice().unwrap() == content(0, 1000));
    hosts[1].kill_links();
    for number in 1..=LOST {
        publisher.put(&content(number, 1000)).unwrap();
    }
    until("nobody there any more", || publisher.subscribers() == 0);
    noted(&a, "state", "what was given up", |row| row.gave_up > 0);
    // Messages that nobody kept, since the host was given up, are missed, too.
    until("the topic to go nowhere", || {
        a.topic("state").unwrap().remote.is_empty()
    });
    for number in LOST + 1..=2 * LOST {
        publisher.put(&content(number, 1000)).unwrap();
    }
    hosts[1].start_links();
    wait_for_subscribers(&publisher, 1);
    publisher.put(&content(100, 1000)).unwrap();
    let sample = receive(&subscriber);
    assert!(sample.as_slice().unwrap() == content(100, 1000));
    assert_eq!(sample.missed(), 2 * LOST);
    noted(&b, "state", "what was missed", |row| row.missed == 2 * LOST);
    publisher.put(&content(101, 1000)).unwrap();
    let sample = receive(&subscriber);
    assert!(sample.as_slice().unwrap() == content(101, 1000));
    assert_eq!(sample.missed(), 0);
}

#[test]
fn a_full_pool_where_messages_land_holds_their_topic_back_and_loses_nothing() {
    const BYTES: usize = 4 << 20;
    // More messages than the other host's pool and the link's limits together have room for.
    const COUNT: u64 = 60;
    let small_limits = "in_flight_max = \"16MiB\"\noutage_max = \"16MiB\"\nheld_max = 4\n";
    let pools = ["cap = \"2GiB\"", "cap = \"64MiB\""];
    let hosts = two_with_pools([small_limits, ""], pools);
    let (here, there) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let large = there.subscriber("large").reliable().max_held(COUNT as u32);
    let large = large.create().unwrap();
    let small = there.subscriber("small").reliable().create().unwrap();
    let small_there = here.publisher("small").deadline(LIMIT).create().unwrap();
    let publisher = here.publisher("large").keep_last(4).deadline(SHORT);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 1);
    wait_for_subscribers(&small_there, 1);
    small_there.put(&content(0, 1000)).unwrap();
    assert!(receive(&small).as_slice().unwrap() == content(0, 1000));
    // The test holds all messages that have landed, until there is no memory for more.
    let mut held = Vec::new();
    let mut is_full_there = || {
        held.extend(std::iter::from_fn(|| large.try_recv().unwrap()));
        let pools = there.pools().unwrap();
        pools
            .iter()
            .any(|pool| pool.leased_bytes + BYTES as u64 > pool.cap_bytes)
    };
    let mut next = 0;
    loop {
        match try_put(&publisher, &content(next, BYTES)) {
            true => next += 1,
            // The publisher was back-pressured because the other host's pool is full.
            false if is_full_there() => break,
            false => {}
        }
        assert!(next < COUNT, "nothing holds the publisher back");
    }
    for number in 1..20 {
        small_there.put(&content(number, 1000)).unwrap();
        assert!(receive(&small).as_slice().unwrap() == content(number, 1000));
    }
    let publishing = std::thread::spawn(move || {
        for number in next..COUNT {
            while !try_put(&publisher, &content(number, BYTES)) {}
        }
        publisher
    });
    let left = held.len() as u64..COUNT;
    let rest = left.map(|_| receive(&large));
    for (number, sample) in (0..COUNT).zip(held.into_iter().chain(rest)) {
        assert_eq!((sample.sequence(), sample.missed()), (number, 0));
        assert!(sample.as_slice().unwrap() == content(number, BYTES));
    }
    let publisher = publishing.join().unwrap();
    nothing_more(&publisher, &[&large]);
}
