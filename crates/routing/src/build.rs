//! Builds the tree to a set of wanted hosts over the graph that the origin knows.
//!
//! *Small messages* take the shortest paths: a hop costs more than a copy, and a hop that several paths share carries one copy.
//!
//! For *large messages* the number of children is limited, since a host sends the copies for its children one after the other:
//!
//! 1. Breadth first from the origin, each host takes up to `limit` wanted neighbours, in the order of hosts.
//! 2. Each wanted host that is left is attached by the shortest path, also over hosts that are not wanted: below a host with room; if
//!    no such path exists, below any host.
//! 3. A host with too many children passes one to a neighbour of that child that has room, as long as there is one. So in the end a host
//!    has more children than the limit only if no other host could take them.
//!
//! A message of `S` bytes is complete at the host that is furthest away after the time in which a cable carries
//! `width * S + depth * width * lanes * chunk` bytes: each host sends every byte `width` times, and each hop delays it by the chunks in
//! flight. The origin tries all limits up to `fanout`, and takes the one with the least cost.

use crate::graph::Graph;
use crate::ids::Life;
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The least chunk size that [`chunk_bytes`] returns.
pub const CHUNK_BYTES_MIN: u64 = 64 << 10;
/// The largest chunk size that [`chunk_bytes`] returns.
pub const CHUNK_BYTES_MAX: u64 = 1 << 20;
/// Within these bounds, a message has so many chunks for each hop.
const CHUNKS_PER_HOP: u64 = 32;

/// The messages that the origin sends, and the limits for their tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The size of recent messages.
    pub message_bytes: u64,
    /// For messages of this size or more, the number of children is limited.
    pub tree_bytes_min: u64,
    /// The most children of a host.
    pub fanout: usize,
    /// The lanes of a link, which is how many chunks are in flight at once.
    pub lanes: u64,
}

/// The chunk size for a message that crosses so many hops.
pub fn chunk_bytes(message_bytes: u64, depth: usize) -> u64 {
    let chunk = message_bytes / (CHUNKS_PER_HOP * depth.max(1) as u64);
    chunk.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
}

/// The time until a message is complete at all hosts of a tree, as the bytes that one cable carries in that time.
pub fn cost_bytes(tree: &Tree, load: Load) -> u64 {
    let (width, depth) = (tree.width() as u64, tree.depth());
    let chunk = chunk_bytes(load.message_bytes, depth);
    width * load.message_bytes + depth as u64 * width * load.lanes * chunk
}

/// Builds the tree from the graph's own host to all wanted lives that can be reached.
pub fn build(graph: &Graph, wanted: &BTreeSet<Life>, load: Load) -> Tree {
    if load.message_bytes < load.tree_bytes_min {
        return shortest(graph, wanted);
    }
    let trees = (1..=load.fanout.max(1)).map(|limit| limited(graph, wanted, limit));
    trees
        .min_by_key(|tree| cost_bytes(tree, load))
        .unwrap_or_else(|| Tree::leaf(graph.own(), false))
}

/// Builds the tree of the shortest paths.
pub fn shortest(graph: &Graph, wanted: &BTreeSet<Life>) -> Tree {
    let all = graph.parents();
    let mut parents = BTreeMap::new();
    for life in wanted {
        let mut life = *life;
        while let Some(parent) = all.get(&life) {
            if parents.insert(life, *parent).is_some() {
                break;
            }
            life = *parent;
        }
    }
    to_tree(graph.own(), wanted, &parents)
}

/// Builds a tree in which a host has more than `limit` children only if no other host could take them.
pub fn limited(graph: &Graph, wanted: &BTreeSet<Life>, limit: usize) -> Tree {
    let mut growing = Growing {
        graph,
        wanted,
        limit,
        parents: BTreeMap::new(),
        children: BTreeMap::from([(graph.own(), 0)]),
        order: vec![graph.own()],
    };
    growing.spread(0);
    while growing.attach(true) || growing.attach(false) {}
    while growing.relieve() {}
    to_tree(graph.own(), wanted, &growing.parents)
}

