//! The fuzz target of what hosts say to each other with seeded changes of a corpus; with libFuzzer by `make fuzz`.
#![forbid(unsafe_code)]
#[path = "../../../fuzz/control.rs"]
mod control;
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

use rgaps::tensor::strided;
use rgaps::{DType, History};
use rgaps_client::links::{Demand, Metadata, Offer};
use rgaps_links::keys::{Node, Token, Want, PLANE_VERSION};
use rgaps_links::wire::{Flow, FlowDescription, Meta, Said, Wants};

/// Tokens, a question, what is said over a link, and descriptions; `fuzz/corpus` has answers.
fn seeds() -> Vec<Vec<u8>> {
    let node = Node {
        host: "robot-1".to_owned(),
        incarnation: 0xfeed,
    };
    let demand = Demand {
        reliable: true,
        transient_local: true,
        depth: 3,
    };
    let want = Want {
        subscribers: 2,
        demand,
    };
    let topic = "camera/left".to_owned();
    let tokens = [
        Token::Node(node.clone(), PLANE_VERSION),
        Token::Want(node, topic.clone(), want),
    ];
    let said = [
        Said::Update(9, Err("no network card".to_owned()), vec!["d".to_owned()]),
        Said::Ways(vec![vec!["b".to_owned(), "c".to_owned()]]),
        Said::Ask(vec!["c".to_owned()]),
        Said::Wants(Wants {
            host: "c".to_owned(),
            first: true,
            last: true,
            wants: vec![(topic.clone(), Some(want)), ("gone".to_owned(), None)],
        }),
        Said::Reached(9, "c".to_owned(), Ok(())),
        Said::Passed(vec![(
            Flow {
                topic: 9,
                incarnation: 5,
            },
            7,
        )]),
        Said::Wanting(9),
        Said::Written(9, Err("no network card".to_owned())),
    ];
    let mut metadata = Metadata::EMPTY;
    assert!(metadata.set_attachment(b"an attachment", false));
    let meta = Meta {
        bytes: 48,
        tag: u64::MAX,
        published_ns: 7,
        tensor: Some(strided(DType::F32, &[3, 2, 2], &[4, 2, 1]).unwrap()),
        metadata,
    };
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
        way: vec!["a".to_owned(), "b".to_owned()],
        carry: vec!["d".to_owned()],
        history: 3,
        read: Err("no network card".to_owned()),
    };
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let mut all = Vec::new();
    all.extend(tokens.map(|token| of(0, token.key("lab").as_bytes())));
    all.extend(said.map(|said| of(3, &said.encode().unwrap())));
    // A question's fields, one after the other.
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
