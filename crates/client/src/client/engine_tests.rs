//! The conductor against the real engine, in a thread of this process.

use super::tests::{eventually, publisher, subscriber, TestRealm};
use rgaps_engine::{Engine, Reactor, Setup, SystemSources};
use rgaps_layout::GRANULE_BYTES;
use rgaps_pool::{Access, Mapping};
use rgaps_session::{DaemonLock, SessionListener};
use rustix::event::EventfdFlags;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Instant;

struct RealDaemon {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl RealDaemon {
    fn start(realm: &TestRealm) -> RealDaemon {
        let socket = realm.socket().to_owned();
        let lock = DaemonLock::take(&DaemonLock::path_for(&socket), "default").unwrap();
        let listener = SessionListener::bind(&socket, 0o600, &lock).unwrap();
        let setup = Setup {
            sources: Box::new(SystemSources::new(&realm.config)),
            state_file: None,
            version: "test".to_owned(),
            config: realm.config.clone(),
            socket,
        };
        let engine = Engine::new(setup, Instant::now()).unwrap();
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let reactor = Reactor::new(engine, listener, stop.try_clone().unwrap()).unwrap();
        let thread = std::thread::spawn(move || {
            reactor.run().unwrap();
            drop(lock);
        });
        RealDaemon {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for RealDaemon {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_session_that_was_cut_off_is_taken_up_again() {
    let realm = TestRealm::new();
    let _daemon = RealDaemon::start(&realm);
    let node = realm.node();
    let (writer, reader) = (publisher(&node), subscriber(&node));
    let zone = writer.zone.id();
    let grant = node.pool_grant(zone, writer.pool.unwrap().pool).unwrap();
    let writing = node
        .pool_mapping(zone, grant, Access::ReadWrite, rgaps_layout::Domain::Host)
        .unwrap();
    let first = node.lease(writer.member, 0, GRANULE_BYTES).unwrap();
    writing.write(first[0].offset, b"kept").unwrap();
    let doorbell = node.take_doorbell(zone).unwrap();

    for _ in 0..3 {
        node.run(|worker| {
            worker.lose("the test says so".to_owned());
            Ok(())
        })
        .unwrap();
        let info = node.topic("t").unwrap();
        assert_eq!((info.publishers.len(), info.subscribers.len()), (1, 1));
        assert_eq!(info.publishers[0].slot, writer.member.slot);
        assert_eq!(info.publishers[0].leased_bytes, GRANULE_BYTES);
        assert_eq!(info.subscribers[0].slot, reader.member.slot);
        assert!(writer.zone.lost().is_none());
    }
    let second = node.lease(writer.member, 0, 3 * GRANULE_BYTES).unwrap();
    assert!(
        second[0].offset >= first[0].offset + GRANULE_BYTES,
        "not what is leased already"
    );
    assert!(writing.mapped() >= second[0].offset + second[0].bytes);
    assert_ne!(node.take_doorbell(zone).unwrap(), doorbell);
    let mut kept = [0; 4];
    writing.read(first[0].offset, &mut kept).unwrap();
    assert_eq!(&kept, b"kept");

    node.leave(writer.member).unwrap();
    node.leave(reader.member).unwrap();
    assert!(node.topics().unwrap().is_empty());
    let watcher = realm.node();
    eventually("the end of the sessions that were cut off", || {
        watcher.status().unwrap().clients == 2
    });
    drop(node);
    eventually("the end of its session", || {
        watcher.status().unwrap().clients == 1
    });
}
