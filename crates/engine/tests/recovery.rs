//! The daemon is killed; the next one takes over what its clients hand back.

mod support;

use rgaps_layout::{RegistryHeader, GRANULE_BYTES, SEGMENT_UNIT_BYTES};
use rgaps_pool::create_sealed_memfd;
use rgaps_session::{
    Answer, Config, InterestRow, Member, RefusalCode, Request, Role, ZoneId, LINKS_CLIENT,
};
use rgaps_sync::atomic::Ordering;
use rgaps_testkit::Random;
use rgaps_topic::{Message, Shared, Start, Writer};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use support::*;

const LATER: Duration = Duration::from_secs(3);

fn publish(writer: &mut Writer<Shared>, offset: u64, tag: u64) {
    let loan = writer.loan(offset, 256).unwrap();
    let message = Message {
        offset,
        bytes: 256,
        tag,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| {}).unwrap();
}

fn hand_back_with(world: &mut World, sim: &Sim, zone: ZoneId, fds: Vec<OwnedFd>) -> RefusalCode {
    let grant = sim.holds[&zone].grant;
    let request = Request::HandBack {
        zone,
        client_index: grant.client_index,
        client_id: grant.client_id,
    };
    world.ask_with(sim, request, fds).unwrap_err().code
}

#[test]
fn messages_flow_on_and_everything_is_known_again() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", volatile());
    let subscriber = world.join(&mut b, "t", reliable());
    let zone = publisher.member.zone;
    let range = world.lease(&a, &publisher, 3);
    world.fetch_segments(&mut a, &publisher, true);
    let mut reader = world.reader(&b, &subscriber, true, Start::Live);
    let mut writer = world.writer(&a, &publisher);
    publish(&mut writer, range.offset, 1);
    let before = world.info(&a, "t");

    world.restart();
    // Messages flow without a daemon.
    publish(&mut writer, range.offset + GRANULE_BYTES, 2);
    let first = reader.poll().unwrap();
    assert_eq!(first.message.tag, 1);

    world.reconnect(&mut a);
    assert_eq!(
        world.refused(&a, wish("new", volatile())),
        RefusalCode::Recovering
    );
    world.hand_back_all(&mut a, zone, &[(publisher.member, vec![range])]);
    world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
    let after = world.info(&a, "t");
    assert_eq!(after.zone, before.zone);
    assert_eq!((after.publishers.len(), after.subscribers.len()), (1, 1));
    assert_eq!(after.publishers[0].offer, before.publishers[0].offer);
    assert_eq!(
        after.publishers[0].leased_bytes,
        before.publishers[0].leased_bytes
    );
    assert_eq!(after.publishers[0].client, "a");
    assert_eq!(after.subscribers[0].demand, before.subscribers[0].demand);
    assert!(after.publishers[0].orphan == before.publishers[0].orphan);

    assert_eq!(reader.poll().unwrap().message.tag, 2);
    publish(&mut writer, range.offset + 2 * GRANULE_BYTES, 3);
    assert_eq!(reader.poll().unwrap().message.tag, 3);
    assert_eq!(
        world.lease(&a, &publisher, 2).offset,
        3 * GRANULE_BYTES,
        "old leases are known"
    );
    let late = world.join(&mut b, "t", best_effort());
    assert_ne!(late.member.slot, subscriber.member.slot);
    drop((reader, first));
    world.kill(b);
    world.leave(&a, &publisher);
    assert!(world.topics(&a).is_empty());
    assert_eq!(world.leased_granules(&a), 0);
    assert_eq!(world.status(&a).clients_reaped, 1);
}

