//! Dead clients under MPS, with a test double for MPS.

mod support;

use rgaps_mps::{DeadClient, Mps};
use rgaps_session::{MpsInfo, MpsState, Request, SeatEnd, ZoneId};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{timeline, Shared};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::*;

const PIPES: &str = "/run/the-mps";

#[derive(Default)]
struct MpsScript {
    asked: Vec<(u64, DeadClient)>,
    proven: Vec<u64>,
    stopped: bool,
    default: Option<PathBuf>,
    none: bool,
}

/// An MPS that proves exactly what the test tells it to.
#[derive(Clone, Default)]
struct TestMps(Arc<Mutex<MpsScript>>);

impl Mps for TestMps {
    fn info(&self) -> MpsInfo {
        let none = self.0.lock().unwrap().none;
        MpsInfo {
            state: if none { MpsState::Off } else { MpsState::Own },
            pipe_directory: (!none).then(|| PIPES.to_owned()),
            ..MpsInfo::default()
        }
    }

    fn prove(&mut self, number: u64, client: DeadClient) {
        self.0.lock().unwrap().asked.push((number, client));
    }

    fn proven(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap().proven)
    }

    fn doubt(&self, number: u64) -> Option<String> {
        Some(format!("doubt {number}"))
    }

    fn default_directory(&self) -> Option<PathBuf> {
        self.0.lock().unwrap().default.clone()
    }

    fn is_found(&self, directory: &Path) -> bool {
        directory.starts_with("/its")
    }

    fn stop(&mut self) {
        self.0.lock().unwrap().stopped = true;
    }
}

impl TestMps {
    fn asked(&self) -> Vec<DeadClient> {
        let said = self.0.lock().unwrap();
        said.asked
            .iter()
            .map(|(_, client)| client.clone())
            .collect()
    }

    fn prove_all(&self) {
        let mut said = self.0.lock().unwrap();
        said.proven = said.asked.iter().map(|(number, _)| *number).collect();
    }
}

fn world() -> (World, TestMps) {
    let mut world = World::new();
    let mps = TestMps::default();
    world.engine.set_mps(Box::new(mps.clone()));
    (world, mps)
}

/// The tenure of a timeline.
fn tenure(words: &Shared, index: u32) -> u64 {
    let timeline = timeline(words, index).unwrap();
    timeline.value().load(Ordering::Acquire) >> 32
}

fn reliable_bits(world: &World, sim: &Sim, seat: &Seat) -> u64 {
    world.topic(sim, seat).reliable().load(Ordering::Acquire)
}

#[test]
fn what_the_dead_held_stays_until_the_proof_but_nobody_waits_for_them_to_read() {
    let (mut world, mps) = world();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publishing = world.join(&mut a, "t", volatile());
    world.lease(&a, &publishing, 2);
    let reading = world.join(&mut b, "t", reliable());
    let zone: ZoneId = reading.member.zone;
    let words = a.holds[&zone].words();
    let index = world.take_timeline(&b, zone);
    let own = world.take_timeline(&a, zone);
    assert_ne!(reliable_bits(&world, &a, &reading), 0);

    world.kill(b);
    world.pass(Duration::from_secs(1));
    assert_eq!(mps.asked().len(), 1);
    assert_eq!(mps.asked()[0].pipes, [PathBuf::from(PIPES)]);
    assert_eq!(mps.asked()[0].pid, std::process::id());
    assert_eq!(reliable_bits(&world, &a, &reading), 0);
    assert_eq!(world.info(&a, "t").subscribers.len(), 1);
    assert_eq!((tenure(&words, index), tenure(&words, own)), (0, 0));
    assert_eq!(world.status(&a).clients_reaped, 0);
    assert!(world.status(&a).warnings.is_empty(), "it may take a moment");

    world.pass(Duration::from_secs(10));
    let warnings = world.status(&a).warnings;
    assert!(
        warnings[0].contains("'b'") && warnings[0].contains("doubt 0"),
        "{warnings:?}"
    );

    mps.prove_all();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.info(&a, "t").subscribers.len(), 0);
    assert_eq!((tenure(&words, index), tenure(&words, own)), (1, 0));
    assert_eq!(world.status(&a).clients_reaped, 1);
    assert!(world.status(&a).warnings.is_empty());
    assert_eq!(world.leased_granules(&a), 2);
}

