//! All figures of the daemon at one moment. Another thread asks for them, as that of the metrics port, and the reactor's thread
//! answers.

use super::listing::{pool_row, topic_row};
use super::Engine;
use crate::topic::Topic;
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

/// Most requests for snapshots that wait.
const MAX_ASKED: usize = 4;

/// All figures of the daemon.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// As in `rgaps status`.
    pub status: Status,
    /// How many requests clients have sent.
    pub requests: u64,
    /// How many zones this daemon took over from predecessors.
    pub zones_adopted: u64,
    /// Dead clients of which MPS has not confirmed that their GPU work is over.
    pub quarantined: u32,
    /// Topics of all zones, at most as many as were asked for.
    pub topics: Vec<TopicFigures>,
    /// How many topics are not among these.
    pub topics_left_out: usize,
    /// Pools of all zones, and for each the sum of `blocks_used` of its publishers.
    pub pools: Vec<(PoolRow, u64)>,
    /// Hosts that this one is linked with.
    pub peers: Vec<PeerRow>,
    /// Figures of the traces of single messages.
    pub traces: TraceFigures,
    /// Counters and times of the links with these hosts.
    pub links: Vec<LinkFigures>,
}

/// Figures of a topic.
#[derive(Clone, Debug)]
pub struct TopicFigures {
    /// As in listings.
    pub row: TopicRow,
    /// The zone's access class.
    pub access: String,
    /// By domain: how many subscribers read there.
    pub readers: BTreeMap<String, u32>,
}

impl Engine {
    /// All figures, with those of at most `topics_max` topics.
    pub fn snapshot(&self, topics_max: usize) -> Snapshot {
        let all = || {
            let zones = self.zones.iter();
            zones.flat_map(|zone| zone.topics().iter().map(move |topic| (zone, topic)))
        };
        let topics: Vec<TopicFigures> = all()
            .take(topics_max)
            .map(|(zone, topic)| topic_figures(topic, zone))
            .collect();
        let pools = self.zones.iter().flat_map(|zone| {
            let rows = zone.memory().iter();
            rows.map(|pool| {
                let blocks = blocks_used(pool.index, zone);
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
    let domain = |pool: u32| zone.memory().domain(pool).to_string();
    let mut readers = BTreeMap::new();
    for subscriber in &topic.subscribers {
        if let Some(pool) = subscriber.pool.or(topic.pool) {
            *readers.entry(domain(pool)).or_default() += 1;
        }
    }
    TopicFigures {
        row: topic_row(topic, zone),
        access: zone.class().to_owned(),
        readers,
    }
}

fn blocks_used(pool: u32, zone: &Zone) -> u64 {
    let mut blocks = 0u64;
    for topic in zone.topics().iter() {
        let view = zone.control().topic(topic.region);
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

/// Creates both ends. A snapshot has at most `topics_max` topics.
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
    /// Asks for a snapshot and waits for it. None: the daemon did not answer within `limit`, or ends.
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
    /// A descriptor that is readable while somebody asks.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes one snapshot and sends it to all who ask.
    pub(crate) fn answer(&self, engine: &Engine) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        let mut snapshot = None;
        for asker in self.from.try_iter() {
            let made = snapshot.get_or_insert_with(|| engine.snapshot(self.topics_max));
            // This fails if the asker has stopped waiting.
            let _ = asker.try_send(made.clone());
        }
    }
}
