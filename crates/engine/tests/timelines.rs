//! Timelines: handed out, taken back, ended with their owner, kept over a restart.

mod support;

use rgaps_layout::MAX_TIMELINES;
use rgaps_session::{RefusalCode, Request, ZoneId};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{timeline, Shared, TimelineView};
use std::time::Duration;
use support::*;

const LATER: Duration = Duration::from_secs(3);
/// The limit of timelines of one client.
const MOST: u32 = 256;

fn at(words: &Shared, index: u32) -> TimelineView<Shared> {
    timeline(words, index).unwrap()
}

/// Tenure and count of a timeline's value, then of its record of an earlier tenure.
fn look(words: &Shared, index: u32) -> [(u64, u64); 2] {
    let view = at(words, index);
    [view.value(), view.reached()].map(|word| {
        let word = word.load(Ordering::Acquire);
        (word >> 32, word & 0xffff_ffff)
    })
}

/// Reaches a count, as the owner's GPU work does.
fn reach(words: &Shared, index: u32, count: u64) {
    let view = at(words, index);
    let tenure = view.value().load(Ordering::Acquire) >> 32;
    view.value().store(tenure << 32 | count, Ordering::Release);
}

fn give_back(world: &mut World, sim: &Sim, zone: ZoneId, timeline: u32) {
    world
        .ask(sim, Request::ReturnTimeline { zone, timeline })
        .unwrap();
}

#[test]
fn a_client_has_its_timelines_for_itself_until_it_returns_them() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let zone = world.join(&mut a, "t", volatile()).member.zone;
    world.join(&mut b, "t", best_effort());
    let words = a.holds[&zone].words();
    let mut taken: Vec<u32> = (0..MOST).map(|_| world.take_timeline(&a, zone)).collect();
    let take = Request::TakeTimeline { zone };
    assert_eq!(world.refused(&a, take.clone()), RefusalCode::LimitReached);
    let of_b = world.take_timeline(&b, zone);
    assert!(!taken.contains(&of_b));
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len() as u32, MOST);
    assert!(taken.iter().all(|index| (1..MAX_TIMELINES).contains(index)));
    assert_eq!(look(&words, taken[0]), [(0, 0), (0, 0)]);

    for timeline in [of_b, 0, MAX_TIMELINES, u32::MAX, MAX_TIMELINES - 1] {
        let request = Request::ReturnTimeline { zone, timeline };
        assert_eq!(world.refused(&a, request), RefusalCode::BadRequest);
    }
    reach(&words, taken[0], 7);
    give_back(&mut world, &a, zone, taken[0]);
    assert_eq!(look(&words, taken[0]), [(1, 0), (0, 7)]);
    let again = Request::ReturnTimeline {
        zone,
        timeline: taken[0],
    };
    assert_eq!(world.refused(&a, again), RefusalCode::BadRequest);
    let next = world.take_timeline(&a, zone);
    assert_ne!(
        next, taken[0],
        "the one that is free for longest comes first"
    );
}

#[test]
fn timelines_run_out_and_come_round() {
    let mut world = World::new();
    let mut sims: Vec<Sim> = (0..MAX_TIMELINES / MOST)
        .map(|n| world.client(&n.to_string()))
        .collect();
    let mut zone = 0;
    let mut taken = 0;
    for sim in &mut sims {
        zone = world.join(sim, "t", best_effort()).member.zone;
        while taken < MAX_TIMELINES - 1 {
            if world.ask(sim, Request::TakeTimeline { zone }).is_err() {
                break;
            }
            taken += 1;
        }
    }
    assert_eq!(taken, MAX_TIMELINES - 1);
    let last = sims.pop().unwrap();
    let take = Request::TakeTimeline { zone };
    assert_eq!(world.refused(&last, take), RefusalCode::LimitReached);
    let words = last.holds[&zone].words();
    reach(&words, 3, 9);
    give_back(&mut world, &sims[0], zone, 3);
    assert_eq!(world.take_timeline(&last, zone), 3);
    assert_eq!(look(&words, 3), [(1, 0), (0, 9)], "the tenure stays");
}

#[test]
fn a_death_ends_the_timelines_of_the_dead_and_no_others() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let seat = world.join(&mut a, "t", volatile());
    let zone = seat.member.zone;
    world.join(&mut b, "t", best_effort());
    let words = b.holds[&zone].words();
    let [first, second] = [(); 2].map(|()| world.take_timeline(&a, zone));
    let of_b = world.take_timeline(&b, zone);
    for index in [first, of_b] {
        reach(&words, index, 4);
    }
    // The GPU work of `a` goes on as long as its process lives, even without members and session.
    world.leave(&a, &seat);
    world.engine.hang_up(a.id, false);
    assert_eq!(look(&words, first), [(0, 4), (0, 0)]);
    world.kill(a);
    assert_eq!(look(&words, first), [(1, 0), (0, 4)]);
    assert_eq!(look(&words, second), [(1, 0), (0, 0)]);
    assert_eq!(look(&words, of_b), [(0, 4), (0, 0)]);
}

