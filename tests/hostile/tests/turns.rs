//! How long an honest request takes beside a flood: a measurement, which prints JSON.
//!
//! `cargo test -p rgaps-hostile --test turns -- --ignored --nocapture`

use rgaps_hostile::daemon;
use rgaps_hostile::liar::{subscriber, Liar};
use rgaps_session::{Answer, ClientPacket, DaemonPacket, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SESSIONS: usize = 600;
const TOPICS: usize = 8_000;
/// Threads that send; each has its part of the sessions.
const THREADS: usize = 4;
/// Honest requests that are timed.
const ROUNDS: usize = 50;

/// Sends requests for the list of topics on all of these until it is told to stop, and reads what comes.
fn flood(sessions: &[Liar], stop: &AtomicBool, answered: &AtomicU64) {
    let request = Request::Topics { from: 0 };
    while !stop.load(Relaxed) {
        for (liar, id) in sessions.iter().zip(1..) {
            let request = request.clone();
            // What does not fit is not sent.
            let _ = liar.channel.send(&ClientPacket { id, request }, &[]);
            while let Ok(Some(_)) = liar.channel.receive::<DaemonPacket>() {
                answered.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Times of an honest status, in milliseconds, sorted.
fn timed(honest: &mut Liar) -> Vec<f64> {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            let answer = honest.ask(Request::Status).expect("not cut off");
            assert!(matches!(answer, Ok(Answer::Status(_))));
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

#[test]
#[ignore = "a measurement: its figure depends on the machine"]
fn a_status_beside_600_sessions_that_flood_and_8000_topics() {
    let mut daemon = daemon::start_with(&[("RGAPS_LIMITS__TOPICS", "8192")]);
    let mut member = Liar::welcomed(&daemon.socket());
    for topic in 0..TOPICS {
        let joined = member.join(&format!("topic/{topic}"), subscriber(false));
        joined.expect("not cut off").expect("a seat");
    }
    let mut honest = Liar::welcomed(&daemon.socket());
    let alone = timed(&mut honest);
    let sessions: Vec<Liar> = (0..SESSIONS)
        .map(|_| Liar::welcomed(&daemon.socket()))
        .collect();
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let (beside, elapsed) = std::thread::scope(|scope| {
        for part in sessions.chunks(SESSIONS.div_ceil(THREADS)) {
            scope.spawn(|| flood(part, &stop, &answered));
        }
        // All of them flood.
        while answered.load(Relaxed) < SESSIONS as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = Instant::now();
        let beside = timed(&mut honest);
        stop.store(true, Relaxed);
        (beside, begun.elapsed())
    });
    println!(
        "{{\"sessions\":{SESSIONS},\"topics\":{TOPICS},\"alone_ms\":{:.2},\"beside_median_ms\":{:.2},\"beside_max_ms\":{:.2},\"flood_answers_per_s\":{:.0}}}",
        alone[ROUNDS / 2],
        beside[ROUNDS / 2],
        beside[ROUNDS - 1],
        answered.load(Relaxed) as f64 / elapsed.as_secs_f64()
    );
    daemon.assert_well();
}
