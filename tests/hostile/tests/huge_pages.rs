//! Huge pages are asked for, and the system has none, or not enough: a warning or an error, and never a missing page.

use rgaps::{Publisher, Subscriber};
use rgaps_hostile::daemon;
use rgaps_testkit::{Daemon, LIMIT};
use std::path::Path;

const MIB: usize = 1 << 20;
const MESSAGE_BYTES: usize = 4 * MIB;
/// Messages that the publisher keeps: 24 MiB, of segments of 4 MiB.
const KEPT: u32 = 6;
/// Where the system's reserve of huge pages is.
const RESERVE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn daemon(pages: &str) -> Daemon {
    daemon::start_with(&[
        ("RGAPS_POOL__HOST__HUGEPAGES", pages),
        ("RGAPS_POOL__HOST__SEGMENT", "4MiB"),
    ])
}

fn pair(daemon: &Daemon) -> (Publisher, Subscriber) {
    let node = daemon.node("member");
    let publisher = node.publisher("huge").keep_last(KEPT).deadline(LIMIT);
    let subscriber = node.subscriber("huge").reliable();
    (
        publisher.create().expect("a publisher"),
        subscriber.create().expect("a subscriber"),
    )
}

fn content(number: usize) -> Vec<u8> {
    (0..MESSAGE_BYTES)
        .map(|at| (at / 7 + number) as u8)
        .collect()
}

/// Messages come whole, over more memory than the reserve has.
fn flows(publisher: &Publisher, subscriber: &Subscriber) {
    for number in 0..3 * KEPT as usize {
        let sent = content(number);
        publisher.put(&sent).expect("published");
        let sample = subscriber.recv_timeout(LIMIT).expect("received");
        assert!(
            sample.as_slice().expect("host memory") == sent,
            "message {number}"
        );
    }
}

/// The system's reserve, as long as it is this value; `None`: this test may not change it, or somebody uses it.
struct Reserve;

impl Reserve {
    fn of(pages: u64) -> Option<Reserve> {
        let now = || Some(std::fs::read_to_string(RESERVE).ok()?.trim().to_owned());
        if now()? != "0" {
            return None;
        }
        std::fs::write(RESERVE, pages.to_string()).ok()?;
        let reserve = Reserve;
        (now()? == pages.to_string()).then_some(reserve)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = std::fs::write(RESERVE, "0");
    }
}

/// One test, since the reserve is the system's.
#[test]
fn too_few_huge_pages_are_a_warning_or_an_error_and_no_end_of_a_process() {
    let has_none = std::fs::read_to_string(RESERVE).is_ok_and(|pages| pages.trim() == "0");
    if Path::new(RESERVE).exists() && !has_none {
        return eprintln!("left out: this system has reserved huge pages, which others may use");
    }
    // None at all.
    let mut tries = daemon("try");
    let (publisher, subscriber) = pair(&tries);
    flows(&publisher, &subscriber);
    assert!(tries.log().contains("ordinary pages instead of huge ones"));
    assert!(tries.log().contains("vm.nr_hugepages"));
    tries.assert_well();

    let mut requires = daemon("require");
    let node = requires.node("member");
    let refused = match node.publisher("huge").keep_last(KEPT).create() {
        Ok(publisher) => publisher
            .put(&content(0))
            .expect_err("no huge pages")
            .to_string(),
        Err(error) => error.to_string(),
    };
    assert!(refused.contains("vm.nr_hugepages"), "{refused}");
    requires.assert_well();

    // They run out midway.
    let Some(reserve) = Reserve::of(4) else {
        return eprintln!("left out: huge pages cannot be reserved here");
    };
    let mut tries = daemon("try");
    let (publisher, subscriber) = pair(&tries);
    flows(&publisher, &subscriber);
    assert!(tries.log().contains("vm.nr_hugepages"));
    tries.assert_well();
    drop((publisher, subscriber, tries));

    let mut requires = daemon("require");
    let (publisher, subscriber) = pair(&requires);
    // The publisher keeps fewer messages, and goes on with what there is.
    flows(&publisher, &subscriber);
    let mut loans = Vec::new();
    let refused = loop {
        match publisher.loan(MESSAGE_BYTES as u64) {
            Ok(loan) => loans.push(loan),
            Err(error) => break error.to_string(),
        }
        assert!(
            loans.len() <= KEPT as usize,
            "more than the reserve was leased"
        );
    };
    assert!(refused.contains("vm.nr_hugepages"), "{refused}");
    drop(loans);
    flows(&publisher, &subscriber);
    requires.assert_well();
    drop((publisher, subscriber, requires, reserve));
}