#[test]
fn a_client_whose_gpu_is_lost_lives_on_without_timelines() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let zone = world.join(&mut a, "t", volatile()).member.zone;
    world.join(&mut b, "t", best_effort());
    let words = b.holds[&zone].words();
    let lost = world.take_timeline(&a, zone);
    let of_b = world.take_timeline(&b, zone);
    reach(&words, lost, 2);
    world.ask(&a, Request::GpuLost { zone }).unwrap();
    world.ask(&a, Request::GpuLost { zone }).unwrap();
    assert_eq!(look(&words, lost), [(1, 0), (0, 2)]);
    assert_eq!(look(&words, of_b), [(0, 0), (0, 0)]);
    assert_eq!(world.info(&a, "t").publishers.len(), 1);
    assert!(!world.info(&a, "t").publishers[0].orphan);
    assert_ne!(world.take_timeline(&a, zone), lost);
    let stranger = world.client("stranger");
    assert_eq!(
        world.refused(&stranger, Request::GpuLost { zone }),
        RefusalCode::NotFound
    );
}

#[test]
fn a_scribbled_timeline_is_handed_out_without_points() {
    let mut world = World::new();
    let mut a = world.client("a");
    let zone = world.join(&mut a, "t", volatile()).member.zone;
    let words = a.holds[&zone].words();
    for (index, value) in [(1, 5), (2, u64::MAX), (3, 8 << 32)] {
        at(&words, index).value().store(value, Ordering::Release);
    }
    let taken = [(); 3].map(|()| world.take_timeline(&a, zone));
    assert_eq!(taken, [1, 2, 3]);
    assert_eq!(
        taken.map(|index| look(&words, index)[0]),
        [(1, 0), (0, 0), (8, 0)]
    );
    give_back(&mut world, &a, zone, 2);
}

#[test]
fn what_is_handed_back_goes_on_and_the_rest_ends() {
    for b_comes_back in [true, false] {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        let publisher = world.join(&mut a, "t", volatile());
        let subscriber = world.join(&mut b, "t", best_effort());
        let zone = publisher.member.zone;
        let words = a.holds[&zone].words();
        let [kept, forgotten] = [(); 2].map(|()| world.take_timeline(&a, zone));
        let of_b = world.take_timeline(&b, zone);
        for index in [kept, forgotten, of_b] {
            reach(&words, index, 3);
        }
        world.restart();
        a.timelines = vec![kept];
        // `b` names its own timeline twice, another client's, and numbers that do not exist.
        b.timelines = vec![of_b, of_b, kept, 0, MAX_TIMELINES, u32::MAX];
        world.hand_back_all(&mut a, zone, &[(publisher.member, vec![])]);
        assert_eq!(
            world.refused(&a, Request::TakeTimeline { zone }),
            RefusalCode::Recovering,
            "b may have any"
        );
        world.pass(LATER);
        assert_eq!(look(&words, of_b), [(0, 3), (0, 0)], "b lives");
        if b_comes_back {
            world.hand_back_all(&mut b, zone, &[(subscriber.member, vec![])]);
            assert_eq!(look(&words, of_b), [(0, 3), (0, 0)]);
        } else {
            drop(b);
            world.pass(LATER);
            assert_eq!(look(&words, of_b), [(1, 0), (0, 3)]);
        }
        assert_eq!(look(&words, kept), [(0, 3), (0, 0)]);
        assert_eq!(look(&words, forgotten), [(1, 0), (0, 3)]);
        let next = world.take_timeline(&a, zone);
        assert!(next != kept && (next != of_b || !b_comes_back));
        assert_eq!(look(&words, next)[0].1, 0);
        give_back(&mut world, &a, zone, kept);
        assert_eq!(look(&words, kept), [(1, 0), (0, 3)]);
    }
}

#[test]
fn a_client_that_dies_while_it_hands_back_ends_waiting_for_it() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world.join(&mut a, "t", volatile());
    world.join(&mut b, "t", best_effort());
    let zone = publisher.member.zone;
    let words = a.holds[&zone].words();
    let of_b = world.take_timeline(&b, zone);
    world.restart();
    world.hand_back_all(&mut a, zone, &[(publisher.member, vec![])]);
    world.reconnect(&mut b);
    world.hand_back(&b, zone).unwrap();
    world.kill(b);
    world.pass(LATER);
    assert_eq!(
        look(&words, of_b),
        [(1, 0), (0, 0)],
        "also one that has reached no point: somebody may wait for its first"
    );
    world.take_timeline(&a, zone);
}

#[test]
fn too_many_are_not_handed_back() {
    let mut world = World::new();
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    let zone = seat.member.zone;
    world.restart();
    world.reconnect(&mut a);
    world.hand_back(&a, zone).unwrap();
    let request = Request::HandedBack {
        zone,
        doorbells: vec![],
        timelines: (1..=MOST + 1).collect(),
    };
    assert_eq!(world.refused(&a, request), RefusalCode::BadRequest);
}
