//! A thread that asks the daemon for memory in which messages land: the request takes as long as the kernel needs to provide the pages.

use crate::event::ConductorEvent;
use crate::ingress::{MemoryRequest, RemotePublisher};
use std::collections::VecDeque;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long memory is kept for the message that needed it. A message that has come by another route meanwhile never takes it.
const KEPT: Duration = Duration::from_millis(200);

/// Starts the thread. It ends when all senders of requests are dropped.
pub fn start() -> std::io::Result<Sender<MemoryRequest>> {
    let (wanted, received) = channel::<MemoryRequest>();
    std::thread::Builder::new()
        .name("rgaps-memory".to_owned())
        .spawn(move || run(&received))?;
    Ok(wanted)
}

fn run(received: &Receiver<MemoryRequest>) {
    // Landings that got memory, and until when they may keep it.
    let mut given: VecDeque<(Instant, Weak<RemotePublisher>)> = VecDeque::new();
    loop {
        let next = given.front().map(|(until, _)| *until);
        let wanted = match next {
            None => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => received.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        match wanted {
            Ok(wanted) => {
                if wanted.landing.fetch(wanted.bytes) {
                    wanted.reporter.report(ConductorEvent::Room);
                }
                let landing = Arc::downgrade(&wanted.landing);
                given.push_back((Instant::now() + KEPT, landing));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        while given.front().is_some_and(|(until, _)| *until <= now) {
            let landing = given.pop_front().and_then(|(_, landing)| landing.upgrade());
            landing.inspect(|landing| landing.give_back(KEPT));
        }
    }
}
