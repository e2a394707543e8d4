//! Flows that have ended, which do not begin again. What is said of a stream comes in a flow of its own, before or after that
//! its publishers' flows end; so each side remembers for a while which have ended.

use crate::wire::{Source, Stream};
use rgaps_transport::Flow;
use std::collections::VecDeque;

/// Flows that are remembered on either side.
const MAX_GONE: usize = 1024;
const MAX_EARLY: usize = 256;

fn flow(stream: u64, publisher: u64) -> Flow {
    Flow {
        topic: stream,
        incarnation: publisher,
    }
}

/// The sending side's: publishers that were gone from a topic, and the streams that they were in.
#[derive(Default)]
pub struct Gone(VecDeque<Flow>);

impl Gone {
    /// Publishers are gone from a stream.
    pub fn add(&mut self, stream: u64, publishers: &[u64]) {
        self.0
            .extend(publishers.iter().map(|gone| flow(stream, *gone)));
        let forgotten = self.0.len().saturating_sub(MAX_GONE);
        self.0.drain(..forgotten);
    }

    /// Whether a publisher was gone from any.
    pub fn has(&self, publisher: u64) -> bool {
        self.0.iter().any(|gone| gone.incarnation == publisher)
    }

    /// Whether a stream is to begin again under another number: by its flow alone the other side cannot tell a publisher that is back
    /// from one whose end is still on its way, nor what is for more hosts than was said from what came before that word.
    pub fn renews(&self, stream: u64, said: Option<&Stream>, sources: &[Source]) -> bool {
        let grows = |source: &Source| {
            let mut known = said.into_iter().flat_map(|said| &said.publishers);
            let known = known.find(|known| known.publisher == source.publisher);
            known.is_some_and(|known| !source.carry.iter().all(|on| known.carry.contains(on)))
        };
        let is_back = |source: &Source| self.0.contains(&flow(stream, source.publisher));
        sources
            .iter()
            .any(|source| grows(source) || is_back(source))
    }
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
    use rgaps::links::Offer;
    use rgaps::History;

    fn source(publisher: u64, carry: &[&str]) -> Source {
        Source {
            publisher,
            offer: Offer {
                history: History::KeepLast(1),
                reliable: true,
                transient_local: false,
                loans: 1,
            },
            way: Vec::new(),
            carry: carry.iter().map(|host| (*host).to_owned()).collect(),
        }
    }

    fn stream(number: u64, publishers: &[u64]) -> Stream {
        Stream {
            number,
            topic: "t".to_owned(),
            type_name: String::new(),
            publishers: publishers.iter().map(|of| source(*of, &["c"])).collect(),
            resumed: false,
            read: Ok(()),
        }
    }

    #[test]
    fn a_publisher_that_is_back_has_its_stream_begin_again() {
        let mut gone = Gone::default();
        let said = stream(1, &[7, 8]);
        let all = [source(7, &["c"]), source(8, &["c"])];
        assert!(!gone.renews(1, Some(&said), &all));
        gone.add(1, &[7]);
        assert!(gone.has(7) && !gone.has(8));
        // Nothing was said of it since perhaps.
        assert!(gone.renews(1, Some(&said), &all) && gone.renews(1, None, &all));
        assert!(!gone.renews(1, Some(&said), &all[1..]) && !gone.renews(2, Some(&said), &all));
        // Long ago.
        gone.add(1, &[9; MAX_GONE]);
        assert!(!gone.renews(1, Some(&said), &all));
    }

    #[test]
    fn messages_for_more_hosts_have_their_stream_begin_again() {
        let (gone, said) = (Gone::default(), stream(1, &[7]));
        assert!(gone.renews(1, Some(&said), &[source(7, &["c", "d"])]));
        // Fewer do not, nor do those of which nothing was said, or which are new.
        assert!(!gone.renews(1, Some(&said), &[source(7, &[])]));
        assert!(!gone.renews(1, Some(&said), &[source(8, &["d"])]));
        assert!(!gone.renews(1, None, &[source(7, &["c", "d"])]));
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
