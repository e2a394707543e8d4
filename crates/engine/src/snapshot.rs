//! All figures of the daemon at one moment, for whoever shows them: asked for by another thread, answered by
//! the reactor's.

use crate::control::Control;
use crate::engine::Engine;
use crate::listing::{pool_row, topic_row};
use crate::topic::Topic;
use crate::topics::Topics;
use crate::zone::Zone;
use rgaps_session::{LinkFigures, PeerRow, PoolRow, Status, TopicRow, TraceFigures};
use rgaps_sync::atomic::Ordering;
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

/// Snapshots that wait to be made.
const MAX_ASKED: usize = 4;

/// All figures of the daemon.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// How it is.
    pub status: Status,
    /// Requests that were answered, and zones that were taken over from former daemons.
    pub requests: u64,
    /// Zones that were taken over from former daemons.
    pub zones_adopted: u64,
    /// Dead clients of which MPS has not confirmed that their GPU work is over.
    pub quarantined: u32,
    /// Topics of all zones, those first that have been there for longest.
    pub topics: Vec<TopicFigures>,
    /// Topics that are not among them, since there are too many.
    pub topics_left_out: usize,
    /// Pools of all zones, with the blocks that publishers of theirs have used.
    pub pools: Vec<(PoolRow, u64)>,
    /// Hosts that this one is linked with.
    pub peers: Vec<PeerRow>,
    /// What was told of single messages.
    pub traces: TraceFigures,
    /// What was counted and timed on the links with them.
    pub links: Vec<LinkFigures>,
}

/// Figures of a topic.
#[derive(Clone, Debug)]
pub struct TopicFigures {
    /// As in listings.
    pub row: TopicRow,
    /// The zone's access rule; empty for the topics that none names.
    pub access: String,
    /// Subscribers by the domain in which they read.
    pub readers: BTreeMap<String, u32>,
}

impl Engine {
    /// All figures, of so many topics at most.
    pub fn snapshot(&self, topics_max: usize) -> Snapshot {
        let all = || {
            let zones = self.zones.iter();
            zones.flat_map(|zone| zone.topics.iter().map(move |topic| (zone, topic)))
        };
        let topics: Vec<TopicFigures> = all()
            .take(topics_max)
            .map(|(zone, topic)| topic_figures(topic, zone))
            .collect();
        let pools = self.zones.iter().flat_map(|zone| {
            let rows = zone.memory.iter();
            rows.map(|pool| {
                let blocks = blocks_used(pool.index, &zone.topics, &zone.control);
                (pool_row(pool, zone), blocks)
            })
        });
        let peers = self.links.peers();
        Snapshot {
            status: self.status(None),
            requests: self.requests(),
            zones_adopted: self.counters.zones_adopted,
            quarantined: self.mps_info().quarantined,
            topics_left_out: all().count() - topics.len(),
            topics,
            pools: pools.collect(),
            peers: peers.peers,
            traces: peers.traces,
            links: self.links.figures().cloned().collect(),
        }
    }
}

fn topic_figures(topic: &Topic, zone: &Zone) -> TopicFigures {
    let domain = |pool: u32| zone.memory.domain(pool).to_string();
    let mut readers = BTreeMap::new();
    for subscriber in &topic.subscribers {
        if let Some(pool) = subscriber.pool.or(topic.pool) {
            *readers.entry(domain(pool)).or_default() += 1;
        }
    }
    TopicFigures {
        row: topic_row(topic, &zone.control, &zone.memory),
        access: zone.class.clone(),
        readers,
    }
}

fn blocks_used(pool: u32, topics: &Topics, control: &Control) -> u64 {
    let mut blocks = 0u64;
    for topic in topics.iter() {
        let view = control.topic(topic.region);
        for publisher in topic.publishers.iter().filter(|p| p.pool == pool) {
            let words = view.publisher(publisher.slot as usize);
            blocks += u64::from(words.blocks_used().load(Ordering::Relaxed));
        }
    }
    blocks
}

/// Asks the reactor's thread for snapshots.
pub struct SnapshotAsker {
    bell: Arc<OwnedFd>,
    to: SyncSender<SyncSender<Snapshot>>,
}

/// The reactor's end.
pub struct SnapshotSource {
    bell: Arc<OwnedFd>,
    from: Receiver<SyncSender<Snapshot>>,
    topics_max: usize,
}

/// Both ends. A snapshot names `topics_max` topics at most.
pub fn snapshots(topics_max: usize) -> std::io::Result<(SnapshotAsker, SnapshotSource)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (to, from) = sync_channel(MAX_ASKED);
    let asker = SnapshotAsker {
        bell: bell.clone(),
        to,
    };
    let source = SnapshotSource {
        bell,
        from,
        topics_max,
    };
    Ok((asker, source))
}

impl SnapshotAsker {
    /// A snapshot; none: the daemon is busy for longer than `limit`, or leaves.
    pub fn ask(&self, limit: Duration) -> Option<Snapshot> {
        let (to, answer) = sync_channel(1);
        self.to.try_send(to).ok()?;
        match rustix::io::write(&*self.bell, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(_) => return None,
        }
        answer.recv_timeout(limit).ok()
    }
}

impl SnapshotSource {
    /// Readable when somebody asks.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Answers all who ask.
    pub(crate) fn answer(&self, engine: &Engine) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        let mut snapshot = None;
        for asker in self.from.try_iter() {
            let made = snapshot.get_or_insert_with(|| engine.snapshot(self.topics_max));
            // Whoever does not wait any more needs none.
            let _ = asker.try_send(made.clone());
        }
    }
}
