//! What must be so when everybody pauses: nobody holds anything but the messages in the rings.

use crate::holders::{Publisher, Topic, Zone};
use crate::raw::{Raw, TOPIC};
use crate::topics::KINDS;
use rgaps_layout::GRANULE_BYTES;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the daemon may take to clean up.
const SETTLE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Something that is not as it must be.
#[derive(Debug)]
pub struct Problem {
    pub what: String,
    /// Blocks, or granules where their number is not known, that this leaks; at least 1.
    pub leaked: u64,
}

fn problem(what: String) -> Problem {
    Problem { what, leaked: 1 }
}

/// Those that live, by the names of their clients; of publishers, the bytes that their allocator
/// has in use.
pub type Survivors<'a> = dyn Fn() -> HashMap<String, Option<u64>> + 'a;

/// Looks until all is well, or until it has been wrong for too long.
pub fn check(socket: &Path, survivors: &Survivors<'_>) -> anyhow::Result<Vec<Problem>> {
    let begun = Instant::now();
    loop {
        let problems = look(socket, &survivors())?;
        if problems.is_empty() || begun.elapsed() > SETTLE {
            return Ok(problems);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn look(socket: &Path, survivors: &HashMap<String, Option<u64>>) -> anyhow::Result<Vec<Problem>> {
    let mut raw = Raw::connect(socket)?;
    let zone = Zone::open(raw.enter_zone()?)?;
    let topics = zone.topics()?;
    let mut problems = Vec::new();
    for topic in &topics {
        check_topic(topic, survivors, &mut problems);
    }
    let members: usize = topics
        .iter()
        .filter(|topic| topic.name != TOPIC)
        .map(|topic| {
            topic.subscribers.len() + topic.publishers.iter().filter(|p| !p.orphan).count()
        })
        .sum();
    if members != survivors.len() {
        problems.push(problem(format!(
            "{members} members are listed where {} live",
            survivors.len()
        )));
    }
    let leased: u64 = topics
        .iter()
        .flat_map(|topic| &topic.publishers)
        .map(|publisher| publisher.granules_leased)
        .sum();
    let pool_bytes: u64 = raw.pools()?.iter().map(|pool| pool.leased_bytes).sum();
    if pool_bytes != leased * GRANULE_BYTES {
        let leaked = (pool_bytes / GRANULE_BYTES).abs_diff(leased).max(1);
        problems.push(Problem {
            what: format!("{pool_bytes} bytes are leased, but publishers have {leased} granules"),
            leaked,
        });
    }
    Ok(problems)
}

fn check_topic(
    topic: &Topic,
    survivors: &HashMap<String, Option<u64>>,
    problems: &mut Vec<Problem>,
) {
    let name = &topic.name;
    if !topic.masks_fit {
        problems.push(problem(format!("{name}: the masks are not the registry's")));
    }
    for subscriber in &topic.subscribers {
        if name != TOPIC && !survivors.contains_key(subscriber) {
            problems.push(problem(format!("{name}: {subscriber} is dead")));
        }
    }
    let kept = KINDS
        .iter()
        .any(|kind| kind.name == *name && kind.transient_local);
    for publisher in &topic.publishers {
        let mut add = |what: String, leaked: u64| {
            let what = format!("{name}: {}: {what}", publisher.client);
            problems.push(Problem {
                what,
                leaked: leaked.max(1),
            });
        };
        if publisher.orphan && !kept {
            add(
                format!(
                    "its history of {} with {} copies is still there",
                    publisher.kept, publisher.copies
                ),
                publisher.kept + publisher.copies,
            );
        }
        if !publisher.orphan {
            check_survivor(publisher, survivors, &mut add);
        }
        for (what, blocks) in [
            ("held by nobody who lives", &publisher.held),
            ("loaned to nobody", &publisher.loaned),
            ("not as the ring has it", &publisher.stray),
        ] {
            if !blocks.is_empty() {
                add(format!("{what}: {blocks:?}"), blocks.len() as u64);
            }
        }
        if publisher.granules_leased != publisher.granules_live {
            add(
                format!(
                    "{} granules are leased where blocks live in {}",
                    publisher.granules_leased, publisher.granules_live
                ),
                publisher.granules_leased.abs_diff(publisher.granules_live),
            );
        }
    }
}

fn check_survivor(
    publisher: &Publisher,
    survivors: &HashMap<String, Option<u64>>,
    add: &mut impl FnMut(String, u64),
) {
    match survivors.get(&publisher.client) {
        None => add("it is dead".to_owned(), 1),
        Some(used) => {
            let used = used.unwrap_or(0);
            if used != publisher.bytes_live {
                add(
                    format!(
                        "its allocator has {used} bytes in use, of which {} live",
                        publisher.bytes_live
                    ),
                    1,
                );
            }
        }
    }
}