#[test]
fn what_is_not_claimed_is_given_up() {
    let mut world = World::new();
    let mut a = world.client("a");
    let kept = world.join(&mut a, "kept", volatile());
    let dropped = world.join(&mut a, "dropped", volatile());
    let also = world.join(&mut a, "also", best_effort());
    let zone = kept.member.zone;
    let ranges = [world.lease(&a, &kept, 1), world.lease(&a, &kept, 2)];
    world.lease(&a, &dropped, 4);
    world.fetch_segments(&mut a, &kept, true);
    world.restart();
    // The client never received the answer to its second lease, so it does not claim that one.
    world.hand_back_all(&mut a, zone, &[(kept.member, vec![ranges[0]])]);
    assert_eq!(world.leased_granules(&a), 1);
    let names: Vec<String> = world.topics(&a).into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["kept"]);
    assert_eq!(
        world.refused(&a, Request::Leave(also.member)),
        RefusalCode::NotFound
    );
    // The client has finished handing back, so it can claim nothing more.
    let claim = Request::Claim {
        member: kept.member,
        pool: 0,
        ranges: vec![ranges[1]],
    };
    assert_eq!(world.refused(&a, claim), RefusalCode::BadRequest);
    assert_eq!(
        world.hand_back(&a, zone).unwrap_err().code,
        RefusalCode::BadRequest
    );
}

#[test]
fn a_child_that_keeps_a_dead_parents_lock_keeps_nothing_else() {
    let mut world = World::new();
    let mut a = world.client("a");
    let publisher = world.join(&mut a, "t", volatile());
    let zone = publisher.member.zone;
    // `b` has the process number of a parent that has ended and was waited for.
    let mut parent = std::process::Command::new("true").spawn().unwrap();
    parent.wait().unwrap();
    let mut b = world.client_of_process("b", parent.id());
    world.join(&mut b, "t", reliable());
    world.restart();
    world.hand_back_all(&mut a, zone, &[(publisher.member, vec![])]);
    world.pass(LATER);
    assert!(world.info(&a, "t").subscribers.is_empty());
    assert_eq!(world.status(&a).clients_reaped, 1);
    // Until here, `b` stands for a child made with `clone`: it keeps the parent's lock, which belongs to the open file.
    drop(b);
}

#[test]
fn the_dead_are_told_by_their_locks() {
    let mut world = World::new();
    let (mut a, mut b, mut c) = (world.client("a"), world.client("b"), world.client("c"));
    let publisher = world.join(&mut a, "t", Role::Publisher(offer(1, true, false)));
    let zone = publisher.member.zone;
    let mut readers = vec![];
    for sim in [&mut b, &mut c] {
        let seat = world.join(sim, "t", reliable());
        readers.push((world.reader(sim, &seat, true, Start::Live), seat));
    }
    let mut writer = world.writer(&a, &publisher);
    publish(&mut writer, 0, 1);
    let held: Vec<_> = readers
        .iter_mut()
        .map(|(reader, _)| reader.poll().unwrap())
        .collect();
    publish(&mut writer, 256, 2);
    world.restart();
    std::mem::forget(held);
    let (c_reader, c_seat) = readers.pop().unwrap();
    drop(readers);
    drop(b); // its process ends, and with it its lock
    world.hand_back_all(&mut a, zone, &[(publisher.member, vec![])]);
    assert_eq!(world.info(&a, "t").subscribers.len(), 2, "a moment's grace");
    world.pass(LATER);
    let left = world.info(&a, "t").subscribers;
    assert_eq!(left.len(), 1, "c is late, but lives");
    assert_eq!(left[0].slot, c_seat.member.slot);
    let status = world.status(&a);
    assert_eq!(status.clients_reaped, 1);
    assert!(status.recovering, "c has not come back");
    assert!(
        status
            .warnings
            .iter()
            .any(|warning| warning.contains("did not connect")),
        "{status:?}"
    );
    let mut freed = vec![];
    writer.collect_returned(&mut |block| freed.push(block));
    assert!(freed.is_empty(), "c holds it");
    drop(c_reader);
    drop(c);
    world.pass(LATER);
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed.len(), 1);
    assert!(writer.has_room(256));
    assert_eq!(world.status(&a).clients_reaped, 2);
}

