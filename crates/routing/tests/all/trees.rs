//! Trees over random graphs.
use crate::sim;
use crate::sim::shape;
use rgaps_routing::{
    build, cost_bytes, limited, shortest, Graph, HostId, Life, Load, Tree, CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
};
use rgaps_testkit::Random;
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 3000;

fn life(host: usize) -> Life {
    Life {
        host: HostId(host as u64),
        incarnation: 1,
    }
}

struct Case {
    graph: Graph,
    cables: Vec<(usize, usize)>,
    wanted: BTreeSet<Life>,
    /// The wanted hosts that can be reached, with their distances.
    reachable: BTreeMap<Life, usize>,
}

fn case(random: &mut Random) -> Case {
    let hosts = 3 + random.below(30) as usize;
    let mut cables = shape::cables(hosts, random);
    // Remove some cables, so that some hosts cannot be reached.
    cables.retain(|_| !random.one_in(10));
    let mut graph = Graph::new(life(0));
    for &(a, b) in &cables {
        graph.join(life(a), life(b));
    }
    let wanted = (1..hosts).filter(|_| random.below(4) > 0).map(life);
    let wanted: BTreeSet<Life> = wanted.collect();
    let distances = shape::distances(hosts, &cables, 0).into_iter().enumerate();
    let reachable = distances.filter_map(|(host, distance)| Some((life(host), distance?)));
    let reachable = reachable
        .filter(|(life, _)| wanted.contains(life))
        .collect();
    Case {
        graph,
        cables,
        wanted,
        reachable,
    }
}

/// Checks that a tree has every wanted host that can be reached, other hosts only on paths to them, and only cables that exist.
fn check(case: &Case, tree: &Tree) {
    assert!(tree.is_valid() && tree.life == life(0) && !tree.is_final);
    let reachable: BTreeSet<Life> = case.reachable.keys().copied().collect();
    assert_eq!(tree.finals(), reachable);
    for parent in tree.hosts() {
        for child in &parent.children {
            let ends = (parent.life.host.0 as usize, child.life.host.0 as usize);
            let ends = (ends.0.min(ends.1), ends.0.max(ends.1));
            assert!(case.cables.contains(&ends), "no cable {ends:?}");
            assert!(
                child.is_final || !child.children.is_empty(),
                "{child:?} is needless"
            );
        }
    }
}

fn depths(tree: &Tree) -> BTreeMap<Life, usize> {
    let mut depths = BTreeMap::from([(tree.life, 0)]);
    for parent in tree.hosts() {
        for child in &parent.children {
            depths.insert(child.life, depths[&parent.life] + 1);
        }
    }
    depths
}

#[test]
fn small_messages_take_shortest_paths() {
    let test = "small_messages_take_shortest_paths";
    sim::seeds(test, SEEDS, |seed| {
        let case = case(&mut Random::new(seed));
        let tree = shortest(&case.graph, &case.wanted);
        check(&case, &tree);
        let depths = depths(&tree);
        for (life, distance) in &case.reachable {
            assert_eq!(depths[life], *distance);
        }
    });
}

#[test]
fn hosts_have_more_children_than_the_limit_only_if_nobody_else_could_have_them() {
    let test = "hosts_have_more_children_than_the_limit_only_if_nobody_else_could_have_them";
    sim::seeds(test, SEEDS, |seed| {
        let mut random = Random::new(seed);
        let case = case(&mut random);
        let limit = 1 + random.below(4) as usize;
        let tree = limited(&case.graph, &case.wanted, limit);
        check(&case, &tree);
        for crowded in tree.hosts() {
            if crowded.children.len() <= limit {
                continue;
            }
            for child in &crowded.children {
                let below: BTreeSet<Life> = child.hosts().iter().map(|tree| tree.life).collect();
                for other in tree.hosts() {
                    let has_room = other.children.len() < limit && !below.contains(&other.life);
                    let is_near = case
                        .graph
                        .neighbours(other.life)
                        .any(|life| life == child.life);
                    assert!(
                        !(has_room && is_near),
                        "{:?} could have {:?}",
                        other.life,
                        child.life
                    );
                }
            }
        }
    });
}

/// A graph in which all hosts have links to each other, and all hosts except the origin.
fn mesh(hosts: usize) -> (Graph, BTreeSet<Life>) {
    let mut graph = Graph::new(life(0));
    for (a, b) in (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))) {
        graph.join(life(a), life(b));
    }
    (graph, (1..hosts).map(life).collect())
}

fn load(message_bytes: u64, fanout: usize) -> Load {
    Load {
        message_bytes,
        tree_bytes_min: 64 << 10,
        fanout,
        lanes: 4,
    }
}

#[test]
fn large_messages_take_a_chain_and_smaller_ones_a_wider_tree() {
    let (graph, wanted) = mesh(8);
    let chain = build(&graph, &wanted, load(256 << 20, 2));
    assert_eq!((chain.width(), chain.depth()), (1, 7));
    // The cost as a multiple of the time for the whole message on one cable.
    let hops = cost_bytes(&chain, load(256 << 20, 2)) as f64 / (256 << 20) as f64;
    assert!(hops < 1.15, "{hops}");
    let (graph, wanted) = mesh(64);
    let tree = build(&graph, &wanted, load(1 << 20, 2));
    assert_eq!(tree.width(), 2);
    assert!(tree.depth() <= 6, "{}", tree.depth());
    let star = build(&graph, &wanted, load(1 << 10, 2));
    assert_eq!((star.width(), star.depth()), (63, 1));
}

#[test]
fn the_tree_with_the_least_cost_is_taken() {
    let test = "the_tree_with_the_least_cost_is_taken";
    sim::seeds(test, SEEDS / 4, |seed| {
        let mut random = Random::new(seed);
        let case = case(&mut random);
        let load = load(64 << (10 + random.below(13)), 1 + random.below(4) as usize);
        let tree = build(&case.graph, &case.wanted, load);
        check(&case, &tree);
        let cost = cost_bytes(&tree, load);
        for limit in 1..=load.fanout {
            let other = limited(&case.graph, &case.wanted, limit);
            assert!(cost <= cost_bytes(&other, load), "limit {limit} is better");
        }
    });
}

#[test]
fn chunks_stay_within_their_bounds() {
    for (bytes, depth, chunk) in [
        (1 << 10, 1, CHUNK_BYTES_MIN),
        (64 << 20, 2, 1 << 20),
        (8 << 20, 2, 128 << 10),
        (1 << 40, 1, CHUNK_BYTES_MAX),
    ] {
        assert_eq!(rgaps_routing::chunk_bytes(bytes, depth), chunk);
    }
}

#[test]
fn a_tree_that_names_a_host_twice_is_refused() {
    let mut tree = Tree::leaf(life(0), false);
    tree.children = vec![Tree::leaf(life(1), true), Tree::leaf(life(2), false)];
    assert!(tree.is_valid());
    tree.children[1].children = vec![Tree::leaf(life(1), false)];
    assert!(!tree.is_valid());
    // A host is removed with all hosts below it.
    assert_eq!(
        tree.prune(HostId(2)).map(|tree| tree.hosts().len()),
        Some(2)
    );
    assert!(tree.is_valid() && tree.prune(HostId(2)).is_none());
}
