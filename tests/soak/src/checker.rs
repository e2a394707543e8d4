//! Checks what subscribers received against what publishers published.
//!
//! A message carries its publisher and its number. Messages of one stream (those that come from one publisher of the
//! subscriber's host: the publisher itself, or one of the links) arrive in order, and `missed` is exactly the gap before each
//! of them. Links that die and come back begin a new stream, whose first message tells what lies between the two, and also
//! what was left unread in the publisher's slot by its predecessor. So gaps between streams are checked as a sum at the end.
//!
//! A subscriber's window of a publisher on its own host begins when it has joined; of one on another host, with the first
//! message that arrives (decision 0034). It ends with the last message that arrives: publishers that live go on until the
//! end, so each gap is followed by a message that tells of it.

use crate::board::Published;
use crate::journal::{Content, Message, Record};
use crate::report::Report;
use crate::topics::Wish;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A publisher, as the supervisor knows it.
#[derive(Clone, Debug)]
pub struct Publisher {
    pub name: String,
    pub host: usize,
    pub topic: usize,
    pub lives: bool,
    pub published: Published,
}

/// A subscriber, and what it received.
pub struct Subscriber {
    name: String,
    host: usize,
    topic: usize,
    wish: Wish,
    pub lives: bool,
    is_ready: bool,
    /// How much each publisher of its host had published when it joined: at least, and at most.
    joined: BTreeMap<u32, (u64, u64)>,
    sources: BTreeMap<u32, Source>,
    /// How many it has counted as missed, in all.
    missed_in_all: u64,
    /// The number that comes next in each stream, by the publisher on this host.
    streams: HashMap<u64, u64>,
    /// Messages that it received.
    taken: u64,
    /// Messages that were untold, and told of too much, as reported message by message.
    untold: u64,
    overtold: u64,
}

/// What a subscriber received of one publisher.
#[derive(Default)]
struct Source {
    received: Numbers,
    aborted: BTreeSet<u64>,
    /// The sum of what samples said was missed.
    told: u64,
    /// What the first sample said.
    told_first: u64,
    /// In the order in which their first messages were received.
    parts: Vec<Part>,
}

/// What was received of one stream.
struct Part {
    from: u64,
    first: u64,
    last: u64,
    /// Of all messages that the subscriber received, which one was the first of this stream, and which one the last.
    first_at: u64,
    last_at: u64,
}

impl Source {
    fn note(&mut self, from: u64, sequence: u64, at: u64) {
        match self.parts.iter_mut().find(|part| part.from == from) {
            Some(part) => (part.last, part.last_at) = (sequence, at),
            None => self.parts.push(Part {
                from,
                first: sequence,
                last: sequence,
                first_at: at,
                last_at: at,
            }),
        }
    }

    /// Messages that a subscriber had still to read of one stream when it died, while it read the next one already. It takes turns, so it
    /// had not read two messages of the next one without one of the former, had there been any.
    fn unread_between_streams(&self) -> u64 {
        let unread = self.parts.windows(2).filter_map(|pair| {
            let [former, next] = pair else { return None };
            let both = former.last_at > next.first_at || next.first_at == next.last_at;
            let between = next.first.saturating_sub(former.last + 1);
            both.then_some(between)
        });
        unread.sum()
    }
}

/// Numbers of messages, as ranges.
#[derive(Default)]
struct Numbers(BTreeMap<u64, u64>);

impl Numbers {
    fn contains(&self, number: u64) -> bool {
        let below = self.0.range(..=number).next_back();
        below.is_some_and(|(_, end)| number < *end)
    }

    fn insert(&mut self, number: u64) {
        let mut end = number + 1;
        if let Some(above) = self.0.remove(&end) {
            end = above;
        }
        match self.0.range_mut(..number).next_back() {
            Some((_, below)) if *below == number => *below = end,
            _ => {
                self.0.insert(number, end);
            }
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|(begin, end)| end - begin).sum()
    }

    fn first(&self) -> Option<u64> {
        self.0.first_key_value().map(|(begin, _)| *begin)
    }

    /// The number behind the last one.
    fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// The first gaps, in words.
    fn gaps(&self) -> String {
        let ranges: Vec<_> = self.0.iter().collect();
        let gaps = ranges.windows(2).map(|pair| {
            let (begin, end) = (*pair[0].1, *pair[1].0);
            format!("{begin}..{end}")
        });
        let gaps: Vec<_> = gaps.take(8).collect();
        gaps.join(", ")
    }
}

