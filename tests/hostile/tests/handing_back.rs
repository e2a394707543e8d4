//! After a daemon's death, clients hand the zone back. Some hand back what is not theirs, or was
//! never a zone, before those who tell the truth come.

use rgaps_hostile::daemon;
use rgaps_hostile::honest::{Expect, Pair};
use rgaps_hostile::liar::{subscriber, Joined, Liar};
use rgaps_hostile::scribble::Scribbler;
use rgaps_layout::{RegistryHeader, CONTROL_BYTES};
use rgaps_pool::create_sealed_memfd;
use rgaps_session::{Request, ZoneGrant, ZoneId};
use rgaps_testkit::Daemon;
use rgaps_testkit::{seed, Random};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a liar took with it from the daemon that died.
struct Loot {
    zone: ZoneId,
    grant: ZoneGrant,
    registry: OwnedFd,
    control: OwnedFd,
    segments: Vec<OwnedFd>,
    others: Vec<rgaps_session::Member>,
}

fn loot(daemon: &Daemon) -> Loot {
    let mut liar = Liar::welcomed(&daemon.socket());
    let joined = liar.join("loot", subscriber(false)).expect("not cut off");
    let Joined {
        member, grant, fds, ..
    } = joined.expect("a seat");
    let [registry, control] = <[OwnedFd; 2]>::try_from(fds).expect("two descriptors");
    let request = Request::Segments {
        zone: member.zone,
        pool: 0,
        from: 0,
        writable: false,
    };
    let (answer, segments) = liar.ask_with(request, &[]).expect("not cut off");
    answer.expect("segments");
    let others = Scribbler::join(&daemon.socket(), "loot").members();
    Loot {
        zone: member.zone,
        grant: grant.expect("first in the zone"),
        registry,
        control,
        segments,
        others,
    }
}

/// A file that looks like another: the same size and seals, and its first mebibyte.
fn forged(original: &OwnedFd, bytes: u64) -> OwnedFd {
    let forged = create_sealed_memfd("forged", bytes).expect("a memfd");
    let mut start = vec![0u8; 1 << 20];
    let read = rustix::io::pread(original, &mut start[..], 0).expect("pread");
    rustix::io::pwrite(&forged, &start[..read], 0).expect("pwrite");
    forged
}

