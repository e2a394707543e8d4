//! Single rules of delivery, named after what broke or would break without them.
#![forbid(unsafe_code)]

use rgaps_routing::{
    ChannelEvent, Channels, ControlMessage, Datagram, Delivery, FlowCommand, FlowDescription,
    FlowError, FlowId, FlowName, Graph, Hop, HostId, Life, Load, Offer, PathTable, Positions,
    Publisher, Transit, Tree, RESEND_AFTER,
};
use std::time::Duration;

const OUTAGE: Duration = Duration::from_secs(20);
const NOW: Duration = Duration::from_secs(1);
const LOAD: Load = Load {
    message_bytes: 0,
    tree_bytes_min: 1,
    fanout: 2,
    lanes: 1,
};

const FLOW: FlowName = FlowName {
    stream: 1,
    publisher: 7,
};

fn life(host: u64) -> Life {
    Life {
        host: HostId(host),
        incarnation: 1,
    }
}

fn publisher() -> Publisher {
    Publisher {
        origin: life(0),
        number: 7,
    }
}

/// Host 0 with a row of others: 0 - 1 - 2.
fn row() -> Graph {
    let mut graph = Graph::new(life(0));
    graph.join(life(0), life(1));
    graph.join(life(1), life(2));
    graph
}

fn opened(delivery: &mut Delivery) -> Vec<FlowDescription> {
    let commands = delivery.take_commands().into_iter();
    commands
        .filter_map(|command| match command {
            FlowCommand::Open(description) => Some(description),
            _ => None,
        })
        .collect()
}

#[test]
fn a_closed_flow_that_brought_nothing_confirms_nothing() {
    let mut delivery = Delivery::new(publisher(), OUTAGE);
    delivery.add(life(1), 0);
    delivery.plan(&row(), LOAD, NOW);
    let first = opened(&mut delivery)[0].flow;
    delivery.publish();
    // Two more trees, one right after the other: the second flow has no message.
    delivery.add(life(2), 1);
    delivery.plan(&row(), LOAD, NOW);
    let second = opened(&mut delivery)[0].flow;
    delivery.remove(HostId(2));
    delivery.plan(&row(), LOAD, NOW);
    delivery.take_commands();
    delivery.closed(second);
    assert_eq!(delivery.retained(), 0..1, "host 1 has not delivered it");
    delivery.sent(first);
    delivery.take_commands();
    delivery.closed(first);
    assert_eq!(delivery.retained(), 1..1);
}

#[test]
fn a_host_that_broke_off_is_served_from_what_it_confirmed() {
    let mut delivery = Delivery::new(publisher(), OUTAGE);
    delivery.add(life(2), 0);
    delivery.plan(&row(), LOAD, NOW);
    let flow = opened(&mut delivery)[0].flow;
    for _ in 0..5 {
        delivery.publish();
        delivery.sent(flow);
    }
    delivery.confirmed(life(2), 3);
    delivery.broken(flow, HostId(2));
    assert!(delivery.needs_plan(NOW));
    delivery.plan(&row(), LOAD, NOW);
    let again = opened(&mut delivery);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].first, 3);
    assert_eq!(again[0].tree.children[0].base, Some(3));
}

#[test]
fn an_acknowledgement_of_a_host_between_confirms_nothing() {
    let mut delivery = Delivery::new(publisher(), OUTAGE);
    delivery.add(life(2), 0);
    delivery.plan(&row(), LOAD, NOW);
    let flow = opened(&mut delivery)[0].flow;
    delivery.publish();
    delivery.sent(flow);
    delivery.acknowledged(flow, 1);
    assert_eq!(delivery.retained(), 0..1);
    delivery.confirmed(life(2), 1);
    assert_eq!(delivery.retained(), 1..1);
}

#[test]
fn a_new_life_is_owed_what_its_host_had_not_confirmed() {
    let mut delivery = Delivery::new(publisher(), OUTAGE);
    delivery.add(life(1), 0);
    for _ in 0..4 {
        delivery.publish();
    }
    delivery.confirmed(life(1), 2);
    let mut later = life(1);
    later.incarnation = 2;
    delivery.add(later, 4);
    // An old confirmation that was late.
    delivery.confirmed(life(1), 4);
    assert_eq!(delivery.retained(), 2..4);
}