#[test]
fn a_dead_publishers_history_goes_on() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let left = world.join(&mut a, "left", lasting());
    let died = world.join(&mut a, "died", lasting());
    let zone = left.member.zone;
    let ranges = [world.lease(&a, &left, 1), world.lease(&a, &died, 1)];
    publish(&mut world.writer(&a, &left), ranges[0].offset, 1);
    publish(&mut world.writer(&a, &died), ranges[1].offset, 2);
    world.leave(&a, &left);
    let keeper = world.join(&mut b, "keeper", volatile());
    world.fetch_segments(&mut b, &keeper, true);
    world.restart();
    drop(a);
    world.hand_back_all(&mut b, zone, &[(keeper.member, vec![])]);
    world.pass(LATER);
    assert_eq!(world.leased_granules(&b), 2);
    for (topic, tag) in [("left", 1), ("died", 2)] {
        assert!(world.info(&b, topic).publishers[0].orphan);
        let seat = world.join(&mut b, topic, late());
        let mut reader = world.reader(&b, &seat, false, Start::Kept(9));
        let taken = reader.poll().unwrap();
        assert_eq!(taken.message.tag, tag);
        taken.held.release();
    }
}

#[test]
fn subscribers_alone_can_hand_memory_back() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", lasting());
    let zone = publisher.member.zone;
    let range = world.lease(&a, &publisher, 1);
    publish(&mut world.writer(&a, &publisher), range.offset, 7);
    let subscriber = world.join(&mut b, "t", best_effort());
    world.fetch_segments(&mut b, &subscriber, false);
    world.restart();
    drop(a);
    world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
    world.pass(LATER);
    let mut fresh = world.client("fresh");
    let seat = world.join(&mut fresh, "t", volatile());
    world.lease(&fresh, &seat, 1);
    // A publisher gets the segment for writing, and the daemon returns the memory of freed leases to the system.
    world.fetch_segments(&mut fresh, &seat, true);
    rustix::io::pwrite(&fresh.segments[0], b"written", 0).unwrap();
    assert!(rustix::io::pwrite(&b.segments[0], b"x", 0).is_err());
    world.leave(&fresh, &seat);
    assert_eq!(
        world.leased_granules(&fresh),
        1,
        "the dead publisher's history"
    );
}

#[test]
fn segments_that_nobody_had_are_given_up() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let first = world.join(&mut a, "t", volatile());
    let zone = first.member.zone;
    let range = world.lease(&a, &first, SEGMENT_GRANULES);
    world.fetch_segments(&mut a, &first, true);
    let second = world.join(&mut b, "u", volatile());
    world.lease(&b, &second, 8);
    assert_eq!(world.pools(&a)[0].segments, 2);
    world.restart();
    world.hand_back_all(&mut a, zone, &[(first.member, vec![range])]);
    let asks = |from| Request::Segments {
        zone,
        pool: 0,
        from,
        writable: false,
    };
    assert_eq!(
        world.refused(&a, asks(1)),
        RefusalCode::Recovering,
        "b may bring it"
    );
    let lease = Request::Lease {
        publisher: first.member,
        pool: 0,
        bytes: GRANULE_BYTES,
    };
    assert_eq!(
        world.refused(&a, lease),
        RefusalCode::Recovering,
        "all that is free is where b may have been"
    );
    assert_eq!(
        world.refused(&a, wish("v", volatile())),
        RefusalCode::Recovering
    );
    drop(b);
    world.pass(LATER);
    assert_eq!(world.pools(&a)[0].segments, 1);
    assert_eq!(world.leased_granules(&a), SEGMENT_GRANULES);
    assert_eq!(
        world.lease(&a, &first, 4).offset,
        SEGMENT_UNIT_BYTES,
        "a new one in its place"
    );
}

