//! Flows that have ended, which do not begin again. What is said of a stream comes in a flow of its own, before or after that
//! its publishers' flows end; so a publisher that is back has its streams begin again, and an end that comes first is remembered.

use crate::host_link::Flow;
use crate::wire::{Source, Stream};
use std::collections::VecDeque;

/// Publishers that the sending side remembers, of a topic, and flows that the landing side does, of a link.
const MAX_GONE: usize = 1024;
const MAX_EARLY: usize = 256;

fn flow(stream: u64, publisher: u64) -> Flow {
    Flow {
        topic: stream,
        incarnation: publisher,
    }
}

/// The sending side's: publishers that were gone from a topic, the last ones.
#[derive(Default)]
pub struct Gone(VecDeque<u64>);

impl Gone {
    /// Publishers are gone.
    pub fn add(&mut self, publishers: &[u64]) {
        self.0.extend(publishers);
        let forgotten = self.0.len().saturating_sub(MAX_GONE);
        self.0.drain(..forgotten);
    }

    /// Which of these are there again.
    pub fn take_back<'a>(&mut self, publishers: impl Iterator<Item = &'a u64>) -> Vec<u64> {
        let back: Vec<u64> = publishers
            .filter(|publisher| self.0.contains(publisher))
            .copied()
            .collect();
        self.0.retain(|gone| !back.contains(gone));
        back
    }
}

/// Whether a stream is to begin again under another number: messages are for more hosts than was said. That comes in a flow of its own,
/// so they could come before it, and would not be carried on.
pub fn grows(said: &Stream, sources: &[Source]) -> bool {
    sources.iter().any(|source| {
        let mut known = said.publishers.iter();
        let known = known.find(|known| known.publisher == source.publisher);
        known.is_some_and(|known| !source.carry.iter().all(|on| known.carry.contains(on)))
    })
}

/// The landing side's: flows whose end was there before it was said that they are in their streams.
#[derive(Default)]
pub struct Early(VecDeque<Flow>);

impl Early {
    /// One has ended that is in no stream.
    pub fn add(&mut self, flow: Flow) {
        if self.0.len() >= MAX_EARLY {
            self.0.pop_front();
        }
        self.0.push_back(flow);
    }

    /// What was said of a stream, without those.
    pub fn leave_out(&mut self, stream: &mut Stream) {
        let Stream {
            number, publishers, ..
        } = stream;
        // Once it is said without a publisher, it is not said with it any more.
        self.0.retain(|ended| {
            let mut named = publishers.iter();
            ended.topic != *number || named.any(|source| source.publisher == ended.incarnation)
        });
        publishers.retain(|source| !self.0.contains(&flow(*number, source.publisher)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_client::links::Offer;
    use rgaps_client::History;

    fn source(publisher: u64, carry: &[&str]) -> Source {
        Source {
            publisher,
            offer: Offer {
                history: History::KeepLast(1),
                reliable: true,
                transient_local: false,
                loans: 1,
            },
            type_name: String::new(),
            way: Vec::new(),
            carry: carry.iter().map(|host| (*host).to_owned()).collect(),
            history: 0,
        }
    }

    fn stream(number: u64, publishers: &[u64]) -> Stream {
        Stream {
            number,
            topic: "t".to_owned(),
            publishers: publishers.iter().map(|of| source(*of, &["c"])).collect(),
            read: Ok(()),
        }
    }

    #[test]
    fn publishers_that_were_gone_are_known_when_they_are_back() {
        let mut gone = Gone::default();
        gone.add(&[7, 8]);
        assert_eq!(gone.take_back([6, 7].iter()), [7]);
        // Once each time.
        assert!(gone.take_back([7].iter()).is_empty());
        gone.add(&[7]);
        assert_eq!(gone.take_back([7, 8].iter()), [7, 8]);
        // Long ago.
        gone.add(&[7]);
        gone.add(&[9; MAX_GONE]);
        assert!(gone.take_back([7].iter()).is_empty());
    }

    #[test]
    fn messages_for_more_hosts_have_their_stream_begin_again() {
        let said = stream(1, &[7]);
        assert!(grows(&said, &[source(7, &["c", "d"])]));
        // Fewer do not, nor do those that are new.
        assert!(!grows(&said, &[source(7, &[])]) && !grows(&said, &[source(7, &["c"])]));
        assert!(!grows(&said, &[source(8, &["d"])]));
    }

    #[test]
    fn publishers_whose_flows_ended_first_get_no_place() {
        let mut early = Early::default();
        early.add(flow(1, 7));
        let left = |early: &mut Early, mut stream: Stream| {
            early.leave_out(&mut stream);
            let left = stream.publishers.iter();
            left.map(|source| source.publisher).collect::<Vec<_>>()
        };
        assert_eq!(left(&mut early, stream(2, &[7, 8])), [7, 8]);
        // As often as it is said.
        assert_eq!(left(&mut early, stream(1, &[7, 8])), [8]);
        assert_eq!(left(&mut early, stream(1, &[8, 7])), [8]);
        assert_eq!(left(&mut early, stream(1, &[8])), [8]);
        assert!(early.0.is_empty());
        (0..1000).for_each(|publisher| early.add(flow(1, publisher)));
        assert_eq!(early.0.len(), MAX_EARLY);
    }
}
