//! Topics of the server's host: what clients publish and receive, what the server refuses, and what it cleans up when a client
//! vanishes.

use super::support::Realm;
use super::{allocate, open, serve, until, Process, HERE};
use rgaps_remoting::{
    Call, CallAnswer, CallValue, Code, Endpoint, ServerConnection, Tensor, TopicOptions,
};
use serde_json::Value as Json;
use std::sync::Arc;

/// Creates a realm with `lines` in its configuration, and starts a server in it.
fn realm(lines: &str, has_daemon: bool) -> (Realm, Process, Endpoint) {
    let realm = Realm::new();
    let file = realm.path("rgaps.toml");
    let socket = realm.path("r.sock").display().to_string();
    let text =
        format!("socket = \"{socket}\"\nautostart = false\n{lines}[gpu]\ntopics = [\"t/**\"]\n");
    std::fs::write(&file, text).unwrap();
    if has_daemon {
        let mut up = realm.command(&["up"]);
        up.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
        assert!(up.status().unwrap().success());
    }
    let listen = format!("unix:{}", realm.path("gpu.sock").display());
    let options = ["--config", file.to_str().unwrap(), "--listen", &listen];
    let (server, _) = serve(realm.folder.path(), &options);
    let at = listen.parse().unwrap();
    (realm, server, at)
}

fn ask(client: &ServerConnection, call: &Call<'_>) -> CallAnswer {
    client.call(HERE, call, &[]).unwrap()
}

/// Makes a call that the server refuses. Returns its code and its reason.
fn refused(client: &ServerConnection, call: &Call<'_>) -> (Code, String) {
    let answer = ask(client, call);
    match answer.value {
        CallValue::Text(reason) => (Code(answer.code), reason),
        other => panic!("{}: {other:?}", answer.code),
    }
}

fn publisher(topic: &str) -> Call<'_> {
    Call::TopicPublisher {
        publisher: 1,
        topic,
        options: TopicOptions::default(),
    }
}

/// A client with a publisher, a subscriber and a received message that it holds. Also returns the message's address.
fn holder(at: &Endpoint) -> (Arc<ServerConnection>, u64) {
    let client = open(at, "holder").unwrap();
    let bytes = 4096;
    let from = allocate(&client, bytes);
    let fill = vec![7; bytes as usize];
    client
        .send(
            HERE,
            &Call::CopyIn {
                to: from,
                stream: 0,
            },
            &fill,
        )
        .unwrap();
    assert_eq!(ask(&client, &publisher("t/held")).code, 0);
    let subscriber = Call::TopicSubscriber {
        subscriber: 2,
        topic: "t/held",
        options: TopicOptions {
            is_reliable: true,
            ..TopicOptions::default()
        },
    };
    assert_eq!(ask(&client, &subscriber).code, 0);
    let publish = Call::TopicPublish {
        publisher: 1,
        from,
        bytes,
        tensor: Some(Tensor {
            dtype: "uint8".to_owned(),
            shape: vec![64, 64],
        }),
        stream: 0,
    };
    assert_eq!(ask(&client, &publish).value, CallValue::Number(0));
    let receive = Call::TopicReceive {
        subscriber: 2,
        message: 3,
        timeout_ns: 30_000_000_000,
        stream: 0,
    };
    let address = match ask(&client, &receive).value {
        CallValue::Message {
            address,
            bytes: 4096,
            sequence: 0,
            missed: 0,
            tensor: Some(Tensor { dtype, shape }),
        } if dtype == "uint8" && shape == [64, 64] => address,
        other => panic!("{other:?}"),
    };
    (client, address)
}

fn read(client: &ServerConnection, from: u64, bytes: usize) -> (i32, Vec<u8>) {
    let mut back = vec![0; bytes];
    let call = Call::CopyOut {
        from,
        bytes: bytes as u64,
        stream: 0,
    };
    // SAFETY: `back` is a local vector of this length, and `call_out` returns only when it has written.
    let answer = unsafe { client.call_out(HERE, &call, back.as_mut_ptr(), bytes) };
    (answer.unwrap().code, back)
}