/// Small leases of many publishers, side by side and full of holes: a successor knows each granule.
#[test]
fn small_leases_side_by_side_are_all_taken_over() {
    let mut world = World::new();
    let mut a = world.client("a");
    let seats: Vec<Seat> = (0..7)
        .map(|at| world.join(&mut a, &format!("t{at}"), volatile()))
        .collect();
    let zone = seats[0].member.zone;
    let mut ranges = vec![Vec::new(); seats.len()];
    for round in 0..3 {
        for (at, seat) in seats.iter().enumerate() {
            ranges[at].push(world.lease(&a, seat, 1 + (at as u64 + round) % 3));
        }
    }
    world.fetch_segments(&mut a, &seats[0], true);
    // Every second publisher returns its middle lease.
    let mut holes = Vec::new();
    for (seat, ranges) in seats.iter().zip(&mut ranges).step_by(2) {
        let hole = ranges.remove(1);
        let request = Request::Return {
            publisher: seat.member,
            pool: 0,
            ranges: vec![hole],
        };
        world.ask(&a, request).unwrap();
        holes.push(hole);
    }
    let leased = |world: &mut World, a: &Sim| -> Vec<u64> {
        let infos = (0..seats.len()).map(|at| world.info(a, &format!("t{at}")));
        infos.map(|info| info.publishers[0].leased_bytes).collect()
    };
    let before = leased(&mut world, &a);
    for _ in 0..2 {
        world.restart();
        let claims = seats.iter().map(|seat| seat.member);
        let claims: Vec<_> = claims.zip(ranges.iter().cloned()).collect();
        world.hand_back_all(&mut a, zone, &claims);
        assert_eq!(leased(&mut world, &a), before);
    }
    // The holes are free, and nothing else below the end is.
    holes.sort_unstable_by_key(|hole| hole.offset);
    for hole in holes {
        let granules = hole.bytes / GRANULE_BYTES;
        assert_eq!(world.lease(&a, &seats[1], granules), hole);
    }
    let end = ranges
        .iter()
        .flatten()
        .map(|range| range.offset + range.bytes)
        .max();
    let free = POOL_GRANULES - end.unwrap() / GRANULE_BYTES;
    assert_eq!(Some(world.lease(&a, &seats[1], free).offset), end);
}

#[test]
fn waiting_has_an_end() {
    let mut world = World::with(Config {
        recovery_ms: 500,
        ..Config::default()
    });
    let (mut a, mut c) = (world.client("a"), world.client("c"));
    let seat = world.join(&mut c, "t", volatile());
    let zone = seat.member.zone;
    world.join(&mut a, "t", volatile());
    world.restart();
    let mut b = world.client("b");
    assert_eq!(
        world.refused(&b, wish("t", volatile())),
        RefusalCode::Recovering
    );
    world.pass(Duration::from_millis(600));
    // Nobody has returned, so a join creates a new zone. The old zone can replace the new one while the new one is empty.
    let new = world.join(&mut b, "t", volatile());
    assert_ne!(new.member.zone, zone);
    world.reconnect(&mut a);
    assert_eq!(
        world.hand_back(&a, zone).unwrap_err().code,
        RefusalCode::ZoneLost
    );
    assert!(world.status(&a).recovering, "c is late, but lives");
    world.kill(b);
    world.hand_back_all(&mut c, zone, &[(seat.member, vec![])]);
    assert_eq!(world.info(&c, "t").zone, zone);
    assert_eq!(world.status(&c).zones, 1);
}

/// Asserts that the daemon waits for nobody and warns of nothing.
fn assert_complete(world: &mut World) {
    let mut new = world.client("new");
    let status = world.status(&new);
    assert!(
        !status.recovering && status.warnings.is_empty(),
        "{status:?}"
    );
    world.join(&mut new, "t", volatile());
}

/// A process that runs until the test ends it.
struct Other(std::process::Child);

