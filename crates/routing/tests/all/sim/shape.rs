//! Shapes of networks: between which hosts there is a cable.
use rgaps_testkit::Random;

/// Pairs of hosts with a cable, the lower first.
pub fn cables(hosts: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let row = (1..hosts).map(|host| (host - 1, host));
    let mut cables: Vec<(usize, usize)> = match random.below(6) {
        0 => row.collect(),
        1 => row.chain((hosts > 2).then_some((0, hosts - 1))).collect(),
        2 => (1..hosts).map(|host| (0, host)).collect(),
        3 => tree(hosts, random),
        4 => pairs(hosts).collect(),
        _ => {
            let mut cables = tree(hosts, random);
            let more: Vec<_> = pairs(hosts).filter(|_| random.one_in(4)).collect();
            cables.extend(more);
            cables
        }
    };
    cables.sort_unstable();
    cables.dedup();
    cables
}

fn tree(hosts: usize, random: &mut Random) -> Vec<(usize, usize)> {
    (1..hosts)
        .map(|host| (random.below(host as u64) as usize, host))
        .collect()
}

fn pairs(hosts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..hosts).flat_map(move |a| (a + 1..hosts).map(move |b| (a, b)))
}

/// The number of cables between `from` and each host; `None`: there is no path.
pub fn distances(hosts: usize, cables: &[(usize, usize)], from: usize) -> Vec<Option<usize>> {
    let mut distances = vec![None; hosts];
    distances[from] = Some(0);
    for _ in 0..hosts {
        for &(a, b) in cables {
            for (a, b) in [(a, b), (b, a)] {
                if let Some(near) = distances[a] {
                    let far = distances[b].map_or(near + 1, |far: usize| far.min(near + 1));
                    distances[b] = Some(far);
                }
            }
        }
    }
    distances
}
