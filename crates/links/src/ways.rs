//! Ways to hosts that are not linked with: what others say that they reach, and which of it is used.
//!
//! A way is the names of all hosts on it, so no way goes round: who finds itself on one does not take it. The
//! shortest is used, of those as short the first by name, so that all decide alike.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Hosts on a way, its end included.
pub const MAX_HOPS: usize = 8;
/// Ways that a host tells of.
pub const MAX_WAYS: usize = 64;

/// A way: the host that leads on first, the one that it leads to last.
pub type Way = Vec<String>;

struct Told {
    way: Way,
    /// Since when it is told of.
    since: Instant,
    /// Since when it is there no more.
    gone: Option<Instant>,
}

/// What other hosts say that they reach.
#[derive(Default)]
pub struct Ways {
    /// By the hosts that say it, and those that they reach.
    told: BTreeMap<String, BTreeMap<String, Told>>,
}

/// Whether a way that a host tells of can be one.
pub fn is_way(way: &[String]) -> bool {
    let names: BTreeSet<&String> = way.iter().collect();
    (2..=MAX_HOPS).contains(&way.len()) && names.len() == way.len()
}

impl Ways {
    /// A host says all that it reaches now; `own` is who hears it.
    pub fn hear(&mut self, own: &str, peer: &str, ways: Vec<Way>) {
        let told = self.told.entry(peer.to_owned()).or_default();
        let now = Instant::now();
        for known in told.values_mut() {
            known.gone.get_or_insert(now);
        }
        for way in ways {
            let leads = way.first().is_some_and(|first| first == peer);
            let Some(end) = way.last().filter(|_| leads && is_way(&way)) else {
                continue;
            };
            if way.iter().all(|host| host != own) {
                let known = told.get(end);
                let stays = known.filter(|known| known.gone == Some(now) && known.way == way);
                let since = stays.map_or(now, |known| known.since);
                let gone = None;
                told.insert(end.clone(), Told { way, since, gone });
            }
        }
    }

    /// A host says nothing any more, but may soon: it was started again.
    pub fn doubt(&mut self, peer: &str) {
        for told in self.told.get_mut(peer).into_iter().flatten() {
            told.1.gone.get_or_insert_with(Instant::now);
        }
    }

    /// A host is given up.
    pub fn forget(&mut self, peer: &str) {
        self.told.remove(peer);
    }

    /// Forgets what is gone for so long.
    pub fn expire(&mut self, limit: Duration) {
        for told in self.told.values_mut() {
            told.retain(|_, told| told.gone.is_none_or(|since| since.elapsed() < limit));
        }
        self.told.retain(|_, told| !told.is_empty());
    }

    /// All hosts that are or were reached.
    pub fn ends(&self) -> BTreeSet<&String> {
        self.told.values().flat_map(BTreeMap::keys).collect()
    }

    /// The best way to a host whose first host is one of `by`, of those that were told of so long ago.
    pub fn best(&self, end: &str, age: Duration, by: impl Fn(&str) -> bool) -> Option<&Way> {
        let ways = self.told.iter().filter(|(peer, _)| by(peer));
        let ways = ways.filter_map(|(_, told)| told.get(end));
        ways.filter(|told| told.gone.is_none() && told.since.elapsed() >= age)
            .map(|told| &told.way)
            .min_by_key(|way| (way.len(), *way))
    }

    /// The way to a host that another told of, and whether it is there still.
    pub fn by(&self, end: &str, peer: &str) -> Option<(&Way, bool)> {
        let told = self.told.get(peer)?.get(end)?;
        Some((&told.way, told.gone.is_none()))
    }
}

