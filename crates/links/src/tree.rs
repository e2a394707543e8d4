//! The tree that a publisher's messages follow. The origin sends it in OPEN. Each host gets the branch of which it is the root, and sends
//! its children their branches of that. The tree shrinks with each hop, so no message circles, even if hosts disagree about routes.

use crate::keys::is_host;
use rgaps_client::links::MAX_REMOTE_HOSTS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Which messages a host of a tree takes for its own subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Takes {
    /// Nothing: it only forwards.
    Nothing,
    /// The messages that arrive; it may miss some.
    BestEffort,
    /// All messages.
    Reliable,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TreeHost {
    host: String,
    /// The index of the host's parent, which is less than the host's own. The root's is 0.
    parent: u16,
    takes: Takes,
}

/// A host, the root, and all hosts below it. The root comes first, parents before children. Equality ignores the order of hosts.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct Tree(Vec<TreeHost>);

impl PartialEq for Tree {
    fn eq(&self, other: &Tree) -> bool {
        let points = |tree: &Tree| {
            let point = |of: &TreeHost| {
                let parent = tree.0[usize::from(of.parent)].host.clone();
                (of.host.clone(), parent, of.takes)
            };
            tree.0.iter().map(point).collect::<BTreeSet<_>>()
        };
        self.root() == other.root() && points(self) == points(other)
    }
}

impl Tree {
    /// A tree of a root that takes nothing.
    pub fn new(root: &str) -> Tree {
        Tree(vec![TreeHost {
            host: root.to_owned(),
            parent: 0,
            takes: Takes::Nothing,
        }])
    }

    /// Whether a tree that another host sent may be used: no host occurs twice, and parents precede their children.
    pub fn is_valid(&self) -> bool {
        let hosts: BTreeSet<&String> = self.0.iter().map(|of| &of.host).collect();
        let mut numbered = self.0.iter().enumerate();
        let (count, most) = (self.0.len(), MAX_REMOTE_HOSTS);
        (1..=most).contains(&count)
            && hosts.len() == count
            && hosts.into_iter().all(|host| is_host(host))
            && numbered.all(|(at, of)| usize::from(of.parent) < at.max(1))
    }

    /// Adds a path that begins at a child of the root; its last host takes `takes`. The part of the path up to the last host that the tree
    /// has already is skipped: the rest is added below that host.
    pub fn add(&mut self, path: &[String], takes: Takes) {
        let known = path.iter().enumerate().rev();
        let known = known.filter_map(|(at, host)| Some((at + 1, self.position(host)?)));
        let (from, mut parent) = known.into_iter().next().unwrap_or((0, 0));
        for host in &path[from..] {
            self.0.push(TreeHost {
                host: host.clone(),
                parent: parent as u16,
                takes: Takes::Nothing,
            });
            parent = self.0.len() - 1;
        }
        let end = &mut self.0[parent].takes;
        *end = takes.max(*end);
    }

    fn position(&self, host: &str) -> Option<usize> {
        self.0.iter().position(|of| of.host == host)
    }

    /// The first host.
    pub fn root(&self) -> &str {
        &self.0[0].host
    }

    /// Whether the root forwards messages.
    pub fn leads_on(&self) -> bool {
        self.0.len() > 1
    }

    /// The final hosts, which may include the root, each with whether it is reliable: it must not miss any message.
    pub fn finals(&self) -> impl Iterator<Item = (&String, bool)> {
        let finals = self.0.iter().filter(|of| of.takes > Takes::Nothing);
        finals.map(|of| (&of.host, of.takes == Takes::Reliable))
    }

    /// The final hosts, which may include the root.
    pub fn ends(&self) -> impl Iterator<Item = &String> {
        self.finals().map(|(host, _)| host)
    }

    /// Whether a host is a final host.
    pub fn ends_at(&self, host: &str) -> bool {
        self.ends().any(|end| end == host)
    }

    /// The final hosts below the root.
    pub fn ends_below(&self) -> impl Iterator<Item = &String> {
        self.ends().filter(|end| *end != self.root())
    }

    /// Whether the root is a final host.
    pub fn ends_here(&self) -> bool {
        self.0[0].takes > Takes::Nothing
    }

    /// Whether the root must not miss a message.
    pub fn is_reliable_here(&self) -> bool {
        self.0[0].takes == Takes::Reliable
    }

    /// The hosts on the path from the root to another host, without the root.
    pub fn path(&self, end: &str) -> Vec<String> {
        let mut at = self.position(end).unwrap_or(0);
        let mut path = Vec::new();
        while at > 0 {
            path.push(self.0[at].host.clone());
            at = self.0[at].parent.into();
        }
        path.reverse();
        path
    }

    /// The branches below the root, each with a child as its root.
    pub fn children(&self) -> Vec<Tree> {
        let roots = (1..self.0.len()).filter(|at| self.0[*at].parent == 0);
        roots.map(|root| self.branch(root)).collect()
    }

    fn branch(&self, root: usize) -> Tree {
        let mut numbers = vec![None; self.0.len()];
        let mut hosts = Vec::new();
        for (at, of) in self.0.iter().enumerate().skip(root) {
            let parent = match at == root {
                true => Some(0),
                false => numbers[usize::from(of.parent)],
            };
            if let Some(parent) = parent {
                numbers[at] = Some(hosts.len() as u16);
                hosts.push(TreeHost {
                    parent,
                    ..of.clone()
                });
            }
        }
        Tree(hosts)
    }

    /// A copy with only those final hosts for which the function is true, and the hosts that lead to them.
    pub fn narrowed(&self, keep: impl Fn(&str) -> bool) -> Tree {
        let mut narrowed = Tree::new(self.root());
        for of in self.0.iter().filter(|of| of.takes > Takes::Nothing) {
            if keep(&of.host) {
                narrowed.add(&self.path(&of.host), of.takes);
            }
        }
        narrowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(hosts: &[&str]) -> Vec<String> {
        hosts.iter().map(|host| (*host).to_owned()).collect()
    }

    fn sample() -> Tree {
        let mut tree = Tree::new("b");
        tree.add(&names(&["c", "d"]), Takes::Reliable);
        tree.add(&names(&["c", "e"]), Takes::BestEffort);
        tree.add(&names(&["f"]), Takes::BestEffort);
        tree
    }

    #[test]
    fn a_tree_is_split_among_the_children_of_its_root() {
        let tree = sample();
        assert!(tree.is_valid() && tree.leads_on() && !tree.ends_here());
        assert_eq!(tree.ends().collect::<Vec<_>>(), ["d", "e", "f"]);
        assert_eq!(tree.path("e"), ["c", "e"]);
        let children = tree.children();
        let roots: Vec<&str> = children.iter().map(Tree::root).collect();
        assert_eq!(roots, ["c", "f"]);
        assert_eq!(children[0].ends().collect::<Vec<_>>(), ["d", "e"]);
        assert!(children[0].is_valid() && !children[0].is_reliable_here());
        let reliable = |tree: &Tree| {
            let reliable = tree.finals().filter(|(_, is_reliable)| *is_reliable);
            reliable.map(|(host, _)| host.clone()).collect::<Vec<_>>()
        };
        assert_eq!(reliable(&children[0]), ["d"]);
        assert!(
            children[1].ends_here() && !children[1].leads_on() && reliable(&children[1]).is_empty()
        );
    }

    #[test]
    fn a_path_begins_behind_the_hosts_that_the_tree_has() {
        let mut tree = sample();
        tree.add(&names(&["f", "c", "g"]), Takes::Reliable);
        assert_eq!(tree.path("g"), ["c", "g"]);
        tree.add(&[], Takes::BestEffort);
        tree.add(&names(&["c"]), Takes::Reliable);
        tree.add(&names(&["c"]), Takes::BestEffort);
        assert!(tree.ends_here() && tree.children()[0].is_reliable_here() && tree.is_valid());
    }

    #[test]
    fn hosts_that_lead_to_nobody_any_more_are_left_out() {
        let tree = sample();
        assert_eq!(tree.narrowed(|_| true), tree);
        let narrowed = tree.narrowed(|end| end != "f");
        assert_eq!(narrowed.children(), tree.children()[..1]);
        assert_eq!(tree.narrowed(|_| false), Tree::new("b"));
    }

    #[test]
    fn what_another_host_makes_up_is_no_tree() {
        let make = |hosts: &[(&str, u16)]| {
            let hosts = hosts.iter().map(|(host, parent)| TreeHost {
                host: (*host).to_owned(),
                parent: *parent,
                takes: Takes::Reliable,
            });
            Tree(hosts.collect())
        };
        assert!(make(&[("a", 0), ("b", 0), ("c", 1)]).is_valid());
        for wrong in [
            &[][..],
            &[("a", 1)],
            &[("a", 0), ("a", 0)],
            &[("a", 0), ("b", 1)],
            &[("a", 0), ("b", 7)],
            &[("a", 0), ("b c", 0)],
        ] {
            assert!(!make(wrong).is_valid(), "{wrong:?}");
        }
        let many: Vec<String> = (0..=MAX_REMOTE_HOSTS).map(|at| format!("h{at}")).collect();
        let many: Vec<_> = many.iter().map(|host| (&host[..], 0)).collect();
        assert!(!make(&many).is_valid());
    }
}