/// A tree that is being built.
struct Growing<'a> {
    graph: &'a Graph,
    wanted: &'a BTreeSet<Life>,
    limit: usize,
    parents: BTreeMap<Life, Life>,
    /// How many children each host of the tree has.
    children: BTreeMap<Life, usize>,
    /// The hosts of the tree, in the order in which they joined it.
    order: Vec<Life>,
}

impl Growing<'_> {
    fn add(&mut self, life: Life, parent: Life) {
        self.parents.insert(life, parent);
        self.children.insert(life, 0);
        *self.children.get_mut(&parent).expect("a host of the tree") += 1;
        self.order.push(life);
    }

    fn has_room(&self, life: Life) -> bool {
        self.children[&life] < self.limit
    }

    /// Step 1, for the host that joined as number `at` and all that joined after it.
    fn spread(&mut self, mut at: usize) {
        while let Some(parent) = self.order.get(at).copied() {
            for life in self.graph.neighbours(parent) {
                if !self.has_room(parent) {
                    break;
                }
                if self.wanted.contains(&life) && !self.children.contains_key(&life) {
                    self.add(life, parent);
                }
            }
            at += 1;
        }
    }

    /// Step 2 for one host: attaches the missing wanted host that is nearest to a host with room, or, unless `below_room`, to any host.
    /// Returns whether there was one.
    fn attach(&mut self, below_room: bool) -> bool {
        let mut wanted = self.wanted.iter();
        if wanted.all(|life| self.children.contains_key(life)) {
            return false;
        }
        let sources = self.order.iter().copied();
        let sources = sources.filter(|life| !below_room || self.has_room(*life));
        let mut queue: VecDeque<Life> = sources.collect();
        let mut before: BTreeMap<Life, Life> = BTreeMap::new();
        while let Some(parent) = queue.pop_front() {
            for life in self.graph.neighbours(parent) {
                if self.children.contains_key(&life) || before.contains_key(&life) {
                    continue;
                }
                before.insert(life, parent);
                if self.wanted.contains(&life) {
                    let joined = self.order.len();
                    self.add_path(life, &before);
                    self.spread(joined);
                    return true;
                }
                queue.push_back(life);
            }
        }
        false
    }

    fn add_path(&mut self, end: Life, before: &BTreeMap<Life, Life>) {
        let mut path = vec![end];
        while let Some(life) = before.get(&path[path.len() - 1]) {
            path.push(*life);
        }
        for pair in path.windows(2).rev() {
            self.add(pair[0], pair[1]);
        }
    }

    /// Step 3: moves one child of a host that has too many. Returns whether one could be moved.
    fn relieve(&mut self) -> bool {
        let crowded = |life: &Life| self.children[life] > self.limit;
        let children = self.order.iter().copied();
        let movable = children.filter(|life| self.parents.get(life).is_some_and(crowded));
        let found = movable.into_iter().find_map(|life| {
            let mut neighbours = self.graph.neighbours(life);
            let other = neighbours.find(|other| {
                self.children.contains_key(other)
                    && self.has_room(*other)
                    && !self.is_below(*other, life)
            });
            Some((life, other?))
        });
        let Some((life, other)) = found else {
            return false;
        };
        let parent = self.parents.insert(life, other).expect("it has one");
        *self.children.get_mut(&parent).expect("a host of the tree") -= 1;
        *self.children.get_mut(&other).expect("a host of the tree") += 1;
        true
    }

    fn is_below(&self, life: Life, top: Life) -> bool {
        let mut at = Some(&life);
        while let Some(life) = at {
            if *life == top {
                return true;
            }
            at = self.parents.get(life);
        }
        false
    }
}

fn to_tree(root: Life, wanted: &BTreeSet<Life>, parents: &BTreeMap<Life, Life>) -> Tree {
    let mut children: BTreeMap<Life, Vec<Life>> = BTreeMap::new();
    for (life, parent) in parents {
        children.entry(*parent).or_default().push(*life);
    }
    let mut tree = grow(root, wanted, &children);
    tree.is_final = false;
    tree
}

fn grow(life: Life, wanted: &BTreeSet<Life>, children: &BTreeMap<Life, Vec<Life>>) -> Tree {
    let below = children.get(&life).into_iter().flatten();
    Tree {
        life,
        is_final: wanted.contains(&life),
        children: below.map(|child| grow(*child, wanted, children)).collect(),
    }
}