#[test]
fn flows_that_a_given_up_host_could_stall_are_cancelled() {
    let mut delivery = Delivery::new(publisher(), OUTAGE);
    delivery.add(life(1), 0);
    delivery.add(life(2), 0);
    delivery.plan(&row(), LOAD, NOW);
    let shared = opened(&mut delivery)[0].flow;
    delivery.publish();
    delivery.sent(shared);
    let mut without = Graph::new(life(0));
    without.join(life(0), life(1));
    delivery.plan(&without, LOAD, NOW);
    delivery.take_commands();
    let given_up = delivery.plan(&without, LOAD, NOW + OUTAGE);
    assert_eq!(given_up.len(), 1);
    let commands = delivery.take_commands();
    assert!(commands.contains(&FlowCommand::Cancel(life(1), shared)));
    // The other host gets the message again.
    let is_repeated =
        |command: &FlowCommand| matches!(command, FlowCommand::Open(open) if open.first == 0);
    assert!(commands.iter().any(is_repeated), "{commands:?}");
    assert_eq!(delivery.retained(), 0..1);
}

#[test]
fn a_flow_never_sends_what_is_released() {
    let mut delivery = Delivery::new(publisher(), OUTAGE);
    delivery.add(life(1), 0);
    delivery.plan(&row(), LOAD, NOW);
    let flow = opened(&mut delivery)[0].flow;
    for _ in 0..3 {
        delivery.publish();
    }
    assert_eq!(delivery.due(), [(flow, life(1), 0, 0)]);
    // Another flow brought two of them.
    delivery.confirmed(life(1), 2);
    assert_eq!(delivery.due(), []);
    assert!(delivery.needs_plan(NOW));
    delivery.plan(&row(), LOAD, NOW);
    assert_eq!(opened(&mut delivery)[0].first, 2);
    assert!(!delivery.due().is_empty());
}

#[test]
fn a_host_that_is_away_costs_no_plan_until_it_is_given_up() {
    let mut delivery = Delivery::new(publisher(), OUTAGE);
    delivery.add(life(5), 0);
    delivery.publish();
    assert!(delivery.plan(&row(), LOAD, NOW).is_empty());
    assert!(!delivery.needs_plan(NOW + OUTAGE / 2));
    assert!(delivery.needs_plan(NOW + OUTAGE));
    let given_up = delivery.plan(&row(), LOAD, NOW + OUTAGE);
    assert_eq!((given_up.len(), given_up[0].confirmed), (1, 0));
    assert_eq!(delivery.retained(), 1..1);
}

#[test]
fn an_open_that_overtakes_another_makes_a_new_host_miss_nothing() {
    let mut positions = Positions::default();
    // The flow begins at 9, but the host is owed all from 4 on.
    assert_eq!(positions.open(publisher(), 4, None), 0);
    assert_eq!(positions.offer(publisher(), 9, true), Offer::Wait);
    assert_eq!(positions.offer(publisher(), 4, true), Offer::Deliver);
    positions.delivered(publisher());
    assert_eq!(positions.offer(publisher(), 4, true), Offer::Duplicate);
    // What the origin has given up for this host is missed, and counted once.
    assert_eq!(positions.open(publisher(), 8, None), 3);
    assert_eq!(positions.open(publisher(), 8, None), 0);
    assert!(positions.all().eq([(publisher(), 8, 3)]));
}

#[test]
fn only_what_did_not_arrive_from_the_origin_itself_is_confirmed_over_channels() {
    let mut positions = Positions::default();
    positions.open(publisher(), 0, None);
    positions.offer(publisher(), 0, true);
    positions.delivered(publisher());
    assert!(positions.confirmations().is_empty());
    positions.offer(publisher(), 1, false);
    positions.delivered(publisher());
    assert_eq!(positions.confirmations(), [(publisher(), 2)]);
    assert!(positions.confirmations().is_empty());
    // A duplicate: the origin may not know.
    positions.offer(publisher(), 1, false);
    assert_eq!(positions.confirmations(), [(publisher(), 2)]);
    positions.restarted(HostId(0));
    assert_eq!(positions.confirmations(), [(publisher(), 2)]);
}

#[test]
fn a_host_between_acknowledges_what_all_its_children_have_taken() {
    let mut tree = Tree::leaf(life(1), Some(0));
    tree.children = (2..5).map(|host| Tree::leaf(life(host), Some(0))).collect();
    let description = FlowDescription {
        publisher: publisher(),
        flow: FlowId(1),
        first: 0,
        tree,
    };
    let is_neighbour = |child: Life| child != life(4);
    let other = Transit::open(life(2), description.clone(), is_neighbour);
    assert!(matches!(other, Err(FlowError::Tree)));
    let (mut transit, broken) = Transit::open(life(1), description, is_neighbour).unwrap();
    assert_eq!(broken, [HostId(4)]);
    assert_eq!(transit.receive(1), Err(FlowError::Number(1)));
    transit.receive(0).unwrap();
    transit.taken_here();
    transit.taken(life(2));
    assert_eq!(transit.acknowledgement(), None);
    transit.taken(life(3));
    assert_eq!(transit.acknowledgement(), Some(1));
    assert_eq!(transit.held(), 0..1, "no child has acknowledged it");
    transit.close();
    assert_eq!(transit.closing_children(), [life(2), life(3)]);
    transit.child_closed(life(2));
    assert!(!transit.is_closed());
    assert!(transit.broken(HostId(3)) && !transit.broken(HostId(3)));
    assert!(transit.is_closed());
}

