//! What another host says of those that it leads to, and what it was told of those that this host leads to.

use crate::host_link::Flow;
use crate::keys::Want;
use crate::ways::Way;
use crate::wire::{Said, Wants, MAX_PASSED_SAID, MAX_WANTS_SAID};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Topics that a host wants.
pub const MAX_WANTS: usize = 8192;

/// Topics, and what is wanted of each.
pub type Wanted = BTreeMap<String, Want>;

/// Whether streams reach hosts, or why not.
pub type Reached = BTreeMap<(u64, String), Result<(), String>>;

/// What a host wants that is reached through another.
#[derive(Default)]
pub struct Lead {
    /// Topics.
    pub wants: Wanted,
    /// All of them were said.
    pub is_whole: bool,
    /// Those that are not said again yet.
    stale: BTreeSet<String>,
    /// Those that were not when all was said again, and since when: by another life perhaps, which has not heard of them.
    doubted: BTreeMap<String, Instant>,
}

impl Lead {
    fn hear(&mut self, wants: Wants) {
        if wants.first {
            self.stale = self.wants.keys().cloned().collect();
        }
        for (topic, want) in wants.wants {
            self.stale.remove(&topic);
            self.doubted.remove(&topic);
            match want {
                Some(want) if self.wants.len() < MAX_WANTS => {
                    self.wants.insert(topic, want);
                }
                _ => {
                    self.wants.remove(&topic);
                }
            }
        }
        if wants.last {
            let now = Instant::now();
            for topic in std::mem::take(&mut self.stale) {
                self.doubted.entry(topic).or_insert(now);
            }
            self.is_whole = true;
        }
    }
}

/// What was said between this host and another about hosts behind them.
#[derive(Default)]
pub struct Through {
    /// What hosts want that it leads to.
    pub leads: BTreeMap<String, Lead>,
    /// The hosts that it asks for.
    pub asks: BTreeSet<String>,
    told_ways: Vec<Way>,
    told_asks: BTreeSet<String>,
    told_wants: BTreeMap<String, Wanted>,
    told_reached: Reached,
    told_passed: BTreeMap<Flow, u64>,
}

impl Through {
    /// It is another life, which has said nothing and knows nothing of what it was told.
    pub fn forget_said(&mut self) {
        self.asks.clear();
        self.told_ways.clear();
        self.told_asks.clear();
        self.told_wants.clear();
        self.told_reached.clear();
        self.told_passed.clear();
    }

    /// What a host wants that it was asked for.
    pub fn hear(&mut self, wants: Wants) {
        if self.told_asks.contains(&wants.host) {
            let lead = self.leads.entry(wants.host.clone()).or_default();
            lead.hear(wants);
        }
    }

    /// Forgets what hosts wanted and was not said again for so long. Whether there was any.
    pub fn forget_doubted(&mut self, limit: Duration) -> bool {
        let mut any = false;
        for lead in self.leads.values_mut() {
            let Lead { wants, doubted, .. } = lead;
            doubted.retain(|topic, since| {
                let stays = since.elapsed() < limit;
                any |= !stays && wants.remove(topic).is_some();
                stays
            });
        }
        any
    }

    /// Says where this host leads to, if that is something new.
    pub fn tell_ways(&mut self, ways: Vec<Way>) -> Option<Said> {
        let is_new = self.told_ways != ways;
        self.told_ways.clone_from(&ways);
        is_new.then_some(Said::Ways(ways))
    }

    /// Asks for these hosts, if others were asked for.
    pub fn ask(&mut self, hosts: BTreeSet<String>) -> Option<Said> {
        let is_new = self.told_asks != hosts;
        // What others want is not said any more.
        self.leads.retain(|host, _| hosts.contains(host) || !is_new);
        self.told_asks.clone_from(&hosts);
        is_new.then(|| Said::Ask(hosts.into_iter().collect()))
    }

    /// Whether it was told what a host wants.
    pub fn tells(&self, host: &str) -> bool {
        self.told_wants.contains_key(host)
    }

    /// Says what a host wants, as far as that is new; none: nothing of it is said any more.
    pub fn tell_wants(&mut self, host: &str, wants: Option<Wanted>) -> Vec<Said> {
        let Some(wants) = wants else {
            self.told_wants.remove(host);
            return Vec::new();
        };
        let told = self.told_wants.get(host);
        let is_first = told.is_none();
        let known = |topic: &String| told.and_then(|told| told.get(topic));
        let mut news: Vec<(String, Option<Want>)> = wants
            .iter()
            .filter(|(topic, want)| known(topic) != Some(want))
            .map(|(topic, want)| (topic.clone(), Some(*want)))
            .collect();
        let gone = told.into_iter().flat_map(BTreeMap::keys);
        let gone = gone.filter(|topic| !wants.contains_key(*topic));
        news.extend(gone.map(|topic| (topic.clone(), None)));
        let parts = news.chunks(MAX_WANTS_SAID);
        let count = parts.len().max(usize::from(is_first));
        let mut parts = parts.map(<[_]>::to_vec);
        let said = (0..count).map(|at| {
            Said::Wants(Wants {
                host: host.to_owned(),
                first: is_first && at == 0,
                last: is_first && at + 1 == count,
                wants: parts.next().unwrap_or_default(),
            })
        });
        let said = said.collect();
        self.told_wants.insert(host.to_owned(), wants);
        said
    }