#[test]
fn a_message_may_be_read_and_nothing_beside_it() {
    let (_realm, _server, at) = realm("", true);
    let (client, address) = holder(&at);
    assert_eq!(read(&client, address, 4096), (0, vec![7; 4096]));
    assert_eq!(read(&client, address + 4095, 1), (0, vec![7]));
    for (from, bytes) in [(address + 4096, 1), (address, 4097), (address - 1, 1)] {
        assert_eq!(read(&client, from, bytes).0, Code::INVALID_VALUE.0);
    }
    let to_message = Call::Copy {
        to: address,
        from: address,
        bytes: 1,
        stream: 0,
    };
    assert_eq!(ask(&client, &to_message).code, Code::INVALID_VALUE.0);
    let free = Call::Free { address };
    assert_eq!(ask(&client, &free).code, Code::INVALID_VALUE.0);
    let release = Call::TopicRelease {
        message: 3,
        stream: 0,
    };
    assert_eq!(ask(&client, &release).code, 0);
    assert_eq!(ask(&client, &release).code, Code::INVALID_HANDLE.0);
    assert_eq!(read(&client, address, 1).0, Code::INVALID_VALUE.0);
}

#[test]
fn a_client_that_vanishes_releases_what_it_holds() {
    let (realm, _server, at) = realm("", true);
    let (client, _) = holder(&at);
    let members = |role: &str| {
        let info = realm.run(&["topic", "info", "t/held", "--json"]);
        let info: Json = serde_json::from_str(&info.stdout).unwrap_or_default();
        info[role].as_u64().unwrap_or(0)
    };
    assert_eq!((members("publishers"), members("subscribers")), (1, 1));
    assert_eq!(members("held"), 1);
    client.close();
    until("the topic has no members", || {
        members("publishers") + members("subscribers") == 0
    });
    // The next client finds nothing of the vanished one in the topic.
    holder(&at);
}

#[test]
fn rules_of_the_host_apply() {
    let rule = "[[access]]\nname = \"theirs\"\ntopics = [\"t/theirs\"]\nusers = [12345]\n";
    let (_realm, _server, at) = realm(rule, true);
    let client = open(&at, "test").unwrap();
    let (code, reason) = refused(&client, &publisher("other"));
    assert_eq!(code, Code::NOT_PERMITTED);
    assert!(reason.contains("gpu.topics"), "{reason}");
    let (code, reason) = refused(&client, &publisher("t/theirs"));
    assert_eq!(code, Code::NOT_PERMITTED);
    assert!(reason.contains("t/theirs"), "{reason}");
    assert_eq!(ask(&client, &publisher("/t/ours")).code, 0);
    // The client already uses this number.
    assert_eq!(
        refused(&client, &publisher("t/ours")).0,
        Code::OUT_OF_MEMORY
    );
}

#[test]
fn without_a_daemon_the_reason_is_told() {
    let (_realm, _server, at) = realm("", false);
    let client = open(&at, "test").unwrap();
    let (code, reason) = refused(&client, &publisher("t/x"));
    assert_eq!(code, Code::SYSTEM_NOT_READY);
    assert!(reason.contains("rgaps up"), "{reason}");
    super::works(&client);
}

#[test]
fn wrong_numbers_are_refused() {
    let (_realm, _server, at) = realm("", true);
    let (client, address) = holder(&at);
    let publish = |publisher, from, bytes, stream| Call::TopicPublish {
        publisher,
        from,
        bytes,
        tensor: None,
        stream,
    };
    let receive = |subscriber, stream| Call::TopicReceive {
        subscriber,
        message: 9,
        timeout_ns: 0,
        stream,
    };
    for (call, wanted) in [
        (publish(2, address, 1, 0), Code::INVALID_HANDLE),
        (publish(9, address, 1, 0), Code::INVALID_HANDLE),
        (publish(1, address, 1, 99), Code::INVALID_HANDLE),
        (publish(1, address, 4097, 0), Code::INVALID_VALUE),
        (publish(1, 5, u64::MAX, 0), Code::INVALID_VALUE),
        (receive(1, 0), Code::INVALID_HANDLE),
        (receive(9, 0), Code::INVALID_HANDLE),
        (receive(2, 99), Code::INVALID_HANDLE),
        (Call::TopicLeave { member: 9 }, Code::INVALID_HANDLE),
    ] {
        assert_eq!(Code(ask(&client, &call).code), wanted, "{call:?}");
    }
    assert_eq!(refused(&client, &receive(2, 0)).0, Code::NOT_READY);
    // A message without bytes needs no memory.
    let (second, _) = holder(&at);
    assert_eq!(
        second.call(HERE, &publish(1, 0, 0, 0), &[]).unwrap().code,
        0
    );
}
