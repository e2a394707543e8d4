//! `rgaps view`.

mod support;

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use support::{finish, interrupt, Realm, Run, LIMIT};

/// The document that the command prints when it listens.
fn listening(view: &mut Child) -> Value {
    let mut line = String::new();
    let mut lines = BufReader::new(view.stdout.as_mut().unwrap());
    lines.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn address(listening: &Value) -> SocketAddr {
    listening["address"].as_str().unwrap().parse().unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_page_shows_the_topics_until_ctrl_c() {
    let realm = Realm::new();
    realm.json(&["up"]);
    realm
        .run(&["topic", "pub", "kept", "--text", "x", "--transient-local"])
        .ok();
    let mut view = realm.spawn(&["view", "kept", "--listen", "0", "--json"]);
    let listening = listening(&mut view);
    assert_eq!(listening["needs_token"], false);
    let url = format!("http://{}/", address(&listening));
    assert_eq!(listening["url"], url);
    assert!(listening["foxglove"]
        .as_str()
        .unwrap()
        .contains("ds=foxglove-websocket"));
    let state = get(address(&listening), "/state.json");
    assert!(state.starts_with("HTTP/1.1 200"), "{state}");
    let state: Value = serde_json::from_str(state.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(state["topics"][0]["topic"], "kept");

    let taken = address(&listening).to_string();
    let error = realm.run(&["view", "--listen", &taken]).fails_with(1);
    assert!(
        error.contains("is in use") && error.contains("--listen"),
        "{error}"
    );
    interrupt(&view);
    assert_eq!(finish(view).code, 0);
}

#[test]
fn a_token_is_read_from_a_file() {
    let realm = Realm::new();
    realm.json(&["up"]);
    std::fs::write(realm.path("token"), "0123456789abcdef\n").unwrap();
    let mut view = realm.spawn(&["view", "--listen", "0", "--token-file", "token", "--json"]);
    let listening = listening(&mut view);
    assert_eq!(listening["needs_token"], true);
    let refused = get(address(&listening), "/state.json");
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let state = get(address(&listening), "/state.json?token=0123456789abcdef");
    assert!(state.starts_with("HTTP/1.1 200"), "{state}");
    interrupt(&view);
    assert_eq!(finish(view).code, 0);
}

/// The printed address has neither the token nor a name for other hosts, so the text must say what to put there.
#[test]
fn an_address_for_others_says_what_to_put_into_it() {
    let realm = Realm::new();
    realm.json(&["up"]);
    std::fs::write(realm.path("token"), "0123456789abcdef\n").unwrap();
    let mut view = realm.spawn(&["view", "--listen", "0.0.0.0:0", "--token-file", "token"]);
    let mut lines = BufReader::new(view.stdout.take().unwrap()).lines();
    let mut said = String::new();
    while !said.ends_with("Ctrl-C ends it") {
        said += "\n";
        said += &lines.next().expect("more").unwrap();
    }
    assert!(said.contains("TOKEN stands for the token"), "{said}");
    assert!(said.contains("use this host's name"), "{said}");
    interrupt(&view);
    assert_eq!(finish(view).code, 0);
}

#[test]
fn what_cannot_be_shown_is_an_error() {
    let realm = Realm::new();
    let error = realm.run(&["view", "--listen", "0"]).fails_with(3);
    assert!(error.contains("no daemon answers"), "{error}");
    realm.json(&["up"]);
    let error = realm.run(&["view", "--listen", "0.0.0.0:0"]).fails_with(2);
    assert!(error.contains("--token-file"), "{error}");
    let mut short = realm.command(&["view", "--listen", "0"]);
    short.env("RGAPS_VIEW_TOKEN", "short");
    let error = Run::from(short.output().unwrap()).fails_with(2);
    assert!(!error.contains("no effect"), "{error}");
    assert!(error.contains("16 characters"), "{error}");
    let error = realm
        .run(&["view", "--listen", "0", "--token-file", "none"])
        .fails_with(1);
    assert!(error.contains("cannot be read from none"), "{error}");
}
