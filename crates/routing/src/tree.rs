//! The tree of hosts that one publisher's messages follow. The origin names all of it; each host passes each child that child's part.

use crate::ids::{HostId, Life};
use std::collections::BTreeSet;

/// The most hosts of one tree.
pub const MAX_TREE_HOSTS: usize = 1024;

/// A host of a tree, and all hosts below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The host.
    pub life: Life,
    /// Whether it is a final host: it has subscribers. If not, it only forwards.
    pub is_final: bool,
    /// The hosts that it forwards to.
    pub children: Vec<Tree>,
}

impl Tree {
    /// A host without children.
    pub fn leaf(life: Life, is_final: bool) -> Tree {
        let children = Vec::new();
        Tree {
            life,
            is_final,
            children,
        }
    }

    /// Whether a tree from another host may be used: no host occurs twice, and it has at most [`MAX_TREE_HOSTS`].
    pub fn is_valid(&self) -> bool {
        let mut hosts = BTreeSet::new();
        let mut rest = vec![self];
        while let Some(tree) = rest.pop() {
            if !hosts.insert(tree.life.host) || hosts.len() > MAX_TREE_HOSTS {
                return false;
            }
            rest.extend(&tree.children);
        }
        true
    }

    /// All hosts, parents before their children.
    pub fn hosts(&self) -> Vec<&Tree> {
        let mut hosts = vec![self];
        let mut at = 0;
        while let Some(tree) = hosts.get(at).copied() {
            hosts.extend(&tree.children);
            at += 1;
        }
        hosts
    }

    /// The final hosts.
    pub fn finals(&self) -> BTreeSet<Life> {
        let hosts = self.hosts().into_iter();
        let finals = hosts.filter(|tree| tree.is_final);
        finals.map(|tree| tree.life).collect()
    }

    /// The number of hops to the host that is furthest away.
    pub fn depth(&self) -> usize {
        let below = self.children.iter().map(|child| 1 + child.depth());
        below.max().unwrap_or(0)
    }

    /// The most children of any host.
    pub fn width(&self) -> usize {
        let widths = self.hosts().into_iter().map(|tree| tree.children.len());
        widths.max().unwrap_or(0)
    }

    /// Removes a host and all below it, and returns that branch; `None` if the host is the root or not in the tree.
    pub fn prune(&mut self, host: HostId) -> Option<Tree> {
        let at = self
            .children
            .iter()
            .position(|child| child.life.host == host);
        if let Some(at) = at {
            return Some(self.children.remove(at));
        }
        self.children.iter_mut().find_map(|child| child.prune(host))
    }
}
