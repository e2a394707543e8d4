//! Runs the fuzz target for messages between hosts with seeded changes of a corpus. `make fuzz` runs it with libFuzzer.
#![forbid(unsafe_code)]
#[path = "../../../fuzz/control.rs"]
mod control;
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

use rgaps::tensor::strided;
use rgaps::{DType, History};
use rgaps_client::links::{Metadata, Offer};
use rgaps_links::keys::{HostLife, HostToken, PLANE_VERSION};
use rgaps_links::wire::{FlowDescription, LinkMessage, MessageDescription, Takes, Tree};
use rgaps_routing::{ChannelEnd, ControlMessage, Datagram, HostId, Life, Segment};

/// A datagram with some messages of a control channel.
fn datagram(topic: &str) -> Datagram {
    let end = |host| ChannelEnd {
        life: Life {
            host: HostId(host),
            incarnation: 0xfeed,
        },
        number: 1,
    };
    let interest = |want| ControlMessage::Interest {
        topic: topic.into(),
        want,
    };
    Datagram {
        path: vec![HostId(7), HostId(8)],
        segment: Segment {
            from: end(9),
            to: Some(end(8)),
            acknowledged: 4,
            first: 5,
            messages: vec![
                ControlMessage::Ask,
                interest(Some([2, 1, 1, 3].into())),
                interest(None),
                ControlMessage::InterestComplete,
            ],
        },
    }
}

/// A token, a question, control messages of a link, and descriptions. `fuzz/corpus` has answers.
fn seeds() -> Vec<Vec<u8>> {
    let node = HostLife {
        host: "robot-1".to_owned(),
        incarnation: 0xfeed,
    };
    let protocol = PLANE_VERSION;
    let token = HostToken {
        node: node.clone(),
        protocol,
    };
    let topic = "camera/left".to_owned();
    let said = [
        LinkMessage::Paths(vec![vec![node.clone(), node]]),
        LinkMessage::Datagram(datagram(&topic)),
        LinkMessage::Broken(9, "c".to_owned()),
        LinkMessage::Written(9, Err("no network card".to_owned())),
    ];
    let mut metadata = Metadata::EMPTY;
    assert!(metadata.set_attachment(b"an attachment", false));
    let meta = MessageDescription {
        bytes: 48,
        tag: u64::MAX,
        published_ns: 7,
        tensor: Some(strided(DType::F32, &[3, 2, 2], &[4, 2, 1]).unwrap()),
        metadata,
    };
    let mut tree = Tree::new("c");
    tree.add(&["d".to_owned()], Takes::Reliable);
    let flow = FlowDescription {
        publisher: 5,
        topic,
        offer: Offer {
            history: History::KeepLast(3),
            reliable: true,
            transient_local: false,
            loans: 1,
        },
        type_name: "image".to_owned(),
        via: vec!["a".to_owned(), "b".to_owned()],
        tree,
        history: 3,
        begins: [(HostId(7), 200)].into(),
        read: Err("no network card".to_owned()),
    };
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let mut all = Vec::new();
    all.push(of(0, token.key("lab").as_bytes()));
    all.extend(said.map(|said| of(3, &said.encode())));
    // The fields of a question, in their order.
    let question = (PLANE_VERSION, "robot-1", 0xfeed_u64);
    all.push(of(1, &postcard::to_stdvec(&question).unwrap()));
    all.push(of(4, &meta.encode()));
    all.push(of(5, &flow.encode()));
    all
}

#[test]
fn what_hosts_say_is_taken_for_what_it_is() {
    let reply = include_bytes!("../../../fuzz/corpus/control/reply").to_vec();
    for said in seeds().iter().chain([&reply]) {
        assert!(control::control(said), "{said:?}");
    }
}

#[test]
fn control() {
    let check = |data: &[u8]| {
        control::control(data);
    };
    seeded::run("control", seeds(), check, 20_000);
}
