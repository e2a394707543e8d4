use super::*;
use crate::remote_host::OutgoingStream;
use crate::wire::{Takes, Tree};
use rgaps_client::links::Demand;
use std::collections::VecDeque;

type Wants = BTreeMap<String, TopicInterest>;

fn node(host: &str, incarnation: u64) -> HostLife {
    let host = host.to_owned();
    HostLife { host, incarnation }
}

fn want(subscribers: u32) -> TopicInterest {
    let demand = Demand {
        reliable: true,
        transient_local: false,
        depth: 3,
    };
    TopicInterest {
        subscribers,
        demand,
    }
}

/// The networks of hosts in a row, each linked with the next one.
struct Row(BTreeMap<String, Network>);

impl Row {
    fn new(names: &[&str]) -> Row {
        let hosts = names
            .iter()
            .map(|name| (name.to_string(), Network::new(&node(name, 1))));
        let mut row = Row(hosts.collect());
        for pair in names.windows(2) {
            row.link(pair[0], &node(pair[1], 1));
            row.link(pair[1], &node(pair[0], 1));
        }
        row
    }

    fn host(&mut self, name: &str) -> &mut Network {
        self.0.get_mut(name).unwrap()
    }

    fn link(&mut self, host: &str, to: &HostLife) {
        self.host(host).link_up(to).unwrap();
    }

