//! Checks of OPEN from honest and misbehaving peers, over links on loopback.

use super::*;
use crate::event::SourcedEvent;
use crate::ingress::LinkIngress;
use crate::wire::{Takes, Tree};
use rgaps_client::links::Offer;
use rgaps_client::History;
use rgaps_connection::Security;
use rgaps_transport::machine::BufferReply;
use rgaps_transport::{EndpointConfig, LaneEnd, LaneKey};
use std::sync::mpsc::{channel, Receiver};

const LIMIT: Duration = Duration::from_secs(120);

fn endpoint(incarnation: u64) -> Endpoint {
    Endpoint::new(EndpointConfig {
        incarnation,
        realm: 7,
        listen: Some(([127, 0, 0, 1], 0).into()),
        security: Security::Loopback,
        rdma: None,
    })
    .unwrap()
}

fn key(incarnation: u64) -> LaneKey {
    LaneKey([incarnation as u8; 32])
}

fn limits() -> RetainLimits {
    RetainLimits {
        in_flight_max: 1 << 20,
        outage_max: 1 << 20,
        outage: LIMIT,
    }
}

/// The listening end of a link with the host of this incarnation, and the events that it reports.
fn listen(at: &Endpoint, host: u64) -> (HostLink, Receiver<SourcedEvent>, Arc<LinkIngress>) {
    let (to, heard) = channel();
    let landings = LinkIngress::new("peer", to, channel().0, HostCounts::new(None));
    let peer = Peer {
        incarnation: host,
        key: key(host),
        dial: Vec::new(),
    };
    let config = (LinkConfig::default(), limits());
    let link = HostLink::new(at, &host.to_string(), config, peer, landings.ends());
    (link.unwrap(), heard, landings)
}

/// The user of a misbehaving host's link.
struct Liar;

impl LinkUser for Liar {}

impl FlowReceiver for Liar {
    fn buffer(&self, _: FlowId, _: u64, _: &[u8], _: u64) -> BufferReply {
        BufferReply::Refused
    }
}

fn dial(from: &Endpoint, to: &Endpoint, own: u64) -> Peer {
    assert!(from.local_addr().is_some());
    Peer {
        incarnation: 1,
        key: key(own),
        dial: vec![to.local_addr().unwrap()],
    }
}

fn liar(own: u64, to: &Endpoint, lies: &[Description]) -> (Endpoint, Link) {
    let at = endpoint(own);
    let peer = dial(&at, to, own);
    let link = at.link(
        "1",
        LinkConfig::default(),
        peer,
        (Arc::new(Liar), Arc::new(Liar)),
    );
    let link = link.unwrap();
    for description in lies {
        let id = link.change(|link| link.open(0, description.clone()));
        id.unwrap();
    }
    (at, link)
}

/// A tree from a host to others, which are its reliable children.
fn tree(root: &str, ends: &[&str]) -> Tree {
    let mut tree = Tree::new(root);
    for end in ends {
        tree.add(&[(*end).to_owned()], Takes::Reliable);
    }
    tree
}

fn described() -> FlowDescription {
    FlowDescription {
        publisher: 5,
        topic: "camera/left".to_owned(),
        offer: Offer {
            history: History::KeepLast(3),
            reliable: true,
            transient_local: false,
            loans: 1,
        },
        type_name: "image".to_owned(),
        via: vec!["a".to_owned()],
        tree: tree("c", &["d"]),
        history: 3,
        begins: BTreeMap::new(),
        read: Ok(()),
    }
}

fn flow(publisher: u64) -> FlowName {
    FlowName {
        stream: 9,
        publisher,
    }
}

fn alone() -> Group {
    Group {
        number: 1,
        flows: 1,
    }
}

fn wait<T>(heard: &Receiver<SourcedEvent>, is: impl Fn(ConductorEvent) -> Option<T>) -> T {
    loop {
        let (_, heard) = heard.recv_timeout(LIMIT).expect("it is reported");
        if let Some(found) = is(heard) {
            return found;
        }
    }
}

