//! How much of the daemon one user can occupy, and what the daemon does when the system has no resources left.

mod support;

use rgaps_layout::{CONTROL_BYTES, CONTROL_PAGE, LAYOUT_VERSION, MAX_DEPTH};
use rgaps_session::{
    AccessRule, Answer, Config, Offer, Principal, Request, Role, PROTOCOL_VERSION,
};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::Storage;
use std::collections::HashMap;
use std::time::Duration;
use support::*;

#[test]
fn users_that_only_connect_leave_room_for_others() {
    let mut config = Config::default();
    config.limits.connections = 40;
    config.limits.connections_per_user = 20;
    let mut world = World::with(config);
    for uid in [4001, 4002] {
        for _ in 0..20 {
            world.connect_as(uid, true);
        }
    }
    let asked = |world: &mut World, uid: u32| {
        // The reactor also makes room before it accepts a connection.
        if let Some(other) = world.engine.makes_room(uid) {
            world.engine.hang_up(other, true);
        }
        let sim = Sim {
            id: world.connect_as(uid, true),
            name: "asks".into(),
            uid,
            holds: HashMap::new(),
            segments: vec![],
            timelines: vec![],
        };
        let hello = Request::Hello {
            protocol: PROTOCOL_VERSION,
            layout: LAYOUT_VERSION,
            realm: "default".into(),
            name: "asks".into(),
        };
        world.ask(&sim, hello).map(drop)
    };
    for uid in [4003, 4004, 4003] {
        asked(&mut world, uid).unwrap();
    }
    // The user with the most sessions gets no room.
    assert!(asked(&mut world, 4001).is_err());
    for _ in 0..5 {
        asked(&mut world, 0).unwrap();
    }
}

#[test]
fn a_state_file_that_cannot_be_written_is_tried_again_and_shown() {
    let mut world = World::new();
    let (mut a, looker) = (world.client("a"), world.client("looker"));
    // A folder takes the name of the file that the daemon has to create.
    let making = world.state_file().with_extension("state.new");
    std::fs::create_dir(&making).unwrap();
    let seat = world.join(&mut a, "t", volatile());
    let warnings = world.status(&looker).warnings;
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("cannot be written")),
        "{warnings:?}"
    );
    assert!(!world.state_file().exists());

    // A successor serves without a state file, too.
    std::fs::remove_dir(&making).unwrap();
    world.pass(Duration::from_secs(2));
    assert!(world.status(&looker).warnings.is_empty());
    std::fs::create_dir(&making).unwrap();
    let zone = seat.member.zone;
    world.restart();
    world.hand_back_all(&mut a, zone, &[(seat.member, vec![])]);
    assert_eq!(world.info(&a, "t").row.publishers, 1);
    assert!(!world.status(&a).warnings.is_empty());
}

#[test]
fn clients_of_zones_that_one_may_not_see_are_not_listed() {
    let rule = AccessRule {
        name: "secret".into(),
        topics: vec!["secret/**".into()],
        users: vec![Principal::Id(1000)],
        ..AccessRule::default()
    };
    let mut world = World::with(Config {
        access: vec![rule],
        ..Config::default()
    });
    let (mut hidden, mut shown) = (
        world.client_as("hidden", 1000),
        world.client_as("shown", 1000),
    );
    let (stranger, owner) = (
        world.client_as("stranger", 3000),
        world.client_as("owner", 0),
    );
    world.join(&mut hidden, "secret/a", best_effort());
    world.join(&mut shown, "secret/a", best_effort());
    world.join(&mut shown, "open", best_effort());
    let mut listed = |asker: &Sim| -> Vec<(String, u32)> {
        match world.ask(asker, Request::Clients { from: 0 }).unwrap() {
            Answer::Clients(rows) => rows
                .into_iter()
                .map(|row| (row.name, row.subscribers))
                .collect(),
            other => panic!("{other:?}"),
        }
    };
    let row = |name: &str, subscribers| (name.to_owned(), subscribers);
    assert_eq!(listed(&stranger), [row("shown", 1), row("stranger", 0)]);
    assert_eq!(listed(&hidden), [row("hidden", 1), row("shown", 2)]);
    assert_eq!(listed(&owner).len(), 4);
}

#[test]
fn memory_of_the_control_segment_that_nobody_was_given_goes_back() {
    let mut world = World::new();
    let (mut a, mut keeper) = (world.client("a"), world.client("keeper"));
    let zone = world.join(&mut keeper, "t", volatile()).member.zone;
    world.join(&mut a, "t", best_effort());
    let bytes = |hold: &Hold| rustix::fs::fstat(&hold.control).unwrap().st_blocks as u64 * 512;
    let before = bytes(&keeper.holds[&zone]);
    let words = a.holds[&zone].words();
    for page in 0..(100 << 20) / CONTROL_PAGE {
        let at = CONTROL_BYTES / 2 + page * CONTROL_PAGE;
        words.u64(at).store(1, Ordering::Relaxed);
    }
    assert!(bytes(&keeper.holds[&zone]) >= before + (100 << 20));
    world.kill(a);
    world.pass(Duration::from_secs(1));
    assert!(bytes(&keeper.holds[&zone]) <= before);
}

#[test]
fn one_users_publishers_leave_others_room_in_the_control_segment() {
    let mut world = World::new();
    let (mut greedy, mut other) = (
        world.client_as("greedy", 4001),
        world.client_as("other", 4002),
    );
    let offer = Offer {
        loans: 4096,
        ..offer(MAX_DEPTH, true, false)
    };
    let mut joined = 0;
    let refusal = loop {
        let topic = format!("t/{joined}");
        match world.try_join(&mut greedy, wish(&topic, Role::Publisher(offer))) {
            Ok(_) => joined += 1,
            Err(refusal) => break refusal,
        }
        assert!(joined < 4096, "there is no limit");
    };
    assert!(
        refusal.message.contains("of which one user gets"),
        "{refusal}"
    );
    assert!(joined > 4);
    world.join(&mut other, "other", Role::Publisher(offer));
}
