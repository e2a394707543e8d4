//! Seats of device topics whose owners die, and of subscribers that receive nothing.

mod support;

use rgaps_layout::{device_owner, DEVICE_OWNER_UNKNOWN};
use rgaps_session::{Config, SeatEnd};
use std::time::Duration;
use support::*;

const SECOND: Duration = Duration::from_secs(1);

/// A world with a bridge, its member, and a client that has opened the device topic `t`.
fn world(config: Config) -> (World, Sim, Seat, Sim, u64) {
    let mut world = World::with(config);
    let [mut bridge, mut kernel] = ["bridge", "kernel"].map(|name| world.client(name));
    let publishing = world.join(&mut bridge, "t", volatile());
    world.report_device(&bridge, &publishing, device_row(0, &[]));
    let owner = world.open_device(&mut kernel, "t");
    (world, bridge, publishing, kernel, owner)
}

fn end(owner: u64, is_free: bool) -> SeatEnd {
    SeatEnd {
        seat: 0,
        owner,
        is_free,
    }
}

#[test]
fn the_seat_of_a_process_that_died_is_free() {
    let (mut world, bridge, publishing, kernel, owner) = world(Config::default());
    let row = device_row(1, &[(owner, 1)]);
    let ends = |world: &mut World| world.report_device(&bridge, &publishing, row.clone());
    assert_eq!(ends(&mut world), []);
    // The client's socket closes while its process lives.
    world.engine.hang_up(kernel.id, false);
    world.pass(SECOND);
    assert_eq!(ends(&mut world), []);
    world.kill(kernel);
    assert_eq!(ends(&mut world), [end(owner, true)]);
}

#[test]
fn seats_that_the_daemon_does_not_know_stay() {
    let (mut world, bridge, publishing, _kernel, _) = world(Config::default());
    let other_zone = device_owner(publishing.member.zone ^ 1, 0, 7);
    for owner in [DEVICE_OWNER_UNKNOWN, other_zone] {
        let row = device_row(1, &[(owner, 1)]);
        assert_eq!(world.report_device(&bridge, &publishing, row), []);
    }
}

#[test]
fn a_daemon_that_is_started_again_knows_who_lives() {
    let (mut world, mut bridge, publishing, mut kernel, owner) = world(Config::default());
    let zone = publishing.member.zone;
    let row = device_row(1, &[(owner, 1)]);
    world.restart();
    world.hand_back_all(&mut bridge, zone, &[(publishing.member, vec![])]);
    // The client has not returned, but holds its lock.
    world.pass(SECOND);
    let ends =
        |world: &mut World, bridge: &Sim| world.report_device(bridge, &publishing, row.clone());
    assert_eq!(ends(&mut world, &bridge), []);
    world.hand_back_all(&mut kernel, zone, &[]);
    assert_eq!(ends(&mut world, &bridge), []);
    world.kill(kernel);
    assert_eq!(ends(&mut world, &bridge), [end(owner, true)]);
}

#[test]
fn who_receives_nothing_while_the_publisher_waits_is_evicted() {
    let mut config = Config::default();
    config.limits.device_stall_ms = 2500;
    let (mut world, bridge, publishing, _kernel, owner) = world(config);
    let mut report = |newest, wanted, is_bridge| {
        let mut row = device_row(newest, &[(owner, wanted)]);
        row.seats[0].is_bridge = is_bridge;
        world.pass(SECOND);
        world.report_device(&bridge, &publishing, row)
    };
    // The ring holds 4 messages. A seat back-pressures the publisher if it wants the oldest of 4.
    for _ in 0..5 {
        assert_eq!(report(3, 1, false), [], "there is room");
        assert_eq!(report(9, 6, true), [], "hosts may hold a publisher back");
    }
    for wanted in 6..12 {
        assert_eq!(report(wanted + 3, wanted, false), [], "it goes on");
    }
    assert_eq!(report(15, 12, false), []);
    assert_eq!(report(15, 12, false), []);
    assert_eq!(report(15, 12, false), []);
    assert_eq!(report(15, 12, false), [end(owner, false)]);
}

#[test]
fn nobody_is_evicted_while_the_publisher_has_nothing_to_publish() {
    let (mut world, bridge, publishing, _kernel, owner) = world(Config::default());
    let mut row = device_row(9, &[(owner, 6)]);
    row.publisher_waits = false;
    for _ in 0..100 {
        world.pass(SECOND);
        let ends = world.report_device(&bridge, &publishing, row.clone());
        assert_eq!(ends, []);
    }
}

#[test]
fn who_holds_most_is_evicted_where_no_block_is_left() {
    let (mut world, bridge, publishing, _kernel, owner) = world(Config::default());
    let mut row = device_row(9, &[(owner, 10), (DEVICE_OWNER_UNKNOWN, 10)]);
    (row.seats[0].held, row.seats[1].held) = (4, 2);
    let mut report = |after| {
        world.pass(after);
        world.report_device(&bridge, &publishing, row.clone())
    };
    assert_eq!(report(SECOND), []);
    assert_eq!(report(40 * SECOND), [end(owner, false)]);
}

#[test]
fn nobody_is_evicted_where_the_configuration_says_so() {
    let mut config = Config::default();
    config.limits.device_stall_ms = 0;
    let (mut world, bridge, publishing, _kernel, owner) = world(config);
    for _ in 0..100 {
        world.pass(SECOND);
        let row = device_row(9, &[(owner, 6)]);
        assert_eq!(world.report_device(&bridge, &publishing, row), []);
    }
}