fn is_violation(heard: ConductorEvent) -> Option<()> {
    match heard {
        ConductorEvent::Link(LinkEvent::LaneEnded {
            end: LaneEnd::ProtocolViolation,
            ..
        }) => Some(()),
        _ => None,
    }
}

/// The publishers of a group that was opened. None: it is another event.
fn opened(heard: ConductorEvent) -> Option<Vec<u64>> {
    let ConductorEvent::Opened(flows) = heard else {
        return None;
    };
    let described = flows.iter().map(|(flow, description)| {
        assert_eq!(*flow, self::flow(description.publisher));
        flow.publisher
    });
    Some(described.collect())
}

#[test]
fn a_description_that_lies_is_none() {
    let bytes = described().encode();
    assert_eq!(FlowDescription::decode(5, &bytes), Ok(described()));
    for length in 0..bytes.len() {
        let cut = FlowDescription::decode(5, &bytes[..length]);
        assert!(cut.is_err(), "{length}");
    }
    assert!(FlowDescription::decode(5, &[&bytes[..], &[0]].concat()).is_err());
    // Changes the topic's length, and the kind of history.
    let kind = 1 + described().topic.len();
    for (at, byte) in [(0, 0), (0, 0x7f), (0, 0xff), (kind, 7), (kind, 0xff)] {
        let mut lie = bytes.clone();
        lie[at] = byte;
        assert!(FlowDescription::decode(5, &lie).is_err(), "{at} {byte}");
    }
    let of = described;
    let long = |bytes: usize| "x".repeat(bytes);
    let lies = [
        FlowDescription {
            topic: long(256),
            ..of()
        },
        FlowDescription {
            topic: String::new(),
            ..of()
        },
        FlowDescription {
            type_name: long(301),
            ..of()
        },
        FlowDescription {
            read: Err(long(301)),
            ..of()
        },
        FlowDescription {
            via: vec![long(65)],
            ..of()
        },
        FlowDescription {
            via: vec!["a".to_owned(); 8],
            ..of()
        },
        FlowDescription {
            tree: tree("c", &["a/b"]),
            ..of()
        },
        FlowDescription {
            tree: tree("c/d", &[]),
            ..of()
        },
    ];
    for lie in lies {
        assert!(
            FlowDescription::decode(5, &lie.encode()).is_err(),
            "{lie:?}"
        );
    }
}

#[test]
fn a_host_that_lies_in_open_is_disconnected_and_harms_nobody_else() {
    let victim = endpoint(1);
    let honest = described().encode();
    let all = |description: &[u8], flow, group| encode_open(flow, group, description).unwrap();
    let none = Group {
        number: 1,
        flows: 0,
    };
    let lies: Vec<Vec<Description>> = vec![
        // The description names no flow.
        vec![Description::new(&[0xff; 21]).unwrap()],
        vec![Description::default()],
        // The group has no flows.
        vec![all(&honest, flow(5), none)],
        // The description of the flow is cut.
        vec![all(&honest[..honest.len() - 1], flow(5), alone())],
        // The flow is open already.
        vec![
            all(&honest, flow(5), alone()),
            all(&honest, flow(5), alone()),
        ],
    ];
    let (_link, heard, _) = listen(&victim, 2);
    let at = endpoint(2);
    let config = (LinkConfig::default(), limits());
    let friend = LinkIngress::new("1", channel().0, channel().0, HostCounts::new(None));
    let friend = HostLink::new(&at, "1", config, dial(&at, &victim, 2), friend.ends()).unwrap();
    let open = |publisher| {
        friend.open(vec![NewFlow {
            flow: flow(publisher),
            retained_max: u64::MAX,
            description: Arc::new(described()),
            leads_on: false,
        }]);
    };
    open(100);
    assert_eq!(wait(&heard, opened), [100]);
    for (lie, own) in lies.iter().zip(10..) {
        let (link, of_liar, _) = listen(&victim, own);
        let liar = liar(own, &victim, lie);
        wait(&of_liar, is_violation);
        // Another host's link is not affected.
        open(own);
        assert_eq!(wait(&heard, opened), [own]);
        link.close();
        drop(liar);
    }
    assert!(!friend.status().lanes.is_empty());
}