impl Other {
    fn start() -> Other {
        let program = std::process::Command::new("sleep").arg("600").spawn();
        Other(program.unwrap())
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_that_two_daemons_knew_is_not_waited_for_when_it_has_ended() {
    let mut world = World::new();
    let mut process = Other::start();
    let mut a = world.client_of_process("a", process.0.id());
    let seat = world.join(&mut a, "t", lasting());
    world.restart();
    a.id = world.client_of_process("a", process.0.id()).id;
    world.hand_back(&a, seat.member.zone).unwrap();
    world.engine.leave_state();
    process.end();
    drop(a);
    world.restart();
    assert_complete(&mut world);
}

#[test]
fn clients_that_end_while_the_daemon_waits_are_waited_for_no_longer() {
    let mut world = World::new();
    let mut process = Other::start();
    let mut a = world.client_of_process("a", process.0.id());
    world.join(&mut a, "t", lasting());
    world.restart();
    let b = world.client("b");
    world.pass(LATER);
    let warnings = world.status(&b).warnings;
    let named = format!("process {} did not hand them back", process.0.id());
    assert!(warnings[0].contains(&named), "{warnings:?}");
    process.end();
    world.pass(LATER);
    assert!(world.status(&b).warnings.is_empty());
    world.kill(b);
    drop(a);
    world.engine.leave_state();
    assert!(!world.state_file().exists());
    assert_complete(&mut world);
}

#[test]
fn who_was_told_that_its_zone_is_lost_is_waited_for_no_longer() {
    let mut world = World::new();
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    world.restart();
    let mut b = world.client("b");
    world.pass(LATER);
    world.join(&mut b, "t", volatile());
    world.reconnect(&mut a);
    let refusal = world.hand_back(&a, seat.member.zone).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::ZoneLost);
    assert_complete(&mut world);
}

/// As after a restart of a container: the daemon cannot see whether these clients still run.
#[test]
fn clients_that_cannot_be_seen_are_waited_for_once() {
    let mut world = World::new();
    let mut a = world.client("a");
    world.join(&mut a, "t", volatile());
    let state = std::fs::read_to_string(world.state_file()).unwrap();
    let elsewhere = state.replace("pid_namespace = ", "pid_namespace = 1");
    std::fs::write(world.state_file(), elsewhere).unwrap();
    world.restart();
    let b = world.client("b");
    assert!(world.status(&b).recovering);
    world.pass(LATER);
    let status = world.status(&b);
    assert!(
        !status.recovering && status.warnings.is_empty(),
        "{status:?}"
    );
    world.kill(b);
    world.engine.leave_state();
    world.restart();
    assert_complete(&mut world);
}

#[test]
fn a_daemon_that_leaves_in_order_leaves_what_is_in_use() {
    let mut world = World::new();
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    // With a client, the zone is handed back to the next daemon, as after a crash.
    world.engine.leave_state();
    world.restart();
    world.reconnect(&mut a);
    world.hand_back_all(&mut a, seat.member.zone, &[(seat.member, vec![])]);
    assert_eq!(world.info(&a, "t").zone, seat.member.zone);
    // Without clients, there is nothing to hand back.
    world.kill(a);
    world.engine.leave_state();
    world.restart();
    let mut b = world.client("b");
    let new = world.join(&mut b, "t", volatile());
    assert_ne!(new.member.zone, seat.member.zone);
}

#[test]
fn only_what_was_handed_out_is_taken_back() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let seat = world.join(&mut a, "t", volatile());
    let zone = seat.member.zone;
    world.join(&mut b, "t", best_effort());
    world.lease(&a, &seat, 1);
    world.fetch_segments(&mut a, &seat, true);
    world.restart();
    world.reconnect(&mut a);
    let registry = || a.holds[&zone].registry.try_clone().unwrap();
    let control = || a.holds[&zone].control.try_clone().unwrap();
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let forged = create_sealed_memfd("forged", RegistryHeader::bytes()).unwrap();
    let unsealed = {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&fd, RegistryHeader::bytes()).unwrap();
        fd
    };
    let other_control = create_sealed_memfd("forged", rgaps_layout::CONTROL_BYTES).unwrap();
    for fds in [
        vec![],
        vec![registry()],
        vec![null(), null()],
        vec![control(), registry()],
        vec![forged, control()],
        vec![unsealed, control()],
        vec![registry(), other_control],
        vec![registry(), control(), null()],
    ] {
        let code = hand_back_with(&mut world, &a, zone, fds);
        assert_eq!(code, RefusalCode::BadRequest);
    }
    // Another client's index with a guessed `client_id`, and indexes that no client has.
    let of_b = b.holds[&zone].grant;
    for (client_index, client_id) in [
        (of_b.client_index, 7),
        (1023, 0),
        (u32::MAX, of_b.client_id),
    ] {
        let request = Request::HandBack {
            zone,
            client_index,
            client_id,
        };
        world
            .ask_with(&a, request, vec![registry(), control()])
            .unwrap_err();
    }
    let stranger = world.client_as("stranger", 4321);
    let request = Request::HandBack {
        zone,
        client_index: of_b.client_index,
        client_id: of_b.client_id,
    };
    world
        .ask_with(&stranger, request, vec![registry(), control()])
        .unwrap_err();
    // The daemon takes back only segments that its predecessor made, each under its own number.
    assert!(world.hand_back(&a, zone).unwrap());
    let (big, small) = (
        create_sealed_memfd("forged", SEGMENT_UNIT_BYTES).unwrap(),
        create_sealed_memfd("forged", GRANULE_BYTES).unwrap(),
    );
    for (from, fd) in [
        (0, big),
        (0, small),
        (0, null()),
        (1, a.segments[0].try_clone().unwrap()),
    ] {
        let request = Request::HandBackSegments {
            zone,
            pool: 0,
            from,
        };
        world.ask_with(&a, request, vec![fd]).unwrap_err();
    }
    let request = Request::HandBackSegments {
        zone,
        pool: 1,
        from: 0,
    };
    world.ask_with(&a, request, vec![null()]).unwrap_err();
    world.hand_back_segments(&a, zone).unwrap();
    let forged_claims = [
        Member {
            incarnation: 1,
            ..seat.member
        },
        Member {
            slot: 3,
            ..seat.member
        },
        Member {
            topic: 77,
            ..seat.member
        },
    ];
    for member in forged_claims {
        assert_eq!(
            world.refused(
                &a,
                Request::Claim {
                    member,
                    pool: 0,
                    ranges: vec![]
                }
            ),
            RefusalCode::NotFound
        );
    }
    let ranges = vec![rgaps_session::Range {
        offset: GRANULE_BYTES,
        bytes: GRANULE_BYTES,
    }];
    let more = Request::Claim {
        member: seat.member,
        pool: 0,
        ranges,
    };
    assert_eq!(world.refused(&a, more), RefusalCode::BadRequest);
}

