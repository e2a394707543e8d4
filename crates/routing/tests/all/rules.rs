//! Single rules of delivery and channels; each test's name says what the rule prevents or ensures.

use rgaps_routing::{
    ChannelEvent, Channels, ControlMessage, Datagram, Delivery, FlowName, Hop, HostId, Life,
    PathTable, StreamId, CHANNEL_WINDOW, RESEND_AFTER,
};
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);
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

const FIRST: StreamId = StreamId(1);
const SECOND: StreamId = StreamId(2);
const THIRD: StreamId = StreamId(3);

/// Opens a flow to reliable final hosts, of which the first is the root.
fn open(delivery: &mut Delivery, id: StreamId, hosts: &[u64]) {
    let finals = hosts.iter().map(|host| (HostId(*host), true)).collect();
    let (root, from) = (HostId(hosts[0]), delivery.next());
    delivery.open(id, root, &finals, from);
}

/// Sends all messages that are due.
fn send(delivery: &mut Delivery, id: StreamId) {
    let due = delivery.due(id).expect("something is due");
    delivery.sent(id, due.end - 1, true);
}

#[test]
fn a_flow_that_takes_anothers_place_begins_at_what_its_hosts_have_confirmed() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1, 2]);
    (0..5).for_each(|number| delivery.publish(number));
    send(&mut delivery, FIRST);
    delivery.confirmed(FIRST, HostId(2), 3);
    delivery.acknowledged(FIRST, 4);
    open(&mut delivery, SECOND, &[3, 2]);
    delivery.close(FIRST);
    assert_eq!(
        (delivery.due(FIRST), delivery.due(SECOND)),
        (None, Some(3..5))
    );
    // Host 1 was forgotten with its last flow, and is a new host then.
    open(&mut delivery, FIRST, &[1]);
    assert_eq!(delivery.due(FIRST), None);
}

#[test]
fn a_host_learns_where_it_begins_from_each_flow() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1]);
    (0..5).for_each(|number| delivery.publish(number));
    send(&mut delivery, FIRST);
    // A new host is owed the messages from 5 on.
    open(&mut delivery, SECOND, &[2]);
    assert_eq!(delivery.due(SECOND), None);
    let begins = [(HostId(2), 5)].into();
    assert_eq!(delivery.begins(SECOND), begins);
    delivery.acknowledged(SECOND, 0);
    delivery.publish(5);
    // A flow that serves also a host with a lower position carries earlier messages. The new host takes none of them, whichever flow
    // reaches it first.
    open(&mut delivery, THIRD, &[1, 2]);
    delivery.close(SECOND);
    assert_eq!(delivery.due(THIRD), Some(0..6));
    let of_both = [(HostId(1), 0), (HostId(2), 5)].into();
    assert_eq!(delivery.begins(THIRD), of_both);
    open(&mut delivery, SECOND, &[2]);
    assert_eq!(delivery.due(SECOND), Some(5..6));
    assert_eq!(delivery.begins(SECOND), begins);
    delivery.confirmed(SECOND, HostId(2), 5);
    assert_eq!(delivery.begins(SECOND), begins);
    // A host that has lost its state continues at the position that its earlier life had confirmed.
    delivery.confirmed(SECOND, HostId(2), 6);
    assert_eq!(delivery.begins(SECOND), [(HostId(2), 6)].into());
}

#[test]
fn a_host_is_not_owed_what_was_left_out_before_anything_was_sent_to_it() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1]);
    (0..5).for_each(|number| delivery.publish(number));
    delivery.sent(FIRST, 2, false);
    assert_eq!(delivery.begins(FIRST), [(HostId(1), 3)].into());
    // Once a message was sent to it, it is owed all later ones, also those that are left out.
    delivery.sent(FIRST, 3, true);
    delivery.sent(FIRST, 4, false);
    assert_eq!(delivery.begins(FIRST), [(HostId(1), 3)].into());
}

#[test]
fn a_best_effort_host_goes_on_where_the_flow_of_others_began() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1]);
    (0..5).for_each(|number| delivery.publish(number));
    let finals = [(HostId(1), true), (HostId(2), false)].into();
    delivery.open(SECOND, HostId(1), &finals, 5);
    assert_eq!(delivery.due(SECOND), Some(0..5));
    let finals = [(HostId(2), false)].into();
    delivery.open(THIRD, HostId(2), &finals, 5);
    assert_eq!(delivery.due(THIRD), Some(0..5));
    assert_eq!(delivery.begins(THIRD), [].into());
}

#[test]
fn a_host_that_has_had_no_message_may_begin_earlier_after_all() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1]);
    (0..5).for_each(|number| delivery.publish(number));
    open(&mut delivery, SECOND, &[2]);
    // The host wants the history, too.
    let finals = [(HostId(2), true)].into();
    delivery.open(THIRD, HostId(2), &finals, 0);
    assert_eq!(delivery.begins(THIRD), [(HostId(2), 0)].into());
    assert_eq!(delivery.due(THIRD), Some(0..5));
    delivery.close(SECOND);
    delivery.confirmed(THIRD, HostId(2), 3);
    delivery.open(SECOND, HostId(2), &finals, 0);
    assert_eq!(delivery.begins(SECOND), [(HostId(2), 3)].into());
    assert_eq!(delivery.due(SECOND), Some(3..5));
}