#[test]
fn a_seat_of_a_device_topic_is_free_when_the_dead_ones_work_has_ended() {
    let (mut world, mps) = world();
    let [mut bridge, mut kernel] = ["bridge", "kernel"].map(|name| world.client(name));
    let publishing = world.join(&mut bridge, "t", volatile());
    world.report_device(&bridge, &publishing, device_row(0, &[]));
    let owner = world.open_device(&mut kernel, "t");
    let mut row = device_row(1, &[(owner, 1)]);
    assert_eq!(
        world.report_device(&bridge, &publishing, row.clone()),
        vec![]
    );
    world.kill(kernel);
    world.pass(Duration::from_secs(1));
    let end = |is_free| SeatEnd {
        seat: 0,
        owner,
        is_free,
    };
    let ends = world.report_device(&bridge, &publishing, row.clone());
    assert_eq!(ends, [end(false)]);
    row.seats[0].evicted = true;
    assert_eq!(
        world.report_device(&bridge, &publishing, row.clone()),
        vec![]
    );
    mps.prove_all();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.report_device(&bridge, &publishing, row), [end(true)]);
}

#[test]
fn who_reads_or_copies_on_a_gpu_is_waited_for_and_copied_for_no_more() {
    let (mut world, mps) = world();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| world.client(name));
    let watcher = world.client("watcher");
    let publishing = world.join(&mut a, "t", volatile());
    world.join(&mut b, "t", best_effort());
    let reading = world
        .try_join(&mut c, wish_in("t", best_effort(), gpu(1)))
        .unwrap();
    let topic = world.topic(&a, &publishing);
    let pool = reading.reads.unwrap().pool;
    world.lease_in(&a, &publishing, pool, 1).unwrap();
    assert_ne!(topic.elsewhere().load(Ordering::Acquire), 0);

    world.kill(b);
    assert!(mps.asked().is_empty(), "it read on the host");
    world.kill(c);
    assert_eq!(mps.asked().len(), 1);
    assert_eq!(topic.elsewhere().load(Ordering::Acquire), 0);
    assert_eq!(world.info(&a, "t").subscribers.len(), 1);
    mps.prove_all();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.info(&a, "t").subscribers.len(), 0);
    // Nobody reads on the GPU any more, but the GPU may still copy into replicas of the publisher.
    world.kill(a);
    assert_eq!(mps.asked().len(), 2);
    assert_eq!(world.leased_granules(&watcher), 1);
    mps.prove_all();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.leased_granules(&watcher), 0);
}

#[test]
fn the_daemon_is_not_idle_while_it_waits_for_proof() {
    let (mut world, mps) = world();
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    world.take_timeline(&a, seat.member.zone);
    world.kill(a);
    world.pass(Duration::from_secs(3600));
    assert!(!world.engine.is_idle(world.now));
    mps.prove_all();
    world.pass(Duration::from_secs(3600));
    assert!(world.engine.is_idle(world.now));
}

#[test]
fn every_mps_that_it_may_be_under_is_asked() {
    let (mut world, mps) = world();
    mps.0.lock().unwrap().default = Some("/tmp/other".into());
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    world.take_timeline(&a, seat.member.zone);
    for pipe_directory in [PIPES, "/its/own"] {
        let pipe_directory = pipe_directory.to_owned();
        world.ask(&a, Request::UnderMps { pipe_directory }).unwrap();
    }
    world.kill(a);
    let pipes = ["/its/own", PIPES, "/tmp/other"].map(PathBuf::from);
    assert_eq!(mps.asked()[0].pipes, pipes);
    assert_eq!(mps.asked()[0].numbers.first(), Some(&std::process::id()));
}

#[test]
fn without_mps_or_without_gpus_nobody_is_asked() {
    let (mut world, mps) = world();
    mps.0.lock().unwrap().none = true;
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let seat = world.join(&mut a, "t", volatile());
    world.take_timeline(&a, seat.member.zone);
    world.join(&mut b, "t", best_effort());
    world.kill(a);
    assert_eq!(world.status(&b).clients_reaped, 1);
    mps.0.lock().unwrap().none = false;
    let c = world.client("c");
    world.kill(b);
    assert_eq!(world.status(&c).clients_reaped, 2);
    assert!(mps.asked().is_empty());
}