/// Carries all datagrams between two neighbours; returns what arrived at the second.
fn exchange(ends: [&mut Channels; 2], tables: [&PathTable; 2], now: Duration) -> Vec<ChannelEvent> {
    let [one, two] = ends;
    let mut events = Vec::new();
    for _ in 0..4 {
        for Datagram { segment, .. } in one.poll(now, tables[0]) {
            events.extend(two.receive(segment, now));
        }
        for Datagram { segment, .. } in two.poll(now, tables[1]) {
            one.receive(segment, now);
        }
    }
    events
}

#[test]
fn a_host_that_forgot_a_channel_does_not_stall_it() {
    let tables = [(0, 1), (1, 0)].map(|(own, other)| {
        let mut table = PathTable::new(life(own));
        table.link_up(life(other));
        table
    });
    let tables = [&tables[0], &tables[1]];
    let (mut one, mut two) = (Channels::new(life(0)), Channels::new(life(1)));
    let confirm = |next| ControlMessage::Confirm { flow: FLOW, next };
    one.send(HostId(1), confirm(1));
    one.send(HostId(1), confirm(2));
    let message = |next| ChannelEvent::Message(life(0), confirm(next));
    assert!(one.has_room(HostId(1)));
    // The later one replaced the other.
    assert_eq!(exchange([&mut one, &mut two], tables, NOW), [message(2)]);
    two.forget(HostId(0));
    one.send(HostId(1), confirm(3));
    let later = NOW + 2 * RESEND_AFTER;
    assert_eq!(exchange([&mut one, &mut two], tables, later), []);
    // The first was told that it has to say everything again, and can.
    one.send(HostId(1), confirm(4));
    let latest = later + 2 * RESEND_AFTER;
    assert_eq!(exchange([&mut one, &mut two], tables, latest), [message(4)]);
    assert!(one.hosts().eq([(HostId(1), true)]));
    one.forget(HostId(1));
    one.send(HostId(1), confirm(5));
    let events = exchange([&mut one, &mut two], tables, latest + 2 * RESEND_AFTER);
    assert_eq!(events, [ChannelEvent::Restarted(life(0)), message(5)]);
}

#[test]
fn new_messages_do_not_put_off_the_resending_of_lost_ones() {
    let (mut here, mut there) = (PathTable::new(life(0)), PathTable::new(life(1)));
    here.link_up(life(1));
    there.link_up(life(0));
    let (mut one, mut two) = (Channels::new(life(0)), Channels::new(life(1)));
    one.send(HostId(1), ControlMessage::Ask);
    exchange([&mut one, &mut two], [&here, &there], NOW);
    let confirm = |next| ControlMessage::Confirm { flow: FLOW, next };
    // The first is lost, and others follow it.
    let mut arrived = Vec::new();
    for step in 0..20 {
        let now = NOW + RESEND_AFTER / 10 * step;
        one.send(HostId(1), confirm(step.into()));
        let datagrams = one.poll(now, &here);
        for datagram in datagrams.into_iter().skip(usize::from(step == 0)) {
            arrived.extend(two.receive(datagram.segment, now));
        }
    }
    assert!(!arrived.is_empty());
    assert_eq!(arrived[0], ChannelEvent::Message(life(0), confirm(0)));
}

#[test]
fn a_datagram_goes_along_its_path_and_nowhere_else() {
    let table = {
        let mut table = PathTable::new(life(0));
        table.link_up(life(1));
        table
    };
    let mut channels = Channels::new(life(0));
    channels.send(HostId(1), ControlMessage::Ask);
    let mut datagram = channels.poll(NOW, &table).remove(0);
    datagram.path = vec![HostId(1), HostId(2)];
    assert_eq!(datagram.clone().hop(HostId(2)), Hop::Drop);
    let Hop::Forward(next, datagram) = datagram.hop(HostId(1)) else {
        panic!("it goes on");
    };
    assert_eq!(
        (next, datagram.path.as_slice()),
        (HostId(2), &[HostId(2)][..])
    );
    assert!(matches!(datagram.hop(HostId(2)), Hop::Deliver(_)));
}