#[test]
fn an_acknowledgement_of_a_host_between_confirms_nothing() {
    let mut delivery = Delivery::default();
    let finals = [(HostId(2), true)].into();
    delivery.open(FIRST, HostId(1), &finals, 0);
    delivery.publish(0);
    send(&mut delivery, FIRST);
    delivery.acknowledged(FIRST, 1);
    assert_eq!(delivery.retained(), 0);
    delivery.confirmed(FIRST, HostId(2), 1);
    assert_eq!(delivery.retained(), 1);
}

#[test]
fn what_no_flow_has_sent_is_retained_even_for_a_root() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1]);
    delivery.publish(7);
    assert_eq!((delivery.due(FIRST), delivery.retained()), (Some(0..8), 0));
    send(&mut delivery, FIRST);
    assert_eq!((delivery.due(FIRST), delivery.retained()), (None, 8));
}

#[test]
fn nothing_is_retained_for_best_effort_hosts_and_those_that_refuse() {
    let mut delivery = Delivery::default();
    let finals = [(HostId(2), true), (HostId(3), false)].into();
    delivery.open(FIRST, HostId(1), &finals, 0);
    delivery.publish(0);
    send(&mut delivery, FIRST);
    assert_eq!(delivery.retained(), 0);
    delivery.refused(FIRST, HostId(2));
    assert_eq!(delivery.retained(), 1);
    // It accepts the flow after all. A refusal of one flow does not count for another.
    delivery.confirmed(FIRST, HostId(2), 0);
    assert_eq!(delivery.retained(), 0);
    delivery.refused(FIRST, HostId(2));
    delivery.open(SECOND, HostId(4), &finals, 1);
    assert_eq!((delivery.due(SECOND), delivery.retained()), (Some(0..1), 0));
}

#[test]
fn what_a_link_left_out_or_its_host_refused_is_retained_for_nobody() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1, 2]);
    (0..3).for_each(|number| delivery.publish(number));
    delivery.sent(FIRST, 0, true);
    delivery.sent(FIRST, 1, false);
    delivery.sent(FIRST, 2, false);
    assert_eq!(delivery.retained(), 0);
    delivery.confirmed(FIRST, HostId(2), 1);
    assert_eq!(delivery.retained(), 3);
    delivery.publish(3);
    delivery.sent(FIRST, 3, true);
    assert_eq!(delivery.retained(), 1);
    delivery.refused(FIRST, HostId(1));
    assert_eq!(delivery.retained(), 4);
}

#[test]
fn messages_that_are_published_again_are_due_where_they_were_not() {
    let mut delivery = Delivery::default();
    open(&mut delivery, FIRST, &[1]);
    (5..8).for_each(|number| delivery.publish(number));
    send(&mut delivery, FIRST);
    // A host that wants older messages waits until they are published again.
    let finals = [(HostId(2), true)].into();
    delivery.open(SECOND, HostId(2), &finals, 0);
    assert_eq!(delivery.due(SECOND), None);
    delivery.publish(5);
    assert_eq!(
        (delivery.due(FIRST), delivery.due(SECOND)),
        (None, Some(0..6))
    );
    // A change of its route in between does not disturb that.
    let third = StreamId(3);
    delivery.open(third, HostId(3), &finals, 0);
    assert_eq!(delivery.due(third), Some(0..6));
    delivery.close(SECOND);
    // The user leaves these messages out, and publishes an older one again.
    delivery.sent(third, 5, false);
    assert_eq!((delivery.due(third), delivery.retained()), (None, 8));
    delivery.publish(3);
    assert_eq!(delivery.due(third), Some(3..4));
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
    // The later message has replaced the earlier one.
    assert_eq!(exchange([&mut one, &mut two], tables, NOW), [message(2)]);
    two.forget(HostId(0));
    one.send(HostId(1), confirm(3));
    let later = NOW + 2 * RESEND_AFTER;
    assert_eq!(exchange([&mut one, &mut two], tables, later), []);
    // `one` has got `Restarted` and dropped its queue; new messages arrive.
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
fn repeated_questions_for_interest_queue_one_end_of_it_behind_all_of_it() {
    let mut tables = [0, 1].map(|own| PathTable::new(life(own)));
    tables[0].link_up(life(1));
    tables[1].link_up(life(0));
    let (mut one, mut two) = (Channels::new(life(0)), Channels::new(life(1)));
    let interest = |topic: &str| ControlMessage::Interest {
        topic: topic.into(),
        want: None,
    };
    for topic in ["a", "b"] {
        one.send(HostId(1), interest(topic));
        for _ in 0..=CHANNEL_WINDOW {
            one.send(HostId(1), ControlMessage::InterestComplete);
        }
    }
    let expected = [
        interest("a"),
        interest("b"),
        ControlMessage::InterestComplete,
    ];
    let expected = expected.map(|message| ChannelEvent::Message(life(0), message));
    let tables = [&tables[0], &tables[1]];
    assert_eq!(exchange([&mut one, &mut two], tables, NOW), expected);
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
    // The first message is lost, and others follow it.
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