#[derive(Default)]
pub struct Checker {
    pub report: Report,
    pub publishers: BTreeMap<u32, Publisher>,
    pub subscribers: BTreeMap<u32, Subscriber>,
}

impl Subscriber {
    pub fn new(name: String, host: usize, topic: usize, wish: Wish) -> Subscriber {
        Subscriber {
            name: format!("{name} ({wish})"),
            host,
            topic,
            wish,
            lives: true,
            is_ready: false,
            joined: BTreeMap::new(),
            sources: BTreeMap::new(),
            missed_in_all: 0,
            streams: HashMap::new(),
            taken: 0,
            untold: 0,
            overtold: 0,
        }
    }

    fn topic(&self) -> &'static str {
        crate::topics::KINDS[self.topic].name
    }
}

impl Checker {
    /// Takes what a subscriber wrote down. `None`: a record that cannot be read.
    pub fn record(&mut self, subscriber: u32, record: Option<Record>) {
        let Some(reader) = self.subscribers.get_mut(&subscriber) else {
            return;
        };
        match record {
            None => {
                let what = format!("{} wrote a record that cannot be read", reader.name);
                self.report.corrupt(reader.topic(), what);
            }
            Some(Record::Ready) => reader.is_ready = true,
            Some(Record::Joined {
                publisher,
                done,
                begun,
            }) => {
                reader.joined.insert(publisher, (done, begun));
            }
            Some(Record::Message(message)) => self.receive(subscriber, message),
        }
    }

    fn receive(&mut self, subscriber: u32, message: Message) {
        let Some(reader) = self.subscribers.get_mut(&subscriber) else {
            return;
        };
        let Checker {
            report, publishers, ..
        } = self;
        let Message {
            sequence, missed, ..
        } = message;
        let topic = reader.topic();
        report.tally.messages += 1;
        report.tally.bytes += message.bytes;
        reader.missed_in_all = reader.missed_in_all.max(message.missed_in_all);
        let known = publishers.get(&message.publisher);
        let Some(publisher) = known.filter(|publisher| publisher.topic == reader.topic) else {
            let (id, name) = (message.publisher, &reader.name);
            return report.corrupt(
                topic,
                format!("{name} received message {sequence} of {id}, which does not publish there"),
            );
        };
        let pair = format!("{} of {}", reader.name, publisher.name);
        let source = reader.sources.entry(message.publisher).or_default();
        let next = reader.streams.get(&message.from).copied();
        if message.content == Content::Wrong {
            report.corrupt(topic, format!("{pair}: the bytes of message {sequence}"));
            if next.is_some_and(|next| sequence < next) {
                // It was whole when it was received.
                return;
            }
        }
        if source.received.contains(sequence) {
            return report.duplicate(topic, format!("{pair}: message {sequence} came twice"));
        }
        reader.streams.insert(message.from, sequence + 1);
        reader.taken += 1;
        source.note(message.from, sequence, reader.taken);
        match next {
            Some(next) if sequence < next => {
                report.corrupt(
                    topic,
                    format!("{pair}: message {sequence} came after {}", next - 1),
                );
            }
            Some(next) => {
                let gap = sequence - next;
                if gap != missed {
                    reader.untold += gap.saturating_sub(missed);
                    reader.overtold += missed.saturating_sub(gap);
                    let what = format!("{pair}: {gap} messages lie between {} and {sequence}, and missed is {missed}", i128::from(next) - 1);
                    report.lost(topic, gap.abs_diff(missed), what);
                }
            }
            None if publisher.host == reader.host && source.received.0.is_empty() => {
                let (_, begun) = reader
                    .joined
                    .get(&message.publisher)
                    .copied()
                    .unwrap_or_default();
                let begins = sequence.saturating_sub(missed);
                if begins > begun && !reader.wish.late {
                    reader.untold += begins - begun;
                    let what = format!("{pair}: joined before message {begun}, but the first one is {sequence}, and missed is {missed}");
                    report.lost(topic, begins - begun, what);
                }
            }
            None => {}
        }
        if source.received.0.is_empty() && source.aborted.is_empty() {
            source.told_first = missed;
        }
        source.told += missed;
        match message.content {
            Content::Aborted => {
                source.aborted.insert(sequence);
            }
            Content::Whole | Content::Wrong => source.received.insert(sequence),
        }
    }

