//! Matching: each pair by its own types and quality of service, whatever other members the topic has.

mod support;

use rgaps_engine::SessionId;
use rgaps_layout::{MAX_PUBLISHERS, MAX_SUBSCRIBERS};
use rgaps_session::{Demand, Member, Notice, Role, Side, MAX_MISMATCHES, MAX_REASON_BYTES};
use rgaps_sync::atomic::Ordering;
use rgaps_testkit::Random;
use rgaps_topic::{Message, Shared, Start, Writer};
use std::time::Duration;
use support::*;

const LATER: Duration = Duration::from_secs(3);

fn publish(writer: &mut Writer<Shared>, tag: u64) {
    let loan = writer.loan(0, 64).unwrap();
    let message = Message {
        bytes: 5,
        tag,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| {}).unwrap();
}

fn demand(reliable: bool, transient_local: bool, depth: u32) -> Role {
    Role::Subscriber(Demand {
        reliable,
        transient_local,
        depth,
    })
}

/// The notices of mismatches since the last call: the session, and the reason.
fn told(world: &mut World) -> Vec<(SessionId, String)> {
    let notices = world.engine.take_notices().into_iter();
    let told = notices.filter_map(|(session, notice, _)| match notice {
        Notice::Mismatch { topic, reason } => {
            assert!(topic == "t" && reason.len() <= MAX_REASON_BYTES, "{reason}");
            Some((session, reason))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn an_observer_keeps_no_publisher_out() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let watching = world.join(&mut b, "t", observer());
    let mut reader = world.reader(&b, &watching, false, Start::Kept(9));
    let volatile = world.join(&mut a, "t", volatile());
    let image = world
        .try_join(&mut a, typed("t", "image", lasting()))
        .unwrap();
    let none = world.join(&mut a, "t", Role::Publisher(offer(1, false, false)));
    assert_eq!(told(&mut world), []);
    for (seat, tag) in [(volatile, 1), (image, 2), (none, 3)] {
        publish(&mut world.writer(&a, &seat), tag);
        let taken = reader.poll().expect("the message");
        assert_eq!(taken.message.tag, tag);
        taken.held.release();
    }
    let info = world.info(&a, "t");
    assert_eq!(info.mismatches, []);
    assert!(info.subscribers[0].observer);
    // An observer with a type reads only publishers of that type. Publishers of other types get no notice of the mismatch.
    world
        .try_join(&mut b, typed("t", "image", observer()))
        .unwrap();
    let told = told(&mut world);
    assert!(
        told.len() == 2 && told.iter().all(|(id, _)| *id == b.id),
        "{told:?}"
    );
    assert_eq!(world.info(&a, "t").publishers[0].mismatched, 0);
    assert_eq!(world.info(&a, "t").subscribers[1].mismatched, 2);
}

#[test]
fn a_late_observer_of_a_volatile_publisher_gets_what_comes_next() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let (old, kept) = (
        world.join(&mut a, "t", volatile()),
        world.join(&mut a, "t", lasting()),
    );
    publish(&mut world.writer(&a, &old), 1);
    publish(&mut world.writer(&a, &kept), 2);
    let seat = world.join(&mut b, "t", observer());
    let mut reader = world.reader(&b, &seat, false, Start::Kept(9));
    let taken = reader
        .poll()
        .expect("the one that is kept for late joiners");
    assert_eq!((taken.message.tag, reader.missed()), (2, 0));
    taken.held.release();
    assert!(reader.poll().is_none());
}

#[test]
fn who_does_not_match_is_told_and_gets_nothing() {
    for subscribers_first in [true, false] {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("camera"), world.client("viewer"));
        let wanted = [
            ("", demand(false, false, 4), None),
            ("", demand(true, false, 0), Some("reliable")),
            ("", demand(false, true, 0), Some("transient-local")),
            // The depth of a subscriber's queue does not matter.
            ("", demand(false, false, 5), None),
            ("image", demand(false, false, 0), Some("declares no type")),
        ];
        let publisher = wish("t", Role::Publisher(offer(4, false, false)));
        let mut publishing = None;
        if !subscribers_first {
            publishing = Some(world.try_join(&mut a, publisher.clone()).unwrap());
        }
        let seats = wanted.map(|(type_name, role, _)| {
            world.try_join(&mut b, typed("t", type_name, role)).unwrap()
        });
        let publishing =
            publishing.unwrap_or_else(|| world.try_join(&mut a, publisher.clone()).unwrap());
        let notices = told(&mut world);
        for (reason, name, id) in [
            ("subscriber 'viewer'", "camera", a.id),
            ("publisher 'camera'", "viewer", b.id),
        ] {
            let own: Vec<_> = notices.iter().filter(|(to, _)| *to == id).collect();
            assert_eq!(own.len(), 3, "{name}: {notices:?}");
            assert!(
                own.iter().all(|(_, why)| why.contains(reason)),
                "{notices:?}"
            );
        }
        let mut readers: Vec<_> = seats
            .iter()
            .map(|seat| world.reader(&b, seat, false, Start::Live))
            .collect();
        publish(&mut world.writer(&a, &publishing), 7);
        let info = world.info(&a, "t");
        assert_eq!(info.publishers[0].mismatched, 3);
        for (at, (_, _, why)) in wanted.iter().enumerate() {
            let row = &info.subscribers[at];
            assert_eq!(row.mismatched, u32::from(why.is_some()));
            assert_eq!(row.lag, u64::from(why.is_none()), "only what is for it");
            let taken = readers[at].poll();
            assert_eq!(taken.is_some(), why.is_none(), "{why:?}");
            taken.into_iter().for_each(|taken| taken.held.release());
            let found = info.mismatches.iter().find(|m| m.subscriber == row.slot);
            assert_eq!(found.is_some(), why.is_some());
            if let (Some(found), Some(why)) = (found, why) {
                assert!(found.reason.contains(why), "{found:?}");
            }
        }
    }
}

#[test]
fn publishers_of_several_types_share_a_topic() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let mut join = |who: &mut Sim, name: &str, role| {
        let seat = world.try_join(who, typed("t", name, role)).unwrap();
        let type_name = world.topics(who)[0].type_name.clone();
        (seat, type_name)
    };
    assert_eq!(join(&mut b, "", best_effort()).1, "");
    let (images, listed) = join(&mut b, "image", best_effort());
    assert_eq!(listed, "image", "nobody publishes yet");
    let (clouds, listed) = join(&mut b, "cloud", best_effort());
    assert_eq!(listed, "several");
    let (image, listed) = join(&mut a, "image", lasting());
    assert_eq!(listed, "image", "that of the publishers");
    let (cloud, listed) = join(&mut a, "cloud", lasting());
    assert_eq!(listed, "several");
    let mut readers = [images, clouds].map(|seat| world.reader(&b, &seat, false, Start::Live));
    publish(&mut world.writer(&a, &image), 1);
    publish(&mut world.writer(&a, &cloud), 2);
    for (reader, tag) in readers.iter_mut().zip([1, 2]) {
        let taken = reader.poll().unwrap();
        assert_eq!(taken.message.tag, tag);
        taken.held.release();
        assert!(reader.poll().is_none());
    }
}