#[test]
fn an_mps_that_only_its_client_knows_keeps_nothing() {
    let (mut world, mps) = world();
    mps.0.lock().unwrap().none = true;
    let (mut a, b) = (world.client("a"), world.client("b"));
    let seat = world.join(&mut a, "t", volatile());
    world.take_timeline(&a, seat.member.zone);
    world.lease(&a, &seat, 2);
    let pipe_directory = "/home/a/mps".to_owned();
    world.ask(&a, Request::UnderMps { pipe_directory }).unwrap();
    world.kill(a);
    assert!(mps.asked().is_empty());
    assert_eq!(world.leased_granules(&b), 0);
}

#[test]
fn the_dead_of_one_user_keep_at_most_a_share_of_a_pool() {
    let (mut world, mps) = world();
    let (mut a, mut b) = (world.client_as("a", 4001), world.client_as("b", 4001));
    let mut c = world.client_as("c", 4002);
    let [first, second, third] = [&mut a, &mut b, &mut c].map(|client| {
        let seat = world.join(client, "t", volatile());
        world.take_timeline(client, seat.member.zone);
        seat
    });
    world.lease(&a, &first, POOL_GRANULES / 4);
    world.kill(a);
    assert_eq!(mps.asked().len(), 1);
    let pool = second.pool.unwrap().pool;
    let refusal = world.lease_in(&b, &second, pool, 1).unwrap_err();
    assert!(refusal.message.contains("MPS confirms"), "{refusal}");
    world.lease(&c, &third, 1);
    mps.prove_all();
    world.pass(Duration::from_secs(1));
    world.lease(&b, &second, 1);
}

#[test]
fn a_lost_gpu_ends_timelines_after_the_proof() {
    let (mut world, mps) = world();
    let mut a = world.client("a");
    let seat = world.join(&mut a, "t", volatile());
    let zone = seat.member.zone;
    let words = a.holds[&zone].words();
    let index = world.take_timeline(&a, zone);
    world.ask(&a, Request::GpuLost { zone }).unwrap();
    world.pass(Duration::from_secs(1));
    assert_eq!(tenure(&words, index), 0);
    assert!(mps.asked()[0].lives);
    mps.prove_all();
    world.pass(Duration::from_secs(1));
    assert_eq!(tenure(&words, index), 1);
    assert_eq!(world.info(&a, "t").publishers.len(), 1, "the process lives");
}

#[test]
fn a_lost_gpu_of_one_who_left_is_not_another_clients() {
    let (mut world, mps) = world();
    let (mut a, mut keeper) = (world.client("a"), world.client("keeper"));
    let zone = world.join(&mut keeper, "t", best_effort()).member.zone;
    world.join(&mut a, "t", volatile());
    world.ask(&a, Request::GpuLost { zone }).unwrap();
    mps.0.lock().unwrap().none = true;
    world.kill(a);
    let mut b = world.client("b");
    world.join(&mut b, "t", volatile());
    let index = world.take_timeline(&b, zone);
    let words = keeper.holds[&zone].words();
    mps.prove_all();
    world.pass(Duration::from_secs(1));
    assert_eq!(tenure(&words, index), 0);
}

#[test]
fn the_next_daemon_asks_about_those_who_died_in_between() {
    let (mut world, _) = world();
    let (mut a, mut keeper) = (world.client("a"), world.client("keeper"));
    let seat = world.join(&mut a, "t", volatile());
    let kept = world.join(&mut keeper, "t", best_effort());
    let zone = seat.member.zone;
    let words = keeper.holds[&zone].words();
    let index = world.take_timeline(&a, zone);
    // The client dies and loses its lock while there is no daemon.
    drop(a);
    world.restart();
    let mps = TestMps::default();
    world.engine.set_mps(Box::new(mps.clone()));
    world.hand_back_all(&mut keeper, zone, &[(kept.member, vec![])]);
    world.pass(Duration::from_secs(2));
    let asked = mps.asked();
    assert_eq!((asked.len(), asked[0].name.as_str()), (1, "a"));
    assert_eq!(world.info(&keeper, "t").publishers.len(), 1);
    assert_eq!(tenure(&words, index), 0);
    mps.prove_all();
    world.pass(Duration::from_secs(2));
    assert_eq!(tenure(&words, index), 1);
    assert_eq!(world.status(&keeper).clients_reaped, 1);
    assert_eq!(world.info(&keeper, "t").row.publishers, 0);
}

#[test]
fn a_daemon_that_leaves_stops_what_it_started() {
    let (mut world, mps) = world();
    world.engine.leave_state();
    assert!(mps.0.lock().unwrap().stopped);
}
