//! The part of the network that a host knows: its links, and the paths that its neighbours advertise.

use crate::ids::Life;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Lives and the links between them, as one host knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    own: Life,
    links: BTreeMap<Life, BTreeSet<Life>>,
}

impl Graph {
    /// The graph of a host without links.
    pub fn new(own: Life) -> Graph {
        let links = BTreeMap::from([(own, BTreeSet::new())]);
        Graph { own, links }
    }

    /// Adds a link.
    pub fn join(&mut self, a: Life, b: Life) {
        self.links.entry(a).or_default().insert(b);
        self.links.entry(b).or_default().insert(a);
    }

    /// The host whose graph it is.
    pub fn own(&self) -> Life {
        self.own
    }

    /// The neighbours of a life, in order.
    pub fn neighbours(&self, life: Life) -> impl Iterator<Item = Life> + '_ {
        self.links.get(&life).into_iter().flatten().copied()
    }

    /// Every life that can be reached, with its predecessor on a shortest path from `own` (breadth-first search). Among equally short paths
    /// it takes the one whose hosts are first.
    pub fn parents(&self) -> BTreeMap<Life, Life> {
        let mut parents = BTreeMap::new();
        let mut queue = VecDeque::from([self.own]);
        while let Some(parent) = queue.pop_front() {
            for life in self.neighbours(parent) {
                if life != self.own && !parents.contains_key(&life) {
                    parents.insert(life, parent);
                    queue.push_back(life);
                }
            }
        }
        parents
    }
}