    /// Who has not come to where it must be, now that disturbances are over.
    pub fn behind(&self) -> Vec<String> {
        let mut behind = Vec::new();
        let living = self
            .publishers
            .iter()
            .filter(|(_, publisher)| publisher.lives);
        for (id, publisher) in living {
            let wanted = publisher.published.at_finish;
            if wanted == 0 {
                behind.push(format!("{} publishes nothing", publisher.name));
                continue;
            }
            let of_topic = self.subscribers.values();
            for reader in of_topic.filter(|reader| reader.lives && reader.topic == publisher.topic)
            {
                let end = reader
                    .sources
                    .get(id)
                    .map_or(0, |source| source.received.end());
                if end < wanted {
                    behind.push(format!("{} of {}: had messages up to {end}, and {wanted} were published when disturbances ended", reader.name, publisher.name));
                }
            }
        }
        behind
    }

    /// The sums, when all that will be received has been received.
    pub fn finish(&mut self) {
        for reader in self.subscribers.values() {
            check_sums(reader, &self.publishers, &mut self.report);
            if reader.lives {
                check_tails(reader, &self.publishers, &mut self.report);
            }
        }
    }
}

/// Holes in what was received, over all streams, are what was told.
fn check_sums(reader: &Subscriber, publishers: &BTreeMap<u32, Publisher>, report: &mut Report) {
    // At least, and at most: a message that was being published when the subscriber joined may be in its window.
    let (mut holes_min, mut holes_max, mut told, mut aborted) = (0, 0, 0, 0);
    let (topic, mut gaps) = (reader.topic(), Vec::new());
    for (id, publisher) in publishers
        .iter()
        .filter(|(_, publisher)| publisher.topic == reader.topic)
    {
        let source = reader.sources.get(id);
        let joined = reader.joined.get(id).copied().unwrap_or_default();
        let is_here = publisher.host == reader.host;
        let end = source.map_or(0, |source| source.received.end());
        // What is left unread of one that is gone may be told by whoever has its slot next.
        if !publisher.lives {
            let begun = if end > 0 { end } else { joined.0 };
            holes_max += publisher.published.begun.saturating_sub(begun);
        }
        let Some((source, first)) =
            source.and_then(|source| Some((source, source.received.first()?)))
        else {
            continue;
        };
        let latest = match is_here && !reader.wish.late {
            true => first.min(joined.1),
            false => first,
        };
        let earliest = match (is_here, reader.wish.late) {
            (_, true) => 0,
            (true, false) => first.min(joined.0),
            (false, false) => first.saturating_sub(source.told_first),
        };
        let received = source.received.count();
        let unread = match reader.lives {
            true => 0,
            false => source.unread_between_streams(),
        };
        holes_min += (end - latest - received).saturating_sub(unread);
        holes_max += end - earliest - received;
        told += source.told;
        aborted += source
            .aborted
            .iter()
            .filter(|at| !source.received.contains(**at))
            .count() as u64;
        if end - first > received {
            gaps.push(format!("{} of {}", source.received.gaps(), publisher.name));
        }
    }
    // A subscriber with a depth may pass over the last messages of a stream. No sample of that stream tells of them, but the
    // subscriber has counted them.
    let counted = told.max(reader.missed_in_all);
    let untold = holes_min.saturating_sub(counted + aborted);
    if untold > reader.untold {
        let what = format!("{}: {holes_min} messages did not come, {told} were told of as missed, and {} were counted; between streams: {}", reader.name, reader.missed_in_all, gaps.join("; "));
        report.lost(topic, untold - reader.untold, what);
    }
    let overtold = told.saturating_sub(holes_max + reader.overtold);
    if overtold > 0 {
        let what = format!(
            "{}: {told} messages were told of as missed, but {holes_max} did not come at most",
            reader.name
        );
        report.lost(topic, overtold, what);
    }
}

/// A reliable subscriber gets all that a publisher of its host published before it died.
fn check_tails(reader: &Subscriber, publishers: &BTreeMap<u32, Publisher>, report: &mut Report) {
    let Wish {
        reliable,
        depth,
        late,
    } = reader.wish;
    if !reliable || depth.is_some() || late || !reader.is_ready {
        return;
    }
    for (id, publisher) in publishers {
        let is_whole = publisher.topic == reader.topic && publisher.host == reader.host;
        if publisher.lives || !is_whole || crate::topics::KINDS[reader.topic].drops {
            continue;
        }
        let had = reader.joined.get(id).map_or(0, |(_, begun)| *begun);
        let end = reader
            .sources
            .get(id)
            .map_or(0, |source| source.received.end());
        let done = publisher.published.done;
        if done > had.max(end) {
            let what = format!(
                "{} of {}: it died after message {}, but nothing came after {end} messages",
                reader.name,
                publisher.name,
                done - 1
            );
            report.lost(reader.topic(), done - had.max(end), what);
        }
    }
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