fn hand_back(liar: &mut Liar, loot: &Loot, index: u32, id: u64, fds: &[BorrowedFd<'_>]) -> bool {
    let request = Request::HandBack {
        zone: loot.zone,
        client_index: index,
        client_id: id,
    };
    matches!(liar.ask_with(request, fds), Ok((Ok(_), _)))
}

/// All the ways to hand back what is not a zone. None may be taken.
fn lie_about_the_zone(daemon: &Daemon, loot: &Loot) {
    let registry = forged(&loot.registry, RegistryHeader::bytes());
    let control = forged(&loot.control, CONTROL_BYTES);
    let plain = std::fs::File::open("/dev/null").expect("/dev/null");
    // Not as the client that it was: once the zone is back, that one may come with anything.
    let own = (loot.grant.client_index, loot.grant.client_id ^ 1);
    let cases: Vec<(&str, Vec<BorrowedFd<'_>>)> = vec![
        ("nothing", vec![]),
        ("one descriptor", vec![loot.registry.as_fd()]),
        (
            "files that are no memfds",
            vec![plain.as_fd(), plain.as_fd()],
        ),
        (
            "a registry with a device",
            vec![loot.registry.as_fd(), plain.as_fd()],
        ),
        (
            "the two exchanged",
            vec![loot.control.as_fd(), loot.registry.as_fd()],
        ),
        (
            "a forged registry",
            vec![registry.as_fd(), loot.control.as_fd()],
        ),
        (
            "a forged control segment",
            vec![loot.registry.as_fd(), control.as_fd()],
        ),
        ("both forged", vec![registry.as_fd(), control.as_fd()]),
        (
            "a segment as the registry",
            vec![loot.segments[0].as_fd(), loot.control.as_fd()],
        ),
        (
            "a third descriptor",
            vec![loot.registry.as_fd(), loot.control.as_fd(), plain.as_fd()],
        ),
    ];
    for (what, fds) in &cases {
        let mut liar = Liar::welcomed(&daemon.socket());
        let taken = hand_back(&mut liar, loot, own.0, own.1, fds);
        assert!(!taken, "{what} was taken for the zone");
    }
}

#[test]
fn forged_zones_are_refused_and_the_true_one_is_adopted() {
    let seed = seed();
    let mut daemon = daemon::start();
    let pair = Pair::start(&daemon.config(), "honest", Expect::Perfection, seed);
    pair.goes_on(10);
    let loot = loot(&daemon);
    for _ in 0..3 {
        daemon.kill();
        pair.goes_on(5);
        daemon.restart();
        // The honest ones come when they notice; some of these are first, some are not.
        lie_about_the_zone(&daemon, &loot);
        pair.goes_on(10);
        daemon.assert_well();
    }
    let (published, received, errors) = pair.end();
    assert_eq!((received, errors), (published, 0));
    daemon.assert_well();
}

#[test]
fn who_hands_back_a_true_zone_cannot_claim_what_is_others() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut daemon = daemon::start();
    let pair = Pair::start(&daemon.config(), "honest", Expect::Perfection, seed);
    pair.goes_on(10);
    let loot = loot(&daemon);
    daemon.kill();
    daemon.restart();
    let fds = [loot.registry.as_fd(), loot.control.as_fd()];

    // As somebody else, whose number is secret.
    for index in 0..8 {
        let mut liar = Liar::welcomed(&daemon.socket());
        let id = random.nasty();
        assert!(
            !hand_back(&mut liar, &loot, index, id, &fds),
            "client {index}"
        );
    }
    // As itself: others' members, ranges that were never leased, others' segments.
    let mut liar = Liar::welcomed(&daemon.socket());
    let (index, id) = (loot.grant.client_index, loot.grant.client_id);
    assert!(hand_back(&mut liar, &loot, index, id, &fds), "the truth");
    assert!(!hand_back(&mut liar, &loot, index, id, &fds), "twice");
    for member in &loot.others {
        let ranges = vec![rgaps_session::Range {
            offset: random.nasty() << 21,
            bytes: 2 << 20,
        }];
        let claim = Request::Claim {
            member: *member,
            pool: 0,
            ranges,
        };
        let answer = liar.ask(claim).expect("not cut off");
        assert!(answer.is_err(), "{member:?} was claimed");
    }
    let forged = forged(&loot.segments[0], 64 << 20);
    for (pool, from, fd) in [
        (0, 0, forged.as_fd()),
        (0, 0, loot.registry.as_fd()),
        (0, 1_000_000, loot.segments[0].as_fd()),
        (7, 0, loot.segments[0].as_fd()),
        (u32::MAX, u32::MAX, loot.segments[0].as_fd()),
    ] {
        let zone = loot.zone;
        let request = Request::HandBackSegments { zone, pool, from };
        let answer = liar.ask_with(request, &[fd]);
        let known = pool == 0 && from == 0;
        // A segment that an honest client has handed back already is not looked at again.
        assert!(known || matches!(answer, Ok((Err(_), _))), "{pool} {from}");
    }
    let _ = liar.ask(Request::HandedBack {
        zone: loot.zone,
        doorbells: (0..64).collect(),
        timelines: (0..64).collect(),
    });

    pair.goes_on(20);
    let (published, received, errors) = pair.end();
    assert_eq!((received, errors), (published, 0));
    // New members come into the same zone.
    let again = Pair::start(&daemon.config(), "again", Expect::Perfection, seed);
    again.goes_on(10);
    again.end();
    daemon.assert_well();
}
