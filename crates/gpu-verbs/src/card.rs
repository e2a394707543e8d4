//! A software card: a thread that serves queue pairs as a network card would, and reads the same bytes of kernels.

use crate::carrier::{Carrier, Responder};
use crate::engine::{Behaviour, Counts, Engine};
use crate::loopback::{LoopbackCarrier, NullCarrier};
use crate::memory::ZeroedMemory;
use crate::queue::{Depths, QueueMemory, Rings};
use crate::regions::{Regions, Registration};
use crate::tcp::TcpCarrier;
use crate::verbs_carrier::VerbsCarrier;
use crate::view::QueuePairView;
use crate::GpuVerbsError;
use rgaps_layout::Domain;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Rounds without work before the thread sleeps between rounds.
const IDLE_ROUNDS: u32 = 20_000;
/// How long it sleeps then.
const IDLE_SLEEP: Duration = Duration::from_micros(50);

enum Command {
    Serve(Box<Engine>),
    /// Drops the engine of this queue pair, and answers when the thread does not use the pair's memory any more.
    Leave(u32, Sender<()>),
}

/// A card, with its registered memory.
pub struct Card {
    kernels: Domain,
    regions: Arc<Regions>,
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    next_number: AtomicU32,
}

impl Card {
    /// A card for the kernels of a domain.
    pub fn new(kernels: Domain) -> Result<Card, GpuVerbsError> {
        let (commands, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("rgaps-card".into())
            .spawn(move || serve(&receiver))
            .map_err(GpuVerbsError::System)?;
        Ok(Card {
            kernels,
            regions: Arc::default(),
            commands: Some(commands),
            thread: Some(thread),
            // As on real cards not 0. All bytes differ, so that code that loses one fails.
            next_number: AtomicU32::new(0x1_0203),
        })
    }

    /// The domain in which its kernels run.
    pub fn kernels(&self) -> Domain {
        self.kernels
    }

    /// Registers memory. If `is_remote`, a peer that knows the key may read and write it.
    pub fn register(&self, memory: &Arc<ZeroedMemory>, is_remote: bool) -> Registration {
        Registration::new(&self.regions, memory, is_remote)
    }

    /// Creates a queue pair, which has no peer yet.
    pub fn queue_pair(&self, depths: Depths) -> Result<QueuePair, GpuVerbsError> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let queue = QueueMemory::new(self.kernels, Rings::Host, depths, number)?;
        Ok(QueuePair {
            queue: Arc::new(queue),
            regions: Arc::clone(&self.regions),
            commands: self.commands.clone().expect("taken by drop only"),
            abilities: 0,
            is_stalled: Arc::default(),
            counts: Arc::default(),
        })
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // The thread ends when the last sender of commands is dropped: queue pairs have one each.
        self.commands = None;
        drop(self.thread.take());
    }
}

/// A queue pair of a [`Card`]. Drop it only after all kernels that use it have ended.
pub struct QueuePair {
    queue: Arc<QueueMemory>,
    regions: Arc<Regions>,
    commands: Sender<Command>,
    abilities: u32,
    is_stalled: Arc<AtomicBool>,
    counts: Arc<Mutex<Counts>>,
}

impl QueuePair {
    fn serve(
        &mut self,
        carrier: Box<dyn Carrier>,
        behaviour: Behaviour,
    ) -> Result<(), GpuVerbsError> {
        if self.abilities != 0 {
            return Err(GpuVerbsError::Argument(
                "the queue pair has a peer already".into(),
            ));
        }
        self.abilities = carrier.abilities();
        let engine = Engine::new(
            Arc::clone(&self.queue),
            carrier,
            behaviour,
            Arc::clone(&self.is_stalled),
            Arc::clone(&self.counts),
        );
        let sent = self.commands.send(Command::Serve(Box::new(engine)));
        sent.map_err(|_| GpuVerbsError::CardEnded)
    }

    /// Connects it with another queue pair of this process, of the same or another card: the model.
    pub fn connect(
        &mut self,
        peer: &mut QueuePair,
        behaviour: Behaviour,
    ) -> Result<(), GpuVerbsError> {
        let tries = Some(behaviour.receive_tries).filter(|tries| *tries > 0);
        let (one, other) =
            LoopbackCarrier::pair(Arc::clone(&self.regions), Arc::clone(&peer.regions), tries);
        self.serve(Box::new(one), behaviour)?;
        peer.serve(Box::new(other), behaviour)
    }

    /// Connects it over a TCP connection, on whose other end a peer calls the same function: the proxy.
    pub fn connect_tcp(&mut self, stream: TcpStream) -> Result<(), GpuVerbsError> {
        let responder = Responder::new(Arc::clone(&self.regions));
        let carrier = TcpCarrier::new(stream, responder).map_err(GpuVerbsError::System)?;
        self.serve(Box::new(carrier), Behaviour::default())
    }

    /// Connects it through a carrier of RDMA verbs, which is connected already: the proxy.
    pub fn connect_verbs(&mut self, carrier: VerbsCarrier) -> Result<(), GpuVerbsError> {
        self.serve(Box::new(carrier), Behaviour::default())
    }

    /// Connects it to a carrier that completes each work after `latency` and carries out none. For measuring what posting costs.
    pub fn connect_to_nothing(&mut self, latency: Duration) -> Result<(), GpuVerbsError> {
        self.serve(Box::new(NullCarrier::new(latency)), Behaviour::default())
    }

    /// The parameter that kernels take. It lists no abilities until the queue pair is connected.
    pub fn view(&self) -> QueuePairView {
        self.queue.view(self.abilities)
    }

    /// Its memory.
    pub fn memory(&self) -> &QueueMemory {
        &self.queue
    }

    /// Stalls the queue pair: the card does nothing for it until this is called with false.
    pub fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Ordering::Release);
    }

    /// What the card has counted on it so far.
    pub fn counts(&self) -> Counts {
        self.counts.lock().expect("nobody panics with it").clone()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let (answer, left) = channel();
        if self
            .commands
            .send(Command::Leave(self.queue.number(), answer))
            .is_ok()
        {
            // An error means that the thread has ended, so it does not use the memory either.
            let _ = left.recv();
        }
    }
}

/// The thread of a card: ends when the card and its queue pairs have been dropped.
fn serve(commands: &Receiver<Command>) {
    let mut engines: Vec<Box<Engine>> = Vec::new();
    let mut idle = 0;
    loop {
        match commands.try_recv() {
            Ok(Command::Serve(engine)) => engines.push(engine),
            Ok(Command::Leave(number, answer)) => {
                engines.retain(|engine| engine.number() != number);
                // An error means that the queue pair does not wait for the answer.
                let _ = answer.send(());
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        let mut is_busy = false;
        for engine in &mut engines {
            is_busy |= engine.step();
        }
        idle = if is_busy { 0 } else { idle + 1 };
        match idle {
            0 => {}
            1..IDLE_ROUNDS => std::thread::yield_now(),
            _ => {
                idle = IDLE_ROUNDS;
                std::thread::sleep(IDLE_SLEEP);
            }
        }
    }
}