/// What a host is told: the ways to these, through `own`, unless it is on them already.
pub fn tell<'a>(own: &str, to: &str, ways: impl Iterator<Item = &'a [String]>) -> Vec<Way> {
    let mut all: Vec<Way> = ways
        .filter(|way| way.len() < MAX_HOPS && way.iter().all(|host| host != to))
        .map(|way| {
            let mut on = vec![own.to_owned()];
            on.extend(way.iter().cloned());
            on
        })
        .collect();
    all.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    all.truncate(MAX_WAYS);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(hosts: &str) -> Way {
        hosts.split(' ').map(str::to_owned).collect()
    }

    fn heard(of: &[(&str, &[&str])]) -> Ways {
        let mut ways = Ways::default();
        for (peer, told) in of {
            ways.hear("a", peer, told.iter().map(|told| way(told)).collect());
        }
        ways
    }

    #[test]
    fn the_shortest_way_is_taken_and_of_those_the_first_by_name() {
        let ways = heard(&[
            ("b", &["b x d", "b c"]),
            ("c", &["c d", "c b"]),
            ("e", &["e d"]),
        ]);
        assert_eq!(ways.best("d", Duration::ZERO, |_| true), Some(&way("c d")));
        assert_eq!(
            ways.best("d", Duration::ZERO, |peer| peer != "c"),
            Some(&way("e d"))
        );
        assert_eq!(
            ways.best("d", Duration::ZERO, |peer| peer == "b"),
            Some(&way("b x d"))
        );
        assert_eq!(ways.best("y", Duration::ZERO, |_| true), None);
        // Not at once.
        assert_eq!(ways.best("d", Duration::from_secs(60), |_| true), None);
    }

    #[test]
    fn nobody_takes_a_way_that_leads_through_itself_or_that_is_none() {
        let long = "b 1 2 3 4 5 6 7 d";
        let ways = heard(&[("b", &["b a d", "c d", "b", "b b d", long, ""])]);
        assert!(ways.ends().is_empty());
    }

    #[test]
    fn hosts_are_told_of_no_way_that_leads_back() {
        let known = [way("c"), way("d c"), way("c d e")];
        let told = |to| tell("b", to, known.iter().map(Vec::as_slice));
        assert_eq!(told("a"), [way("b c"), way("b d c"), way("b c d e")]);
        assert_eq!(told("c"), [] as [Way; 0]);
        assert_eq!(told("e"), [way("b c"), way("b d c")]);
        let long = way("1 2 3 4 5 6 7 8");
        assert!(tell("b", "a", [&long[..]].into_iter()).is_empty());
    }

    #[test]
    fn what_is_gone_is_not_chosen_but_known_for_a_while() {
        let mut ways = heard(&[("b", &["b c", "b d"])]);
        ways.hear("a", "b", vec![way("b d")]);
        assert_eq!(ways.best("c", Duration::ZERO, |_| true), None);
        assert_eq!(ways.by("c", "b"), Some((&way("b c"), false)));
        ways.doubt("b");
        assert_eq!(ways.best("d", Duration::ZERO, |_| true), None);
        ways.expire(Duration::from_secs(60));
        assert_eq!(ways.ends().len(), 2);
        ways.expire(Duration::ZERO);
        assert!(ways.ends().is_empty());
        let mut ways = heard(&[("b", &["b c"])]);
        ways.forget("b");
        assert!(ways.ends().is_empty());
    }

    /// Hosts that say to each other what they reach, in any order, with cables that come and go: nobody ever
    /// has a way with itself on it, and in the end everybody has a way to all that it is joined with.
    #[test]
    fn hosts_that_are_joined_find_ways_to_each_other() {
        const HOSTS: usize = 6;
        let name = |host: usize| ((b'a' + host as u8) as char).to_string();
        for seed in 1..200u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = |below: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % below as u64) as usize
            };
            let mut cables = [[false; HOSTS]; HOSTS];
            let mut all: Vec<Ways> = (0..HOSTS).map(|_| Ways::default()).collect();
            let say =
                |all: &mut Vec<Ways>, cables: &[[bool; HOSTS]; HOSTS], from: usize, to: usize| {
                    let own = name(from);
                    let direct = (0..HOSTS).filter(|host| cables[from][*host]);
                    let mut reached: Vec<Way> =
                        direct.clone().map(|host| vec![name(host)]).collect();
                    let is_direct: BTreeSet<String> = direct.map(name).collect();
                    for end in all[from].ends() {
                        if !is_direct.contains(end) && *end != own {
                            let best = all[from]
                                .best(end, Duration::ZERO, |peer| is_direct.contains(peer));
                            reached.extend(best.cloned());
                        }
                    }
                    let told = tell(&own, &name(to), reached.iter().map(Vec::as_slice));
                    assert!(told.iter().all(|way| is_way(way)), "seed {seed}: {told:?}");
                    all[to].hear(&name(to), &own, told);
                };
            for _ in 0..200 {
                let (from, to) = (random(HOSTS), random(HOSTS));
                if from == to {
                    continue;
                }
                match random(8) {
                    0 => {
                        let there = random(3) > 0;
                        (cables[from][to], cables[to][from]) = (there, there);
                    }
                    _ if cables[from][to] => say(&mut all, &cables, from, to),
                    _ => {}
                }
                for (host, ways) in all.iter().enumerate() {
                    for told in ways.told.values().flat_map(BTreeMap::values) {
                        assert!(!told.way.contains(&name(host)), "seed {seed}");
                    }
                }
            }
            for _ in 0..2 * HOSTS {
                for (from, to) in (0..HOSTS * HOSTS).map(|at| (at / HOSTS, at % HOSTS)) {
                    if cables[from][to] {
                        say(&mut all, &cables, from, to);
                    }
                }
            }
            for from in 0..HOSTS {
                // The number of cables to each host.
                let mut far = [usize::MAX; HOSTS];
                far[from] = 0;
                for _ in 0..HOSTS {
                    for (a, b) in (0..HOSTS * HOSTS).map(|at| (at / HOSTS, at % HOSTS)) {
                        if cables[a][b] && far[a] != usize::MAX {
                            far[b] = far[b].min(far[a] + 1);
                        }
                    }
                }
                for to in (0..HOSTS).filter(|to| far[*to] > 1) {
                    let by = |peer: &str| (0..HOSTS).any(|h| cables[from][h] && name(h) == peer);
                    let found = all[from]
                        .best(&name(to), Duration::ZERO, by)
                        .map_or(usize::MAX, Vec::len);
                    assert_eq!(found, far[to], "seed {seed}: from {from} to {to}");
                }
            }
        }
    }
}
