//! Tests of the conductor against a fake daemon that dies at chosen points.

use super::fake_daemon::{Death, FakeDaemon, CAP_BYTES, SEGMENT_BYTES};
use super::{ClientError, Conductor, Joined, PoolMapping};
use rgaps_layout::GRANULE_BYTES;
use rgaps_pool::{Access, Mapping};
use rgaps_session::{
    Config, Demand, History, Member, Notice, Offer, PoolGrant, Range, RefusalCode, Request, Role,
    ZoneId,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PUBLISHER: Role = Role::Publisher(Offer {
    history: History::KeepLast(1),
    reliable: false,
    transient_local: false,
    loans: 1,
});
const SUBSCRIBER: Role = Role::Subscriber(Demand {
    reliable: false,
    transient_local: false,
    depth: 0,
});

pub(super) struct TestRealm {
    _folder: tempfile::TempDir,
    pub(super) config: Config,
}

impl TestRealm {
    pub(super) fn new() -> TestRealm {
        let folder = tempfile::tempdir().unwrap();
        let socket = Some(folder.path().join("r.sock"));
        let config = Config {
            socket,
            autostart: false,
            ..Config::default()
        };
        TestRealm {
            _folder: folder,
            config,
        }
    }

    pub(super) fn socket(&self) -> &Path {
        self.config.socket.as_deref().unwrap()
    }

    fn daemon(&self) -> FakeDaemon {
        FakeDaemon::start(self.socket(), None)
    }

    pub(super) fn node(&self) -> Conductor {
        Conductor::start(self.config.clone(), "test", &[], None).unwrap()
    }
}

pub(super) fn publisher(node: &Conductor) -> Joined {
    node.join("t", "", None, PUBLISHER, None, None).unwrap()
}

pub(super) fn subscriber(node: &Conductor) -> Joined {
    node.join("t", "", None, SUBSCRIBER, None, None).unwrap()
}

/// How long a test waits for an event before it fails.
const SOON: Duration = Duration::from_secs(120);

pub(super) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Granules of a segment.
const SEGMENT_GRANULES: u64 = SEGMENT_BYTES / GRANULE_BYTES;

fn granules(first: u64, count: u64) -> Range {
    Range {
        offset: first * GRANULE_BYTES,
        bytes: count * GRANULE_BYTES,
    }
}

fn map(node: &Conductor, zone: ZoneId, grant: PoolGrant, access: Access) -> Arc<PoolMapping> {
    node.pool_mapping(zone, grant, access, rgaps_layout::Domain::Host)
        .unwrap()
}

#[test]
fn joining_mapping_leasing_leaving() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let joined = publisher(&node);
    assert_eq!(joined.zone.id(), joined.member.zone);
    assert!(
        daemon.state().zone.as_ref().unwrap().client_is_locked(),
        "proof of life"
    );

    let grant = joined.pool.unwrap();
    let writing = map(&node, joined.zone.id(), grant, Access::ReadWrite);
    assert_eq!((writing.mapped(), writing.cap()), (0, CAP_BYTES));
    let ranges = node.lease(joined.member, 0, SEGMENT_BYTES + 1).unwrap();
    assert_eq!(ranges, [granules(0, SEGMENT_GRANULES + 1)]);
    assert_eq!(
        writing.mapped(),
        2 * SEGMENT_BYTES,
        "what is leased is mapped"
    );
    writing.write(SEGMENT_BYTES - 4, b"spanning").unwrap();

    let second = subscriber(&node);
    assert!(Arc::ptr_eq(&second.zone, &joined.zone));
    let reading = map(&node, joined.zone.id(), grant, Access::ReadOnly);
    let mut read = [0; 8];
    reading.read(SEGMENT_BYTES - 4, &mut read).unwrap();
    assert_eq!(&read, b"spanning");
    assert!(reading.write(0, b"x").is_err(), "a subscriber's mapping");
    let again = map(&node, joined.zone.id(), grant, Access::ReadOnly);
    assert!(Arc::ptr_eq(&again, &reading));

    node.return_ranges(joined.member, 0, vec![granules(1, 1)])
        .unwrap();
    node.leave(joined.member).unwrap();
    node.leave(joined.member).unwrap();
    daemon.log();
    drop((node, reading, again, writing));
    assert_eq!(
        daemon.log(),
        [Request::Leave(second.member)],
        "only who had not left"
    );
    assert!(
        daemon.state().zone.as_ref().unwrap().client_is_locked(),
        "while the zone is in use"
    );
    drop((joined, second));
    assert!(!daemon.state().zone.as_ref().unwrap().client_is_locked());
}