#[test]
fn quarantine_outlives_the_daemon() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let subscriber = world.join(&mut b, "t", best_effort());
    let zone = subscriber.member.zone;
    let mut reader = world.reader(&b, &subscriber, false, Start::Live);
    let replaced = world.join(&mut a, "t", volatile());
    assert!(reader.poll().is_none());
    world.leave(&a, &replaced);
    world.restart();
    world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
    world.reconnect(&mut a);
    a.holds.clear();
    let next = world.join(&mut a, "t", volatile());
    assert!(next.ring.region_offset > replaced.ring.region_offset);
    world.leave(&a, &next);
    assert!(
        reader.poll().is_none(),
        "the reader has seen who is there now"
    );
    world.pass(LATER);
    let after = world.join(&mut a, "t", volatile());
    assert_eq!(after.ring.region_offset, replaced.ring.region_offset);
}

#[test]
fn a_scribbled_registry_gives_up_what_makes_no_sense() {
    let mut lost = 0;
    for seed in 1u64..=40 {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        let mut zone = 0;
        for topic in ["x", "y", "z"] {
            let seat = world.join(&mut a, topic, lasting());
            let range = world.lease(&a, &seat, 3);
            publish(&mut world.writer(&a, &seat), range.offset, 1);
            zone = seat.member.zone;
            world.join(&mut b, topic, reliable());
            if topic == "y" {
                world.leave(&a, &seat);
            }
        }
        let seat = world.join(&mut a, "x", lasting());
        world.fetch_segments(&mut a, &seat, true);
        // A client of the daemon's own user could open the registry for writing.
        let path = format!(
            "/proc/self/fd/{}",
            a.holds[&zone].registry.as_fd().as_raw_fd()
        );
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let mut random = Random::new(seed);
        let mut roll = || random.next_u64();
        for _ in 0..seed {
            let (at, bytes) = match roll() % 4 {
                0 => (RegistryHeader::client(0), 200),
                1 => (RegistryHeader::pool(0), 200),
                2 => (RegistryHeader::granule(0, 0), 200),
                _ => (RegistryHeader::topic(0), 3 * 4096),
            };
            let value = [roll() % 3, roll(), u64::MAX, roll() % 5000][roll() as usize % 4];
            rustix::io::pwrite(
                &file,
                &(value as u32).to_ne_bytes(),
                at + roll() % bytes / 4 * 4,
            )
            .unwrap();
        }
        world.restart();
        world.reconnect(&mut a);
        if world.hand_back(&a, zone).is_ok() {
            let _ = world.hand_back_segments(&a, zone);
            let _ = world.ask(
                &a,
                Request::Claim {
                    member: seat.member,
                    pool: 0,
                    ranges: vec![],
                },
            );
            world
                .ask(
                    &a,
                    Request::HandedBack {
                        zone,
                        doorbells: vec![0, 1, u32::MAX],
                        timelines: vec![0, 1, u32::MAX],
                    },
                )
                .unwrap();
        } else {
            lost += 1;
        }
        drop(b);
        world.pass(LATER);
        world.topics(&a);
        world.pools(&a);
        let mut fresh = world.client("fresh");
        if let Ok(seat) = world.try_join(&mut fresh, wish("new", volatile())) {
            let _ = world.ask(
                &fresh,
                Request::Lease {
                    publisher: seat.member,
                    pool: 0,
                    bytes: 1,
                },
            );
        }
        world.kill(a);
        world.kill(fresh);
        world.pass(LATER);
    }
    assert!(lost < 40, "some are good enough to go on with");
}