#[test]
fn a_group_that_does_not_come_whole_delays_its_own_flows_only() {
    let victim = endpoint(1);
    let (_link, heard, _) = listen(&victim, 2);
    let honest = described().encode();
    let two = Group {
        number: 7,
        flows: 2,
    };
    let half = encode_open(flow(5), two, &honest).unwrap();
    let whole = encode_open(flow(6), alone(), &honest).unwrap();
    let (_at, liar) = liar(2, &victim, &[half, whole]);
    assert_eq!(wait(&heard, opened), [6]);
    // The rest of the first group.
    let rest = encode_open(flow(8), two, &honest).unwrap();
    liar.change(|link| link.open(0, rest)).unwrap();
    assert_eq!(wait(&heard, opened), [5, 8]);
}

#[test]
fn flows_that_are_opened_together_are_one_group_and_again_after_a_restart() {
    let at = endpoint(1);
    let (link, heard, landings) = listen(&at, 2);
    let sender = endpoint(2);
    let (to, answers) = channel();
    let quiet = LinkIngress::new("1", to, channel().0, HostCounts::new(None));
    let config = (LinkConfig::default(), limits());
    let from = HostLink::new(&sender, "1", config, dial(&sender, &at, 2), quiet.ends()).unwrap();
    let description = Arc::new(described());
    let new = |publisher| NewFlow {
        flow: flow(publisher),
        retained_max: u64::MAX,
        description: description.clone(),
        leads_on: false,
    };
    from.open(vec![new(1), new(2), new(3)]);
    from.open(vec![new(3), new(4)]);
    let mut groups = [wait(&heard, opened), wait(&heard, opened)];
    groups.iter_mut().for_each(|group| group.sort_unstable());
    groups.sort();
    assert_eq!(groups, [vec![1, 2, 3], vec![4]]);
    // A refused flow has ended, and may be opened again.
    landings.answer(flow(4), Err("a rule".to_owned()));
    link.buffer_free();
    let refused = wait(&answers, |heard| match heard {
        ConductorEvent::Answered(flow, Err(why)) => Some((flow, why)),
        _ => None,
    });
    assert_eq!(refused, (flow(4), "a rule".to_owned()));
    from.open(vec![new(4)]);
    assert_eq!(wait(&heard, opened), [4]);
    // The receiver restarts: each stream's flows are opened as one group.
    drop((link, at));
    let other = endpoint(3);
    let (_link, heard, _) = listen(&other, 2);
    let peer = Peer {
        incarnation: 3,
        ..dial(&sender, &other, 2)
    };
    from.set_peer(peer).unwrap();
    let mut group = wait(&heard, opened);
    group.sort_unstable();
    assert_eq!(group, [1, 2, 3, 4]);
}

#[test]
fn no_more_flows_are_opened_than_a_link_has_and_each_group_comes_whole() {
    let at = endpoint(1);
    let (_link, heard, _) = listen(&at, 2);
    let sender = endpoint(2);
    let quiet = LinkIngress::new("1", channel().0, channel().0, HostCounts::new(None));
    let config = (LinkConfig::default(), limits());
    let from = HostLink::new(&sender, "1", config, dial(&sender, &at, 2), quiet.ends()).unwrap();
    let description = Arc::new(described());
    let new = |publisher| NewFlow {
        flow: flow(publisher),
        retained_max: u64::MAX,
        description: description.clone(),
        leads_on: false,
    };
    let last = FLOWS_MAX as u64;
    from.open((0..1000).map(new).collect());
    from.open((1000..=last).map(new).collect());
    let mut sizes = [wait(&heard, opened).len(), wait(&heard, opened).len()];
    sizes.sort_unstable();
    assert_eq!(sizes, [1000, FLOWS_MAX - 1000]);
    let send = |publisher| {
        let payload = Arc::new(vec![1]);
        from.send((flow(publisher), true), 0, payload, Description::default())
    };
    assert_eq!([send(last - 1), send(last)], [Sent::Taken, Sent::Never]);
}