#[test]
fn a_segment_that_was_sent_is_mapped_though_the_daemon_is_gone() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let joined = subscriber(&node);
    let zone = joined.zone.id();
    let grant = node.pool_grant(zone, 0).unwrap();
    let reading = node
        .pool_mapping(zone, grant, Access::ReadOnly, rgaps_layout::Domain::Host)
        .unwrap();
    assert_eq!(reading.mapped(), 0);
    daemon.grow_and_die(zone);
    eventually("mapped", || reading.mapped() == SEGMENT_BYTES);
}

#[test]
fn a_pool_that_grows_is_mapped_as_it_grows() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let joined = subscriber(&node);
    let zone = joined.zone.id();
    let grant = node.pool_grant(zone, 0).unwrap();
    let reading = node
        .pool_mapping(zone, grant, Access::ReadOnly, rgaps_layout::Domain::Host)
        .unwrap();
    daemon.grow();
    daemon.notify(Notice::PoolGrown {
        zone,
        pool: 0,
        from: 0,
        bytes: Vec::new(),
        writable: false,
    });
    eventually("mapped unasked", || reading.mapped() == SEGMENT_BYTES);
    // More than fit in a packet, and no notice.
    (0..40).for_each(|_| daemon.grow());
    node.sync_pool(zone, 0).unwrap();
    assert_eq!(reading.mapped(), 41 * SEGMENT_BYTES);

    // A publisher in the same process needs descriptors of another kind.
    let writer = publisher(&node);
    let writing = node
        .pool_mapping(zone, grant, Access::ReadWrite, rgaps_layout::Domain::Host)
        .unwrap();
    assert_eq!(writing.mapped(), 41 * SEGMENT_BYTES);
    writing.write(40 * SEGMENT_BYTES, b"hello").unwrap();
    let mut read = [0; 5];
    reading.read(40 * SEGMENT_BYTES, &mut read).unwrap();
    assert_eq!(&read, b"hello");
    // After it has left, new segments are read-only; the next publisher gets all of them for writing.
    node.leave(writer.member).unwrap();
    daemon.grow();
    node.sync_pool(zone, 0).unwrap();
    assert_eq!(reading.mapped(), 42 * SEGMENT_BYTES);
    assert_eq!(writing.mapped(), 41 * SEGMENT_BYTES);
    assert!(
        node.pool_mapping(zone, grant, Access::ReadWrite, rgaps_layout::Domain::Host)
            .is_err(),
        "nobody publishes"
    );
    publisher(&node);
    let writing = node
        .pool_mapping(zone, grant, Access::ReadWrite, rgaps_layout::Domain::Host)
        .unwrap();
    assert_eq!(writing.mapped(), 42 * SEGMENT_BYTES);
    daemon.grow();
    node.sync_pool(zone, 0).unwrap();
    assert_eq!(
        (reading.mapped(), writing.mapped()),
        (43 * SEGMENT_BYTES, 43 * SEGMENT_BYTES)
    );
    assert!(node.sync_pool(zone, 9).is_err());
    assert!(node.sync_pool(zone + 1, 0).is_err());
}

#[test]
fn everything_is_handed_to_the_next_daemon() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let (writer, reader) = (publisher(&node), subscriber(&node));
    let zone = writer.zone.id();
    let writing = map(&node, zone, writer.pool.unwrap(), Access::ReadWrite);
    node.lease(writer.member, 0, 40 * SEGMENT_BYTES).unwrap();
    node.return_ranges(writer.member, 0, vec![granules(2, 3)])
        .unwrap();
    let doorbell = node.take_doorbell(zone).unwrap();
    writing.write(39 * SEGMENT_BYTES, b"kept").unwrap();
    daemon.kill(false);
    // Mapped memory stays usable.
    writing.write(0, b"still").unwrap();

    let daemon = FakeDaemon::start(realm.socket(), Some(zone));
    eventually("handed back", || {
        daemon
            .state()
            .log
            .iter()
            .any(|r| matches!(r, Request::HandedBack { .. }))
    });
    let log = daemon.log();
    let grant = writer.zone.grant();
    let (client_index, client_id) = (grant.client_index, grant.client_id);
    let segments = |from| Request::HandBackSegments {
        zone,
        pool: 0,
        from,
    };
    let handed = Request::HandBack {
        zone,
        client_index,
        client_id,
    };
    assert_eq!(log[..3], [handed, segments(0), segments(32)]);
    let claims = log.iter().filter_map(|request| match request {
        Request::Claim { member, ranges, .. } => Some((*member, ranges.clone())),
        _ => None,
    });
    let claims: Vec<(Member, Vec<Range>)> = claims.collect();
    assert_eq!(claims.len(), 2);
    let all = 40 * SEGMENT_GRANULES;
    assert!(claims.contains(&(writer.member, vec![granules(0, 2), granules(5, all - 5)])));
    assert!(claims.contains(&(reader.member, vec![])));
    let handed = Request::HandedBack {
        zone,
        doorbells: vec![doorbell],
        timelines: vec![],
    };
    assert_eq!(log[5], handed);
    assert_eq!(daemon.state().zone.as_ref().unwrap().segments.len(), 40);
    assert!(writer.zone.lost().is_none());
    // The new daemon can grow the same pool.
    daemon.grow();
    node.sync_pool(zone, 0).unwrap();
    assert_eq!(writing.mapped(), 41 * SEGMENT_BYTES);
}