    /// Says which of its streams reach which hosts, as far as that is new.
    pub fn tell_reached(&mut self, all: Reached) -> Vec<Said> {
        let news = all
            .iter()
            .filter(|(of, outcome)| self.told_reached.get(*of) != Some(outcome));
        let said = news
            .map(|((stream, host), outcome)| Said::Reached(*stream, host.clone(), outcome.clone()))
            .collect();
        self.told_reached = all;
        said
    }

    /// Says how far its messages are that are carried on, as far as that is new; those that are not any more, are all
    /// where they are to go.
    pub fn tell_passed(&mut self, all: BTreeMap<Flow, u64>) -> Vec<Said> {
        let told = &self.told_passed;
        let gone = told.keys().filter(|of| !all.contains_key(*of));
        let news = all.iter().filter(|(of, next)| told.get(of) != Some(next));
        let passed = news.map(|(of, next)| (*of, *next));
        let passed: Vec<(Flow, u64)> = passed.chain(gone.map(|of| (*of, u64::MAX))).collect();
        self.told_passed = all;
        let parts = passed.chunks(MAX_PASSED_SAID);
        parts.map(|part| Said::Passed(part.to_vec())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_client::links::Demand;

    fn want(subscribers: u32) -> Want {
        let demand = Demand {
            reliable: false,
            transient_local: false,
            depth: 0,
        };
        Want {
            subscribers,
            demand,
        }
    }

    /// What one says, the other hears.
    fn cross(from: &mut Through, to: &mut Through, wants: &Wanted) -> usize {
        let said = from.tell_wants("c", Some(wants.clone()));
        let count = said.len();
        for said in said {
            let Ok(Said::Wants(wants)) = Said::decode(&said.encode().unwrap()) else {
                panic!("it says something else");
            };
            to.hear(wants);
        }
        count
    }

    #[test]
    fn what_a_host_wants_is_said_once_and_then_what_changes() {
        let (mut here, mut there) = (Through::default(), Through::default());
        let mut wants: Wanted = (0..1000).map(|at| (format!("t/{at}"), want(1))).collect();
        // Nobody asked.
        assert_eq!(cross(&mut here, &mut there, &wants), 4);
        assert!(there.leads.is_empty());
        here.forget_said();
        assert!(there.ask(["c".to_owned()].into()).is_some());
        assert!(there.ask(["c".to_owned()].into()).is_none());
        assert_eq!(cross(&mut here, &mut there, &wants), 4);
        assert!(there.leads["c"].wants == wants && there.leads["c"].is_whole);
        assert_eq!(cross(&mut here, &mut there, &wants), 0);
        wants.remove("t/7");
        wants.insert("t/8".to_owned(), want(2));
        assert_eq!(cross(&mut here, &mut there, &wants), 1);
        assert!(there.leads["c"].wants == wants);
        // Said by another life, which knows less.
        here.forget_said();
        wants.clear();
        let before = there.leads["c"].wants.clone();
        assert_eq!(cross(&mut here, &mut there, &wants), 1);
        assert!(!there.forget_doubted(Duration::MAX) && there.leads["c"].wants == before);
        // Until it has heard of it, or for good.
        wants.insert("t/8".to_owned(), want(2));
        assert_eq!(cross(&mut here, &mut there, &wants), 1);
        assert!(there.forget_doubted(Duration::ZERO) && !there.forget_doubted(Duration::ZERO));
        assert!(there.leads["c"].wants == wants);
        wants.clear();
        cross(&mut here, &mut there, &wants);
        assert!(there.leads["c"].wants.is_empty());
    }

    #[test]
    fn a_list_that_is_said_again_loses_nothing_before_its_end() {
        let (mut here, mut there) = (Through::default(), Through::default());
        there.ask(["c".to_owned()].into());
        let wants: Wanted = (0..600).map(|at| (format!("t/{at}"), want(1))).collect();
        cross(&mut here, &mut there, &wants);
        here.forget_said();
        for said in here.tell_wants("c", Some(wants.clone())) {
            let Said::Wants(part) = said else { continue };
            there.hear(part);
            assert!(there.leads["c"].wants == wants);
        }
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let mut here = Through::default();
        let way = vec!["b".to_owned(), "c".to_owned()];
        assert!(here.tell_ways(Vec::new()).is_none());
        assert!(here.tell_ways(vec![way.clone()]).is_some());
        assert!(here.tell_ways(vec![way.clone()]).is_none());
        let reached = |outcome| BTreeMap::from([((3, "c".to_owned()), outcome)]);
        assert_eq!(here.tell_reached(reached(Ok(()))).len(), 1);
        assert_eq!(here.tell_reached(reached(Ok(()))).len(), 0);
        assert_eq!(here.tell_reached(reached(Err(String::new()))).len(), 1);
        let flow = Flow {
            topic: 3,
            incarnation: 4,
        };
        let passed = |next| BTreeMap::from([(flow, next)]);
        assert_eq!(here.tell_passed(passed(7)).len(), 1);
        assert_eq!(here.tell_passed(passed(7)).len(), 0);
        assert_eq!(here.tell_passed(passed(8)).len(), 1);
        let last = Said::Passed(vec![(flow, u64::MAX)]);
        assert_eq!(here.tell_passed(BTreeMap::new()), [last]);
        assert_eq!(here.tell_passed(BTreeMap::new()).len(), 0);
        here.forget_said();
        assert!(here.tell_ways(vec![way]).is_some());
        assert_eq!(here.tell_reached(reached(Ok(()))).len(), 1);
    }
}