#[test]
fn a_reliable_subscriber_that_does_not_match_never_holds_a_publisher_back() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", volatile());
    let seat = world
        .try_join(&mut b, typed("t", "image", reliable()))
        .unwrap();
    let _reader = world.reader(&b, &seat, true, Start::Live);
    let mut writer = world.writer(&a, &publisher);
    for tag in 0..20 {
        assert!(writer.has_room(1), "message {tag}");
        publish(&mut writer, tag);
    }
    assert!(writer.evict_consumed(&mut |_| {}) > 0);
    // The daemon does not keep a publisher's history for subscribers that do not match.
    publish(&mut writer, 20);
    world.leave(&a, &publisher);
    world.pass(LATER);
    assert_eq!(world.info(&b, "t").publishers.len(), 0);
}

#[test]
fn what_a_publisher_that_did_not_match_published_is_not_missed() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let first = world.join(&mut a, "t", volatile());
    let before = world
        .try_join(&mut b, typed("t", "image", best_effort()))
        .unwrap();
    let mut before = world.reader(&b, &before, false, Start::Live);
    let mut writer = world.writer(&a, &first);
    publish(&mut writer, 1);
    let amid = world
        .try_join(&mut b, typed("t", "image", best_effort()))
        .unwrap();
    let mut amid = world.reader(&b, &amid, false, Start::Live);
    publish(&mut writer, 2);
    world.leave(&a, &first);
    world.pass(LATER);
    let second = world
        .try_join(&mut a, typed("t", "image", volatile()))
        .unwrap();
    assert_eq!(
        second.member.slot, first.member.slot,
        "the slot is used again"
    );
    let mut writer = world.writer(&a, &second);
    publish(&mut writer, 3);
    for reader in [&mut before, &mut amid] {
        let taken = reader.poll().unwrap();
        assert_eq!((taken.message.tag, taken.missed, taken.sequence), (3, 0, 0));
        taken.held.release();
        assert_eq!(reader.missed(), 0);
    }
}

#[test]
fn listings_name_only_so_many_pairs() {
    let mut world = World::new();
    let mut a = world.client("a");
    let long = |n: usize| format!("{n:0127}");
    for n in 0..MAX_PUBLISHERS {
        world
            .try_join(&mut a, typed("t", &long(n), volatile()))
            .unwrap();
    }
    for n in 0..MAX_SUBSCRIBERS {
        let role = typed("t", &long(100 + n), best_effort());
        world.try_join(&mut a, role).unwrap();
    }
    let info = world.info(&a, "t");
    assert_eq!(info.mismatches.len(), MAX_MISMATCHES);
    assert!(info
        .publishers
        .iter()
        .all(|row| row.mismatched == MAX_SUBSCRIBERS as u32));
    assert!(info
        .subscribers
        .iter()
        .all(|row| row.mismatched == MAX_PUBLISHERS as u32));
}

/// The test's own record of a member.
struct Present {
    seat: Seat,
    client: usize,
    type_name: &'static str,
    role: Role,
}