    /// Exchanges messages until host `at` has a path to `to`: new paths are used only once they are settled.
    fn settle(&mut self, at: &str, to: &str) {
        let begun = Instant::now();
        while self.0[at].path(to).is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
            self.exchange();
        }
    }

    /// Delivers messages until no host has any to send. Returns the reports about flows, each with its receiver and its sender.
    fn exchange(&mut self) -> Vec<(String, HostId, ControlMessage)> {
        let mut reports = Vec::new();
        loop {
            let mut all: VecDeque<(String, String, LinkMessage)> = VecDeque::new();
            for (from, network) in &mut self.0 {
                let said = network.poll(true).into_iter();
                all.extend(said.map(|(to, said)| (from.clone(), to, said)));
            }
            if all.is_empty() {
                return reports;
            }
            while let Some((from, to, said)) = all.pop_front() {
                match LinkMessage::decode(&said.encode()).unwrap() {
                    LinkMessage::Paths(paths) => self.host(&to).advertised(&from, &paths).unwrap(),
                    LinkMessage::Datagram(datagram) => {
                        let received = self.host(&to).receive(datagram, true).unwrap();
                        let of_flows = received.reports.into_iter();
                        reports.extend(of_flows.map(|(from, of)| (to.clone(), from.host, of)));
                        if let Some((next, datagram)) = received.forward {
                            let next = self.0[&to].name(next).unwrap().clone();
                            all.push_back((to, next, LinkMessage::Datagram(datagram)));
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn wants(&self, at: &str, of: &str) -> Wants {
        let wants = self.0[at].wants(of);
        wants.map(|(topic, want)| (topic.clone(), *want)).collect()
    }
}

#[test]
fn neighbours_know_what_each_other_wants() {
    let mut row = Row::new(&["a", "b"]);
    row.host("b").want("photos", Some(want(2)));
    row.exchange();
    let photos = Wants::from([("photos".to_owned(), want(2))]);
    assert_eq!(row.wants("a", "b"), photos);
    assert!(row.0["a"].knows_wants("b") && row.0["b"].knows_wants("a"));
    assert!(row.wants("b", "a").is_empty());
    row.host("b").want("photos", Some(want(3)));
    row.host("b").want("map", Some(want(1)));
    row.exchange();
    assert_eq!(row.wants("a", "b").len(), 2);
    assert_eq!(row.wants("a", "b")["photos"], want(3));
    // A withdrawn want stays for a moment.
    row.host("b").want("photos", None);
    row.exchange();
    assert_eq!(row.wants("a", "b").len(), 2);
    row.host("b").want("photos", Some(want(1)));
    row.exchange();
    assert_eq!(row.wants("a", "b")["photos"], want(1));
}

#[test]
fn hosts_that_are_not_neighbours_reach_each_other_through_others() {
    let mut row = Row::new(&["a", "b", "c"]);
    row.host("c").want("photos", Some(want(2)));
    row.settle("a", "c");
    row.settle("c", "a");
    row.exchange();
    assert!(!row.wants("a", "c").is_empty());
    let path = ["b", "c"].map(str::to_owned);
    assert_eq!(row.0["a"].path("c"), Some(path.to_vec()));
    let reached: BTreeSet<&String> = row.0["a"].reached().collect();
    assert!(reached.into_iter().eq(["b", "c"].iter()));
}

#[test]
fn a_life_that_wants_nothing_any_more_says_so() {
    let mut row = Row::new(&["a", "b"]);
    row.host("b").want("photos", Some(want(2)));
    row.exchange();
    row.0.insert("b".to_owned(), Network::new(&node("b", 2)));
    row.link("b", &node("a", 1));
    row.host("a").link_restarted("b");
    row.link("a", &node("b", 2));
    row.exchange();
    let known = &row.0["a"].wants[&id("b")]["photos"];
    assert!(known.withdrawn.is_some() && row.0["a"].knows_wants("b"));
}

#[test]
fn final_hosts_confirm_flows_and_hosts_between_refuse_them_to_their_origin() {
    let mut row = Row::new(&["a", "b", "c"]);
    row.settle("a", "c");
    row.settle("c", "a");
    let flow = FlowName {
        stream: 9,
        publisher: 5,
    };
    row.host("c").confirm("a", flow, 3);
    row.host("c").confirm("a", flow, 7);
    row.host("b").refuse("a", flow, ("c", "a rule"));
    let refused = ControlMessage::Refused {
        flow,
        host: id("c"),
        reason: "a rule".into(),
    };
    let mut reports = row.exchange();
    reports.sort_by_key(|(.., report)| *report == refused);
    // The later confirmation replaces the earlier one, which had not been sent.
    let expected = [
        (
            "a".to_owned(),
            id("c"),
            ControlMessage::Confirm { flow, next: 7 },
        ),
        ("a".to_owned(), id("b"), refused),
    ];
    assert_eq!(reports, expected);
}

#[test]
fn who_has_a_new_channel_is_to_be_told_everything_again() {
    let mut row = Row::new(&["a", "b"]);
    row.exchange();
    assert!(row.host("a").take_renewed().is_empty());
    row.0.insert("b".to_owned(), Network::new(&node("b", 2)));
    row.link("b", &node("a", 1));
    row.host("a").link_restarted("b");
    row.link("a", &node("b", 2));
    row.exchange();
    assert_eq!(row.host("a").take_renewed(), BTreeSet::from([id("b")]));
    assert!(row.host("a").take_renewed().is_empty());
    assert_eq!(row.0["a"].incarnation("b"), Some(2));
}

/// The stream's own host must notice this: the host between may have forgotten the flow before the life ended, and so reports nothing.
#[test]
fn a_stream_begins_again_for_another_life_of_a_host_behind_the_next_one() {
    let mut network = Network::new(&node("a", 1));
    network.link_up(&node("b", 1)).unwrap();
    let advertise = |network: &mut Network, life| {
        network
            .advertised("b", &[vec![node("b", 1), node("c", life)]])
            .unwrap();
        let begun = Instant::now();
        while network.incarnation("c") != Some(life) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
            network.poll(true);
        }
    };
    advertise(&mut network, 1);
    let mut tree = Tree::new("b");
    tree.add(&["c".to_owned()], Takes::Reliable);
    let stream = OutgoingStream::new(tree.clone(), &network);
    assert!(!stream.is_to_be_replaced(&tree, &network));
    advertise(&mut network, 2);
    assert!(stream.is_to_be_replaced(&tree, &network));
    let stream = OutgoingStream::new(tree.clone(), &network);
    assert!(!stream.is_to_be_replaced(&tree, &network));
}

#[test]
fn an_advertisement_may_come_before_the_link_is_known() {
    let mut network = Network::new(&node("a", 1));
    let paths = [vec![node("b", 1), node("c", 1)]];
    network.advertised("b", &paths).unwrap();
    network.link_up(&node("b", 1)).unwrap();
    assert!(network.router.paths().knows(id("c")));
}

#[test]
fn what_neighbours_say_is_checked() {
    let mut network = Network::new(&node("a", 1));
    network.link_up(&node("b", 1)).unwrap();
    for path in [&["c", "d"][..], &["b"], &["b", "c", "c"], &[]] {
        let path = path.iter().map(|host| node(host, 1)).collect();
        network.advertised("b", &[path]).unwrap_err();
    }
    for wrong in [
        &[][..],
        &[0, 0, 0, 0],
        &encode_want(want(0)),
        &[1, 1, 1, 3, 0],
    ] {
        decode_want(wrong).unwrap_err();
    }
    assert_eq!(decode_want(&encode_want(want(7))).unwrap(), want(7));
}