#[test]
fn a_request_that_the_daemon_died_over_is_asked_again() {
    for death in [Death::Before, Death::After] {
        let realm = TestRealm::new();
        let daemon = realm.daemon();
        let node = Arc::new(realm.node());
        let reader = subscriber(&node);
        let zone = reader.zone.id();
        let is_join = |request: &Request| matches!(request, Request::Join { .. });
        daemon.state().die_at = Some((death, Box::new(is_join)));
        let joining = {
            let node = node.clone();
            std::thread::spawn(move || node.join("t", "", None, PUBLISHER, None, None))
        };
        eventually("its death", || !realm.socket().exists());
        drop(daemon);
        let daemon = FakeDaemon::start(realm.socket(), Some(zone));
        daemon.state().recovering = 2;
        let joined = joining.join().unwrap().unwrap();
        let log = daemon.log();
        let at = |wanted: fn(&Request) -> bool| log.iter().position(wanted).unwrap();
        let handed_back = at(|request| matches!(request, Request::HandedBack { .. }));
        assert!(
            handed_back < at(is_join),
            "first what was, then what is new"
        );
        let joins = log.iter().filter(|request| is_join(request)).count();
        assert_eq!(joins, 3, "asked again while the daemon recovers");
        assert!(Arc::ptr_eq(&joined.zone, &reader.zone));
        assert!(!log
            .iter()
            .any(|r| matches!(r, Request::Claim { member, .. } if *member == joined.member)));
    }
}

#[test]
fn what_is_given_up_needs_no_daemon() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let (writer, reader) = (publisher(&node), subscriber(&node));
    let zone = writer.zone.id();
    node.lease(writer.member, 0, GRANULE_BYTES * 3).unwrap();
    let doorbell = node.take_doorbell(zone).unwrap();
    daemon.state().die_at = Some((
        Death::After,
        Box::new(|request| matches!(request, Request::Return { .. })),
    ));
    // There is no daemon until all three have returned, so a call that needs one would fail.
    node.return_ranges(writer.member, 0, vec![granules(0, 1)])
        .unwrap();
    node.leave(reader.member).unwrap();
    node.return_doorbell(zone, doorbell).unwrap();
    drop(daemon);
    let daemon = FakeDaemon::start(realm.socket(), Some(zone));
    eventually("handed back", || {
        daemon
            .state()
            .log
            .iter()
            .any(|r| matches!(r, Request::HandedBack { .. }))
    });
    let log = daemon.log();
    let claims: Vec<&Request> = log
        .iter()
        .filter(|request| matches!(request, Request::Claim { .. }))
        .collect();
    let claim = Request::Claim {
        member: writer.member,
        pool: 0,
        ranges: vec![granules(1, 2)],
    };
    assert_eq!(claims, [&claim], "not what was given up");
    assert!(log.contains(&Request::HandedBack {
        zone,
        doorbells: vec![],
        timelines: vec![]
    }));
    assert!(!log
        .iter()
        .any(|r| matches!(r, Request::Return { .. } | Request::Leave(_))));
}