#[test]
fn a_daemon_killed_again_and_again_loses_nothing() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", volatile());
    let subscriber = world.join(&mut b, "t", reliable());
    let zone = publisher.member.zone;
    let mut ranges = vec![world.lease(&a, &publisher, 1)];
    let mut writer = world.writer(&a, &publisher);
    let mut reader = world.reader(&b, &subscriber, true, Start::Live);
    for round in 0..20 {
        world.fetch_segments(&mut a, &publisher, true);
        publish(&mut writer, 0, round);
        world.restart();
        publish(&mut writer, 0, 100 + round);
        let mut order = [true, false];
        if round % 2 == 0 {
            order.reverse();
        }
        for first in order {
            if first {
                world.hand_back_all(&mut a, zone, &[(publisher.member, ranges.clone())]);
            } else {
                world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
            }
        }
        for tag in [round, 100 + round] {
            let taken = reader.poll().expect("no message is lost");
            assert_eq!((taken.message.tag, taken.missed), (tag, 0));
            taken.held.release();
        }
        writer.collect_returned(&mut |_| {});
        ranges.push(world.lease(&a, &publisher, 1));
        let topic = world.topic(&a, &publisher);
        assert_eq!(topic.publishers().load(Ordering::Acquire), 1);
    }
    assert_eq!(world.leased_granules(&a), 21);
}

type Interest = (Vec<InterestRow>, Vec<(u64, u64)>);

/// Sends the first request of new links. Returns the topics, and for each publisher of earlier links its incarnation and how many
/// messages it published.
fn interest(world: &mut World, links: &Sim) -> Result<Interest, RefusalCode> {
    let asked = world.ask(links, Request::Interest { known: 0, from: 0 });
    match asked.map_err(|refusal| refusal.code)? {
        Answer::Interest { rows, departed, .. } => Ok((rows, departed)),
        other => panic!("{other:?}"),
    }
}

/// If the daemon forgot these publishers, the next links would send their messages back to the hosts from which they came, and publish
/// the last one here again.
#[test]
fn publishers_of_links_that_are_gone_are_still_those_of_other_hosts() {
    let mut world = World::new();
    let mut a = world.client("a");
    let reader = world.join(&mut a, "t", late());
    let zone = reader.member.zone;
    let mut links = world.client(LINKS_CLIENT);
    let seat = world.join(&mut links, "t", lasting());
    let range = world.lease(&links, &seat, 1);
    world.fetch_segments(&mut links, &seat, true);
    let mut writer = world.writer(&links, &seat);
    publish(&mut writer, range.offset, 1);
    world.kill(links);
    for restarts in 0..2 {
        if restarts > 0 {
            world.restart();
            world.hand_back_all(&mut a, zone, &[(reader.member, vec![])]);
        }
        let next = world.client(LINKS_CLIENT);
        let (rows, departed) = interest(&mut world, &next).unwrap();
        assert_eq!(departed, [(seat.member.incarnation, 1)]);
        assert_eq!(rows[0].landed, [seat.member.incarnation]);
        assert!(rows[0].publishers.is_empty());
        world.kill(next);
    }
}