/// The rules of matching, as the documentation states them.
fn matches(publisher: &Present, subscriber: &Present) -> bool {
    let Role::Publisher(offer) = publisher.role else {
        unreachable!("a publisher")
    };
    let of_type = subscriber.type_name.is_empty() || subscriber.type_name == publisher.type_name;
    of_type
        && match subscriber.role {
            Role::Observer(_) => true,
            Role::Subscriber(demand) => {
                offer.reliable >= demand.reliable && offer.transient_local >= demand.transient_local
            }
            Role::Publisher(_) => unreachable!("a subscriber"),
        }
}

fn check(world: &mut World, clients: &[Sim], present: &[Present], what: &str) {
    let Some(any) = present.first() else { return };
    let topic = world.topic(&clients[any.client], &any.seat);
    let (publishers, subscribers): (Vec<_>, Vec<_>) = present
        .iter()
        .partition(|member| member.seat.member.side == Side::Publisher);
    let slot = |member: &Member| member.slot as usize;
    for publisher in &publishers {
        let matched = subscribers.iter().filter(|s| matches(publisher, s));
        let expected = matched.fold(0, |bits, s| bits | 1 << slot(&s.seat.member));
        let words = topic.publisher(slot(&publisher.seat.member));
        assert_eq!(words.matched().load(Ordering::Acquire), expected, "{what}");
        let asking = subscribers
            .iter()
            .filter(|s| !matches!(s.role, Role::Observer(_)));
        let mismatched = asking.filter(|s| !matches(publisher, s)).count() as u32;
        assert_eq!(
            words.mismatched().load(Ordering::Acquire),
            mismatched,
            "{what}"
        );
    }
    for subscriber in &subscribers {
        let words = topic.subscriber(slot(&subscriber.seat.member));
        let mismatched = publishers
            .iter()
            .filter(|p| !matches(p, subscriber))
            .count() as u32;
        assert_eq!(
            words.mismatched().load(Ordering::Acquire),
            mismatched,
            "{what}"
        );
    }
}

/// Members join, leave and die in any order, and the daemon is killed in between. The words in the control segment always state the
/// present matches.
#[test]
fn masks_follow_members_that_come_and_go() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let mut below = |end: usize| random.below(end as u64) as usize;
        let mut world = World::new();
        let mut clients: Vec<Sim> = (0..4).map(|n| world.client(&format!("c{n}"))).collect();
        let mut present: Vec<Present> = Vec::new();
        // This client stays, so that there is always a zone to hand back.
        let keeper = world.join(&mut clients[0], "keeper", volatile());
        for step in 0..60 {
            let what = match below(10) {
                0..5 => {
                    let client = below(clients.len());
                    let type_name = ["", "image", "cloud"][below(3)];
                    let flags = (below(2) == 0, below(2) == 0);
                    let depth = below(6) as u32;
                    let role = match below(5) {
                        // Volatile publishers leave no history.
                        0 | 1 => Role::Publisher(offer(depth + 1, flags.0, false)),
                        2 | 3 => demand(flags.0, flags.1, depth),
                        _ => observer(),
                    };
                    let wish = typed("t", type_name, role);
                    let Ok(seat) = world.try_join(&mut clients[client], wish) else {
                        continue;
                    };
                    present.push(Present {
                        seat,
                        client,
                        type_name,
                        role,
                    });
                    "join"
                }
                5..8 if !present.is_empty() => {
                    let leaving = present.swap_remove(below(present.len()));
                    world.leave(&clients[leaving.client], &leaving.seat);
                    "leave"
                }
                8 => {
                    let victim = 1 + below(clients.len() - 1);
                    let name = format!("again{step}");
                    let fresh = world.client(&name);
                    let dead = std::mem::replace(&mut clients[victim], fresh);
                    present.retain(|member| member.client != victim);
                    world.kill(dead);
                    "die"
                }
                _ => {
                    world.restart();
                    let zone = keeper.member.zone;
                    for (at, client) in clients.iter_mut().enumerate() {
                        if !client.holds.contains_key(&zone) {
                            world.reconnect(client);
                            continue;
                        }
                        let own = present.iter().filter(|member| member.client == at);
                        let mut claims: Vec<_> =
                            own.map(|member| (member.seat.member, vec![])).collect();
                        if at == 0 {
                            claims.push((keeper.member, vec![]));
                        }
                        world.hand_back_all(client, zone, &claims);
                    }
                    "adopt"
                }
            };
            world.pass(LATER);
            world.engine.take_notices();
            check(
                &mut world,
                &clients,
                &present,
                &format!("seed {seed} step {step}: {what}"),
            );
        }
    }
}

#[test]
fn a_request_that_makes_no_sense_is_still_refused() {
    let mut world = World::new();
    let a = world.client("a");
    for wrong in [
        typed("t", &"x".repeat(128), observer()),
        typed("t", "a\0b", volatile()),
        typed("t", "", demand(true, true, u32::MAX)),
    ] {
        world.refused(&a, wrong);
    }
    assert!(world.topics(&a).is_empty());
}
