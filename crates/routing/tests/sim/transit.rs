//! A flow as a host below the origin sees it: the host forwards to the children that the tree names, and delivers here if the tree
//! says so.
//!
//! Messages arrive in order. Each *taker* (a child's flow, and the delivery here) takes them in order at its own pace.
//!
//! | event | action |
//! |---|---|
//! | OPEN | open a flow to each child that is a neighbour; report each other child as broken |
//! | a message has arrived whole | each taker may take it |
//! | all takers have taken a message | acknowledge it to the host before |
//! | CLOSE | forward it to a child once that has taken all |
//! | every child has answered CLOSE, and all is delivered here | answer CLOSE, and forget the flow |
//! | the link to a child ended | drop the child; report it as broken to the host before |
//! | a child reports a host below it as broken | drop it from the tree; report it to the host before |
//! | the host before cancels the flow, or the link to it ended | cancel the children's flows, and forget the flow |
//!
//! So an acknowledgement says that the message has left this host's hands, not that it has arrived; that is for the final hosts to
//! confirm. But an open flow tells its origin of every host that breaks, and CLOSE is answered only when all below have everything.
//! Nothing of this must survive: when this host ends, the host before reports it as broken, and the origin retransmits.

use rgaps_routing::{HostId, Life, Tree};
use std::ops::Range;

/// What OPEN says of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowDescription {
    /// Its first message has this number, or a later one.
    pub first: u64,
    /// The receiver, and the hosts below it.
    pub tree: Tree,
}

/// A flow that a child gets.
#[derive(Debug)]
struct Child {
    tree: Tree,
    /// The next number that it takes.
    next: u64,
    /// It needs nothing below this number again.
    acknowledged: u64,
    close_sent: bool,
    is_closed: bool,
}

/// A flow that arrives at this host.
#[derive(Debug)]
pub struct Transit {
    /// The next number that arrives.
    received: u64,
    is_closing: bool,
    /// The next number to deliver here, if this is a final host.
    local: Option<u64>,
    children: Vec<Child>,
    acknowledged: u64,
}

impl Transit {
    /// A flow opens. Returns the children that cannot be reached from here, too.
    pub fn open(
        own: Life,
        description: FlowDescription,
        is_neighbour: impl Fn(Life) -> bool,
    ) -> (Transit, Vec<HostId>) {
        let FlowDescription { first, tree } = description;
        assert!(tree.life == own && tree.is_valid());
        let children = tree.children.into_iter();
        let (near, broken): (Vec<Tree>, Vec<Tree>) =
            children.partition(|child| is_neighbour(child.life));
        let child = |tree| Child {
            tree,
            next: first,
            acknowledged: first,
            close_sent: false,
            is_closed: false,
        };
        let transit = Transit {
            received: first,
            is_closing: false,
            local: tree.is_final.then_some(first),
            children: near.into_iter().map(child).collect(),
            acknowledged: first,
        };
        let broken = broken.iter().map(|child| child.life.host);
        (transit, broken.collect())
    }

    /// The flows to open to children: the tree of each.
    pub fn children(&self) -> impl Iterator<Item = &Tree> {
        self.children.iter().map(|child| &child.tree)
    }

    /// A message has arrived whole.
    pub fn receive(&mut self, number: u64) {
        assert!(number >= self.received && !self.is_closing, "out of order");
        self.received = number + 1;
    }

    /// No message follows.
    pub fn close(&mut self) {
        self.is_closing = true;
    }

    /// The messages to deliver here.
    pub fn due_here(&self) -> Option<Range<u64>> {
        Some(self.local?..self.received)
    }

    /// All below this number is delivered here, or a duplicate.
    pub fn taken_here(&mut self, next: u64) {
        self.local = Some(next);
    }

    /// The messages for a child, and the span of those that it has taken and not acknowledged.
    pub fn due(&self, child: Life) -> Option<(Range<u64>, u64)> {
        let child = self
            .children
            .iter()
            .find(|known| known.tree.life == child)?;
        Some((child.next..self.received, child.next - child.acknowledged))
    }

    /// A child's flow has taken all below this number.
    pub fn taken(&mut self, child: Life, next: u64) {
        if let Some(child) = self.child(child) {
            child.next = next;
        }
    }

    /// A child has acknowledged all messages below a number.
    pub fn child_acknowledged(&mut self, child: Life, next: u64) {
        if let Some(child) = self.child(child) {
            child.acknowledged = child.acknowledged.max(next.min(child.next));
        }
    }

    /// A child has answered CLOSE.
    pub fn child_closed(&mut self, child: Life) {
        if let Some(child) = self.child(child) {
            child.is_closed = child.close_sent;
        }
    }

    /// A host broke off, a child or one below. Whether it was in the tree; then the host before has to know.
    pub fn broken(&mut self, host: HostId) -> bool {
        let count = self.children.len();
        self.children.retain(|child| child.tree.life.host != host);
        let mut trees = self.children.iter_mut().map(|child| &mut child.tree);
        let was_below = trees.any(|tree| tree.prune(host).is_some());
        was_below || self.children.len() < count
    }

    /// Up to where the host before is to be sent an acknowledgement, if it rose.
    pub fn acknowledgement(&mut self) -> Option<u64> {
        let children = self.children.iter().map(|child| child.next);
        let taken = children.chain(self.local).min().unwrap_or(self.received);
        let rose = taken > self.acknowledged;
        self.acknowledged = taken;
        rose.then_some(taken)
    }

    /// Children that are to be sent CLOSE now.
    pub fn closing_children(&mut self) -> Vec<Life> {
        let (received, is_closing) = (self.received, self.is_closing);
        let children = self.children.iter_mut();
        let due = children.filter(|child| is_closing && child.next == received);
        due.filter(|child| !child.close_sent)
            .map(|child| {
                child.close_sent = true;
                child.tree.life
            })
            .collect()
    }

    /// Whether CLOSE can be answered: then the flow is to be forgotten.
    pub fn is_closed(&self) -> bool {
        let here = self.local.is_none_or(|next| next == self.received);
        self.is_closing && here && self.children.iter().all(|child| child.is_closed)
    }

    /// Messages from this number on have to be kept here, up to the last one that arrived.
    pub fn held(&self) -> Range<u64> {
        let children = self.children.iter().map(|child| child.acknowledged);
        let first = children.chain(self.local).min().unwrap_or(self.received);
        first..self.received
    }

    fn child(&mut self, life: Life) -> Option<&mut Child> {
        self.children
            .iter_mut()
            .find(|child| child.tree.life == life)
    }
}
