//! Required paths of messages from other hosts. The links report the path that such messages take.
mod support;

use rgaps_session::{
    ArrivalPath, PathKind, RefusalCode, Request, Role, LINKS_CLIENT, MAX_PATH_BYTES,
};
use support::{best_effort, volatile, Seat, Sim, World};

fn over(path: PathKind, why: &str) -> Option<ArrivalPath> {
    let why = why.to_owned();
    Some(ArrivalPath { path, why })
}

fn joins(role: Role, require: Option<PathKind>, arrives_over: Option<ArrivalPath>) -> Request {
    Request::Join {
        topic: "t".to_owned(),
        type_name: String::new(),
        domain: None,
        role,
        require,
        arrives_over,
    }
}

fn reads(require: PathKind) -> Request {
    joins(best_effort(), Some(require), None)
}

fn lands(world: &mut World, links: &mut Sim, arrives_over: Option<ArrivalPath>) -> Seat {
    let publisher = joins(volatile(), None, arrives_over);
    world.try_join(links, publisher).unwrap()
}

#[test]
fn a_path_between_hosts_is_that_of_the_publisher_and_what_it_is_now() {
    let mut world = World::new();
    let (mut links, mut reader) = (world.client(LINKS_CLIENT), world.client("reader"));
    let seat = lands(&mut world, &mut links, over(PathKind::Rdma, "no GPU there"));
    let refused = |world: &mut World, reader: &mut Sim, why: &str| {
        let refusal = world.try_join(reader, reads(PathKind::GpuDirect));
        let refusal = refusal.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::PathTooSlow);
        assert!(refusal.message.contains(why), "{refusal}");
    };
    refused(
        &mut world,
        &mut reader,
        "this one is rdma: the messages come from another host: no GPU there",
    );
    world.try_join(&mut reader, reads(PathKind::Rdma)).unwrap();
    let now = |path, why: &str| Request::ComesOver {
        member: seat.member,
        over: over(path, why).unwrap(),
    };
    world.ask(&links, now(PathKind::GpuDirect, "")).unwrap();
    let direct = world.try_join(&mut reader, reads(PathKind::GpuDirect));
    direct.unwrap();
    // Present subscribers stay. A later one is refused because of the path that the links reported last.
    world.ask(&links, now(PathKind::Tcp, "cut")).unwrap();
    refused(&mut world, &mut reader, "this one is tcp");
    // The links have not reported the path to the next daemon yet.
    world.ask(&links, now(PathKind::GpuDirect, "")).unwrap();
    world.restart();
    let zone = seat.member.zone;
    world.hand_back_all(&mut links, zone, &[(seat.member, vec![])]);
    world.hand_back_all(&mut reader, zone, &[]);
    refused(&mut world, &mut reader, "not known yet");

    let long = "x".repeat(MAX_PATH_BYTES + 1);
    for why in [&long, "a\nb"] {
        let lies = now(PathKind::GpuDirect, why);
        assert_eq!(world.refused(&links, lies), RefusalCode::BadRequest);
        let lies = joins(volatile(), None, over(PathKind::GpuDirect, why));
        assert_eq!(world.refused(&links, lies), RefusalCode::BadRequest);
    }
}

#[test]
fn only_the_links_say_over_what_messages_come() {
    let mut world = World::new();
    let (mut liar, mut reader) = (world.client("liar"), world.client("reader"));
    // `liar` publishes on this host, whatever path it reports.
    let seat = lands(&mut world, &mut liar, over(PathKind::Tcp, "far away"));
    let near = world.try_join(&mut reader, reads(PathKind::ZeroCopy));
    near.unwrap();
    let lies = Request::ComesOver {
        member: seat.member,
        over: over(PathKind::Tcp, "far away").unwrap(),
    };
    assert_eq!(world.refused(&liar, lies), RefusalCode::NotPermitted);
}

#[test]
fn a_publisher_elsewhere_is_refused_where_somebody_requires_more() {
    let mut world = World::new();
    let (mut links, mut reader) = (world.client(LINKS_CLIENT), world.client("reader"));
    let strict = world.try_join(&mut reader, reads(PathKind::GpuDirect));
    strict.unwrap();
    for slower in [over(PathKind::Rdma, "no GPU there"), None] {
        let publisher = joins(volatile(), None, slower);
        assert_eq!(world.refused(&links, publisher), RefusalCode::PathTooSlow);
    }
    lands(&mut world, &mut links, over(PathKind::GpuDirect, ""));
}
