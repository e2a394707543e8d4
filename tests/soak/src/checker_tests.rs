//! The checker sees what it is there for.

use super::*;
use crate::report::Tally;

/// A subscriber on the first host, a publisher there, and one on the second.
const READER: u32 = 1;
const HERE: u32 = 2;
const THERE: u32 = 3;
const COUNT: u64 = 20;

fn checker() -> Checker {
    let mut checker = Checker::default();
    for (id, host) in [(HERE, 0), (THERE, 1)] {
        let publisher = Publisher {
            name: format!("pub-{id}"),
            host,
            topic: 0,
            lives: true,
            published: Published {
                begun: COUNT,
                done: COUNT,
                at_finish: COUNT,
            },
        };
        checker.publishers.insert(id, publisher);
    }
    let wish = Wish {
        reliable: true,
        depth: None,
        late: false,
    };
    let reader = Subscriber::new("sub-1".to_owned(), 0, 0, wish);
    checker.subscribers.insert(READER, reader);
    checker.record(READER, Some(Record::Ready));
    checker
}

fn message(publisher: u32, sequence: u64) -> Message {
    Message {
        content: Content::Whole,
        publisher,
        sequence,
        missed: 0,
        missed_in_all: 0,
        from: publisher.into(),
        bytes: 10,
    }
}

/// What the checker says of these messages, and of all of the publishers' that are left out of them.
fn tally(messages: &[Message]) -> Tally {
    let mut checker = checker();
    for message in messages {
        checker.record(READER, Some(Record::Message(*message)));
    }
    for id in [HERE, THERE] {
        if messages.iter().all(|message| message.publisher != id) {
            let mut all = (0..COUNT).map(|sequence| message(id, sequence));
            all.by_ref()
                .for_each(|message| checker.record(READER, Some(Record::Message(message))));
        }
    }
    for what in checker.behind() {
        checker.report.stuck("end", what);
    }
    checker.finish();
    checker.report.tally
}

fn all_of(publisher: u32) -> Vec<Message> {
    (0..COUNT)
        .map(|sequence| message(publisher, sequence))
        .collect()
}

#[test]
fn all_messages_in_order_are_clean() {
    let tally = tally(&[all_of(HERE), all_of(THERE)].concat());
    assert!(tally.is_clean(), "{tally:?}");
    assert_eq!((tally.messages, tally.bytes), (2 * COUNT, 20 * COUNT));
}

#[test]
fn changed_bytes_are_corrupt() {
    let mut messages = all_of(HERE);
    messages[7].content = Content::Wrong;
    let tally = tally(&messages);
    assert_eq!((tally.corrupt, tally.lost_untold), (1, 0));
}

#[test]
fn bytes_that_change_while_they_are_held_are_corrupt_once() {
    let mut messages = all_of(HERE);
    let changed = Message {
        content: Content::Wrong,
        ..messages[7]
    };
    messages.insert(10, changed);
    let tally = tally(&messages);
    assert_eq!((tally.corrupt, tally.duplicate), (1, 0));
}

#[test]
fn a_message_of_nobody_is_corrupt() {
    let mut messages = all_of(HERE);
    messages.push(message(77, 3));
    assert_eq!(tally(&messages).corrupt, 1);
}

#[test]
fn messages_that_change_places_are_corrupt() {
    let mut messages = all_of(HERE);
    messages.swap(5, 6);
    assert!(tally(&messages).corrupt > 0);
}

#[test]
fn a_message_that_comes_twice_is_a_duplicate_also_in_another_stream() {
    for from in [HERE, 99] {
        let mut messages = all_of(HERE);
        let again = Message {
            from: from.into(),
            ..messages[4]
        };
        messages.push(again);
        let tally = tally(&messages);
        assert_eq!((tally.duplicate, tally.corrupt), (1, 0));
    }
}

#[test]
fn a_message_that_is_left_out_is_lost_untold_unless_missed_tells() {
    for publisher in [HERE, THERE] {
        let mut messages = all_of(publisher);
        messages.drain(5..8);
        assert_eq!(tally(&messages).lost_untold, 3);
        messages[5].missed = 3;
        assert!(tally(&messages).is_clean());
        messages[5].missed = 1;
        assert_eq!(tally(&messages).lost_untold, 2);
        // More than were missed is as wrong.
        messages[5].missed = 5;
        assert_eq!(tally(&messages).lost_untold, 2);
    }
}