/// A message waits for the timeline, and its stream could be waited for instead.
#[test]
fn a_timeline_is_not_asked_of_the_next_daemon() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = Arc::new(realm.node());
    let zone = subscriber(&node).zone.id();
    let is_asked = |request: &Request| matches!(request, Request::TakeTimeline { .. });
    daemon.state().die_at = Some((Death::Before, Box::new(is_asked)));
    let asking = {
        let node = node.clone();
        std::thread::spawn(move || node.take_timeline(zone))
    };
    eventually("its death", || !realm.socket().exists());
    drop(daemon);
    let daemon = FakeDaemon::start(realm.socket(), Some(zone));
    let error = asking.join().unwrap().unwrap_err();
    assert!(matches!(error, ClientError::DaemonLost { .. }), "{error}");
    eventually("a timeline again", || node.take_timeline(zone).is_ok());
    drop(daemon);
}

#[test]
fn a_zone_that_nobody_takes_back_is_lost() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let writer = publisher(&node);
    let zone = writer.zone.id();
    let writing = map(&node, zone, writer.pool.unwrap(), Access::ReadWrite);
    node.lease(writer.member, 0, GRANULE_BYTES).unwrap();
    daemon.kill(false);
    let daemon = FakeDaemon::start(realm.socket(), Some(zone + 1));
    eventually("lost", || writer.zone.lost().is_some());
    let error = node.lease(writer.member, 0, GRANULE_BYTES).unwrap_err();
    assert!(matches!(error, ClientError::ZoneLost { .. }), "{error}");
    let error = node.take_doorbell(zone).unwrap_err();
    assert!(matches!(error, ClientError::ZoneLost { .. }), "{error}");
    writing.write(0, b"goes on").unwrap();
    daemon.log();
    node.leave(writer.member).unwrap();
    assert_eq!(daemon.log(), [], "there is nobody to tell");
}

#[test]
fn a_daemon_that_was_stopped_is_not_waited_for() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let reader = subscriber(&node);
    daemon.kill(true);
    // Waiting for an answer ends with another error.
    let error = node
        .join("u", "", None, SUBSCRIBER, None, None)
        .unwrap_err();
    assert!(matches!(error, ClientError::Stopped), "{error}");
    node.leave(reader.member).unwrap();
    // The node finds a daemon that somebody else starts.
    let daemon = realm.daemon();
    eventually("found", || {
        node.join("u", "", None, SUBSCRIBER, None, None).is_ok()
    });

    let error = node.stop_daemon();
    assert!(error.is_ok(), "{error:?}");
    assert!(!realm.socket().exists(), "it has left when we are told so");
    drop(daemon);
}

#[test]
fn listings_are_read_to_the_end() {
    let realm = TestRealm::new();
    let _daemon = realm.daemon();
    let node = realm.node();
    let topics = node.topics().unwrap();
    assert_eq!(topics.len(), 150);
    assert_eq!(topics[149].name, "topic/149");
    let error = node.status().unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");
}

#[test]
fn a_refusal_is_the_users() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let writer = publisher(&node);
    match node.lease(writer.member, 0, 2 * CAP_BYTES) {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::PoolFull),
        other => panic!("{other:?}"),
    }
    drop(daemon);
    let error = Conductor::start(realm.config.clone(), "late", &[], None)
        .err()
        .unwrap();
    assert!(matches!(error, ClientError::Launch(_)), "{error}");
}

#[test]
fn a_forked_child_is_refused_and_leaves_everything_alone() {
    let realm = TestRealm::new();
    let daemon = realm.daemon();
    let node = realm.node();
    let joined = publisher(&node);
    let mapping = map(
        &node,
        joined.zone.id(),
        joined.pool.unwrap(),
        Access::ReadWrite,
    );
    node.lease(joined.member, 0, GRANULE_BYTES).unwrap();
    let base = mapping.base();
    // SAFETY: only this thread exists in the child. It takes no lock that another thread may have held (the daemon's, or the
    // standard output's), and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let refused = matches!(node.leave(joined.member), Err(ClientError::Forked));
        // The pool's addresses must still be reserved in the child, so that no mapping of its own can get them.
        // SAFETY: with MAP_FIXED_NOREPLACE the call replaces no mapping.
        let own = unsafe {
            libc::mmap(
                base as *mut libc::c_void,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        let reserved = own == libc::MAP_FAILED;
        drop((node, joined, mapping));
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(if refused && reserved { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local variable that lives during the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
        "status {status:#x}"
    );
    // The child changed nothing in the parent.
    node.lease(joined.member, 0, GRANULE_BYTES).unwrap();
    mapping.write(0, b"fine").unwrap();
    drop(node);
    assert!(daemon.log().contains(&Request::Leave(joined.member)));
}