/// If the daemon forgot these counts, the next links would publish the last message here again: the record of the links ends with the
/// message before it.
#[test]
fn what_links_published_is_known_when_links_their_orphan_and_the_daemon_are_gone() {
    let mut world = World::new();
    let mut a = world.client("a");
    let reader = world.join(&mut a, "t", reliable());
    let zone = reader.member.zone;
    let mut links = world.client(LINKS_CLIENT);
    let seat = world.join(&mut links, "t", volatile());
    let range = world.lease(&links, &seat, 1);
    world.fetch_segments(&mut links, &seat, true);
    world.fetch_segments(&mut a, &reader, false);
    let mut writer = world.writer(&links, &seat);
    publish(&mut writer, range.offset, 1);
    world.kill(links);
    // The subscriber that had not read the message leaves, so the orphan ends.
    world.leave(&a, &reader);
    let again = world.join(&mut a, "t", reliable());
    world.pass(LATER);
    assert_eq!(world.info(&a, "t").publishers.len(), 0);
    for _ in 0..2 {
        world.restart();
        world.hand_back_all(&mut a, zone, &[(again.member, vec![])]);
        let next = world.client(LINKS_CLIENT);
        let (rows, departed) = interest(&mut world, &next).unwrap();
        assert_eq!(departed, [(seat.member.incarnation, 1)]);
        assert!(rows[0].landed.is_empty());
        world.kill(next);
    }
}

/// If the daemon answered earlier, links would tell other hosts that nobody subscribes here, and forget which messages had arrived.
#[test]
fn links_hear_of_no_topics_before_all_that_was_there_is_back() {
    let mut world = World::new();
    let mut a = world.client("a");
    let reader = world.join(&mut a, "t", reliable());
    world.restart();
    let mut links = world.client(LINKS_CLIENT);
    assert_eq!(
        interest(&mut world, &links).unwrap_err(),
        RefusalCode::Recovering
    );
    world.hand_back_all(&mut a, reader.member.zone, &[(reader.member, vec![])]);
    let (rows, _) = interest(&mut world, &links).unwrap();
    assert_eq!((rows.len(), rows[0].subscribers), (1, 1));
    // The wait for clients that do not return has a limit.
    world.restart();
    world.reconnect(&mut links);
    world.pass(LATER);
    assert!(interest(&mut world, &links).unwrap().0.is_empty());
}

/// If a daemon and its links are killed together, the registry still has the links as a living client.
#[test]
fn links_hear_of_no_topics_before_former_links_are_known_to_be_gone() {
    let mut world = World::new();
    let mut a = world.client("a");
    let reader = world.join(&mut a, "t", late());
    let mut former = world.client(LINKS_CLIENT);
    let seat = world.join(&mut former, "t", lasting());
    let range = world.lease(&former, &seat, 1);
    world.fetch_segments(&mut former, &seat, true);
    let mut writer = world.writer(&former, &seat);
    // The subscriber has the memory, too, and hands it back.
    world.fetch_segments(&mut a, &reader, false);
    publish(&mut writer, range.offset, 1);
    world.restart();
    drop(former);
    world.hand_back_all(&mut a, reader.member.zone, &[(reader.member, vec![])]);
    let links = world.client(LINKS_CLIENT);
    assert_eq!(
        interest(&mut world, &links).unwrap_err(),
        RefusalCode::Recovering
    );
    world.pass(LATER);
    let (rows, departed) = interest(&mut world, &links).unwrap();
    assert_eq!(departed, [(seat.member.incarnation, 1)]);
    assert_eq!(rows[0].landed, [seat.member.incarnation]);
}