#[test]
fn the_first_messages_of_a_publisher_here_are_lost_untold() {
    let mut messages = all_of(HERE);
    messages.drain(..2);
    assert_eq!(tally(&messages).lost_untold, 2);
    messages[0].missed = 2;
    assert!(tally(&messages).is_clean());
    // Between hosts, the window begins with the first message.
    let messages = &all_of(THERE)[2..];
    assert!(tally(messages).is_clean());
}

#[test]
fn who_joined_later_has_lost_nothing_of_before() {
    let mut checker = checker();
    let joined = Record::Joined {
        publisher: HERE,
        done: 4,
        begun: 5,
    };
    checker.record(READER, Some(joined));
    for message in &all_of(HERE)[5..] {
        checker.record(READER, Some(Record::Message(*message)));
    }
    checker.finish();
    assert_eq!(checker.report.tally.lost_untold, 0);
}

#[test]
fn what_a_subscriber_had_still_to_read_of_one_stream_when_it_died_is_not_lost() {
    // It reads two streams in turns: 0 to 9 and 12 to 19. 10 and 11 were in the first one.
    let mut messages: Vec<_> = (0..8).map(|at| message(THERE, at)).collect();
    for at in [12, 8, 13, 9] {
        let from = if at >= 12 { 99 } else { THERE.into() };
        messages.push(Message {
            from,
            ..message(THERE, at)
        });
    }
    for (lives, lost) in [(false, 0), (true, 2)] {
        let mut checker = checker();
        for message in &messages {
            checker.record(READER, Some(Record::Message(*message)));
        }
        checker.subscribers.get_mut(&READER).unwrap().lives = lives;
        checker.finish();
        assert_eq!(checker.report.tally.lost_untold, lost, "lives: {lives}");
    }
    // Nor does dying excuse a gap between streams of which the first had ended.
    let mut messages: Vec<_> = (0..10).map(|at| message(THERE, at)).collect();
    messages.extend((12..15).map(|at| Message {
        from: 99,
        ..message(THERE, at)
    }));
    let mut checker = checker();
    for message in &messages {
        checker.record(READER, Some(Record::Message(*message)));
    }
    checker.subscribers.get_mut(&READER).unwrap().lives = false;
    checker.finish();
    assert_eq!(checker.report.tally.lost_untold, 2);
}

#[test]
fn a_gap_between_two_lives_of_links_is_lost_untold_unless_missed_tells() {
    let mut messages = all_of(THERE);
    messages.drain(5..8);
    messages[5..]
        .iter_mut()
        .for_each(|message| message.from = 99);
    assert_eq!(tally(&messages).lost_untold, 3);
    messages[5].missed = 3;
    assert!(tally(&messages).is_clean());
}

#[test]
fn messages_of_two_lives_of_links_may_come_in_turns() {
    let mut messages = all_of(THERE);
    messages[10..]
        .iter_mut()
        .for_each(|message| message.from = 99);
    messages[5..15].rotate_left(5);
    assert!(tally(&messages).is_clean());
}

#[test]
fn an_aborted_message_is_told() {
    let mut messages = all_of(THERE);
    messages[5].content = Content::Aborted;
    assert!(tally(&messages).is_clean());
    // Whole after all.
    let again = Message {
        from: 99,
        ..message(THERE, 5)
    };
    messages.insert(6, again);
    assert!(tally(&messages).is_clean());
}

#[test]
fn who_does_not_come_to_the_end_is_stuck() {
    let messages = &all_of(HERE)[..COUNT as usize - 1];
    let tally = tally(messages);
    assert_eq!((tally.stuck, tally.lost_untold), (1, 0));
}

#[test]
fn the_last_messages_of_a_publisher_that_died_here_are_lost_untold() {
    let mut checker = checker();
    checker.publishers.get_mut(&HERE).unwrap().lives = false;
    for message in &all_of(HERE)[..15] {
        checker.record(READER, Some(Record::Message(*message)));
    }
    checker.finish();
    assert_eq!(checker.report.tally.lost_untold, 5);
}
