//! The topics of this host that go out to other hosts.

use super::egress_plan::EgressPlan;
use crate::remote_host::OutgoingStream;
use std::collections::{BTreeMap, HashMap};

/// Topics by name, and by the streams in which they go out. [`OutgoingTopics::take`] a topic to change its streams.
#[derive(Default)]
pub(super) struct OutgoingTopics {
    plans: BTreeMap<String, EgressPlan>,
    /// The topic of each stream of `plans`, and of no other.
    streams: HashMap<u64, String>,
}

impl OutgoingTopics {
    /// Takes a topic out, or begins a new one.
    pub(super) fn take(&mut self, name: &str) -> EgressPlan {
        let plan = self.plans.remove(name).unwrap_or_default();
        for branch in plan.branches.values() {
            self.streams.remove(&branch.stream);
        }
        plan
    }

    pub(super) fn put(&mut self, name: &str, plan: EgressPlan) {
        for branch in plan.branches.values() {
            self.streams.insert(branch.stream, name.to_owned());
        }
        self.plans.insert(name.to_owned(), plan);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.plans.keys()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &EgressPlan)> {
        self.plans.iter()
    }

    pub(super) fn plans(&self) -> impl Iterator<Item = &EgressPlan> {
        self.plans.values()
    }

    /// To change anything but streams.
    pub(super) fn plans_mut(&mut self) -> impl Iterator<Item = &mut EgressPlan> {
        self.plans.values_mut()
    }

    /// To change anything but streams.
    pub(super) fn plan_mut(&mut self, name: &str) -> Option<&mut EgressPlan> {
        self.plans.get_mut(name)
    }

    pub(super) fn into_plans(self) -> impl Iterator<Item = EgressPlan> {
        self.plans.into_values()
    }

    /// The topic that goes out in a stream.
    pub(super) fn name(&self, stream: u64) -> Option<&String> {
        self.streams.get(&stream)
    }

    pub(super) fn stream_mut(&mut self, number: u64) -> Option<&mut OutgoingStream> {
        let plan = self.plans.get_mut(self.streams.get(&number)?)?;
        let mut branches = plan.branches.values_mut();
        branches.find(|branch| branch.stream == number)
    }
}