#[test]
fn a_link_that_was_replaced_is_out_of_date() {
    let (to, heard) = channel();
    let first = LinkIngress::new("peer", to, channel().0, HostCounts::new(None));
    let second = first.next();
    let source = |ingress: &LinkIngress| {
        ingress.event(ConductorEvent::Link(LinkEvent::Up));
        let (source, _) = heard.recv_timeout(LIMIT).unwrap();
        source.expect("it is of a link")
    };
    let (old, new) = (source(&first), source(&second));
    assert!(first.reporter.source == old && second.reporter.source == new);
    assert!(second.reporter.source != old && first.reporter.source != new);
    // The counts continue.
    assert_eq!(second.counts.connects.load(Ordering::Relaxed), 2);
}

#[test]
fn a_best_effort_flow_keeps_only_its_newest_message_while_the_host_is_away() {
    // Nobody listens, so there are no lanes.
    let sender = endpoint(2);
    let quiet = LinkIngress::new("1", channel().0, channel().0, HostCounts::new(None));
    let peer = Peer {
        incarnation: 1,
        key: key(2),
        dial: Vec::new(),
    };
    let config = (LinkConfig::default(), limits());
    let link = HostLink::new(&sender, "1", config, peer, quiet.ends()).unwrap();
    let new = |publisher| NewFlow {
        flow: flow(publisher),
        retained_max: u64::MAX,
        description: Arc::new(described()),
        leads_on: false,
    };
    link.open(vec![new(1), new(2)]);
    for (publisher, reliable) in [(1, false), (2, true)] {
        for sequence in 0..10 {
            let payload = Arc::new(vec![0_u8; 100]);
            let sent = link.send(
                (flow(publisher), reliable),
                sequence,
                payload,
                Description::default(),
            );
            assert_eq!(sent, Sent::Taken);
        }
    }
    assert_eq!(link.status().retained_bytes, 100 + 10 * 100);
    let counts = &quiet.counts;
    assert_eq!(counts.given_up.load(Ordering::Relaxed), 9);
    assert_eq!(counts.issues.rows(1)[0].gave_up, 9);
    // A message that another stream sends does not count as given up.
    link.replaced(flow(1));
    let payload = Arc::new(vec![0_u8; 100]);
    link.send((flow(1), false), 10, payload, Description::default());
    assert_eq!(counts.given_up.load(Ordering::Relaxed), 9);
}

#[test]
fn a_flow_that_another_replaces_is_closed_when_the_host_has_accepted_that_one() {
    let at = endpoint(1);
    let (link, heard, landings) = listen(&at, 2);
    let sender = endpoint(2);
    let (to, answers) = channel();
    let quiet = LinkIngress::new("1", to, channel().0, HostCounts::new(None));
    // One lane, so that flows are closed in order.
    let config = LinkConfig {
        lanes: 1,
        ..LinkConfig::default()
    };
    let peer = dial(&sender, &at, 2);
    let from = HostLink::new(&sender, "1", (config, limits()), peer, quiet.ends()).unwrap();
    let open = |flow| {
        from.open(vec![NewFlow {
            flow,
            retained_max: u64::MAX,
            description: Arc::new(described()),
            leads_on: false,
        }]);
        wait(&heard, |heard| {
            matches!(heard, ConductorEvent::Opened(_)).then_some(())
        });
    };
    let accept = |flow| {
        let bound = crate::ingress::Bound {
            landing: None,
            transit: None,
            position: None,
        };
        landings.answer(flow, Ok(bound));
        link.buffer_free();
        wait(&answers, |heard| match heard {
            ConductorEvent::Answered(of, Ok(())) => (of == flow).then_some(()),
            _ => None,
        });
    };
    let closed = || {
        wait(&heard, |heard| match heard {
            ConductorEvent::Closed(flow) => Some(flow),
            _ => None,
        })
    };
    let (former, other) = (flow(1), flow(2));
    let successor = FlowName {
        stream: 10,
        publisher: 1,
    };
    for flow in [former, other] {
        open(flow);
        accept(flow);
    }
    open(successor);
    from.end_flow(former, false);
    from.end_flow(other, false);
    assert_eq!(closed(), other);
    accept(successor);
    assert_eq!(closed(), former);
}
