//! A host whose links speak another version of the protocol between hosts, as an older or newer build would.
#![forbid(unsafe_code)]
mod support;

use rgaps::{PeerRow, PeerState};
use rgaps_links::keys::{HostLife, HostToken, PLANE_VERSION};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use support::{ports, until, wait_for_subscribers, Host, LIMIT};
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

const REALM: &str = "default";

fn links(at: usize, ports: &[u16]) -> String {
    format!(
        "host = \"host-{at}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
         connect = [\"tcp/127.0.0.1:{}\"]\n",
        ports[at],
        ports[1 - at]
    )
}

/// Joins the control plane of a host, without links.
fn on_the_plane(port: u16) -> Session {
    let mut config = zenoh::Config::default();
    for (key, value) in [
        ("mode", "\"peer\"".to_owned()),
        ("connect/endpoints", format!("[\"tcp/127.0.0.1:{port}\"]")),
        ("scouting/multicast/enabled", "false".to_owned()),
    ] {
        config.insert_json5(key, &value).unwrap();
    }
    zenoh::open(config).wait().unwrap()
}

/// The life of the host's links, as its token says.
fn life(session: &Session) -> HostLife {
    let mut found = None;
    until("the host's token", || {
        let tokens = session.liveliness().get(format!("rgaps/{REALM}/node/**"));
        let replies = tokens.timeout(Duration::from_secs(2)).wait().unwrap();
        while let Ok(reply) = replies.recv() {
            let Ok(sample) = reply.result() else { continue };
            match HostToken::parse(REALM, sample.key_expr().as_str()) {
                Some(token) if token.node.host == "host-0" => found = Some(token.node),
                _ => {}
            }
        }
        found.is_some()
    });
    found.unwrap()
}

/// Asks the host for its address in this version. Returns the answer.
fn asked(session: &Session, host: &HostLife, version: u32) -> String {
    let mut answer = None;
    until("an answer", || {
        let question = postcard::to_stdvec(&(version, "host-1", 9u64)).unwrap();
        let replies = session.get(host.address_key(REALM)).payload(question);
        let replies = replies.timeout(Duration::from_secs(2)).wait().unwrap();
        let reply = replies.recv_timeout(LIMIT).ok().flatten();
        let sample = reply.and_then(|reply| reply.into_result().ok());
        answer = sample.map(|sample| sample.payload().to_bytes().into_owned());
        answer.is_some()
    });
    String::from_utf8_lossy(&answer.unwrap()).into_owned()
}

#[test]
fn a_host_of_another_version_is_refused_with_both_named_until_it_has_the_same() {
    let ports = ports(2);
    let host = Host::start("host-0", &links(0, &ports));
    let node = host.node("looks");
    let publisher = node.publisher("t").create().unwrap();
    let other = PLANE_VERSION + 1;
    let session = on_the_plane(ports[0]);
    let stranger = HostToken {
        node: HostLife {
            host: "host-1".to_owned(),
            incarnation: 9,
        },
        protocol: other,
    };
    let token = session.liveliness().declare_token(stranger.key(REALM));
    let token = token.wait().unwrap();
    let both = [
        format!("version {other} "),
        format!("version {PLANE_VERSION}"),
    ];
    let peer = || -> Option<PeerRow> { node.peers().ok()?.peers.into_iter().next() };
    until("the host to be refused", || {
        peer().is_some_and(|peer| peer.state == PeerState::Refused)
    });
    let row = peer().unwrap();
    assert_eq!((row.host.as_str(), row.protocol), ("host-1", other));
    for version in &both {
        assert!(row.detail.contains(version), "{}", row.detail);
    }
    // The other host gets the same reason, and neither address nor secret.
    let answer = asked(&session, &life(&session), other);
    for version in &both {
        assert!(answer.contains(version), "{answer}");
    }
    // The other host gets no lanes.
    let row = peer().unwrap();
    assert_eq!((row.lanes, row.topics_out), (0, 0));

    drop(token);
    session.close().wait().unwrap();
    let same = Host::start("host-1", &links(1, &ports));
    host.wait_for_peers(1);
    let there = same.node("there");
    let _subscriber = there.subscriber("t").create().unwrap();
    wait_for_subscribers(&publisher, 1);
}

/// In Zenoh, a host's token may be present while its answers never arrive (Zenoh's issue 1886).
#[test]
fn a_host_that_never_answers_is_asked_in_another_session() {
    let ports = ports(2);
    let host = Host::start("host-0", &links(0, &ports));
    let node = host.node("looks");
    let session = on_the_plane(ports[0]);
    let other = HostLife {
        host: "host-1".to_owned(),
        incarnation: 9,
    };
    let tokens = Arc::new(AtomicU32::new(0));
    let (seen, answers) = (tokens.clone(), tokens.clone());
    let life = life(&session);
    let _watch = session
        .liveliness()
        .declare_subscriber(
            HostToken {
                node: life,
                protocol: PLANE_VERSION,
            }
            .key(REALM),
        )
        .history(true)
        .callback(move |sample| {
            if sample.kind() == SampleKind::Put {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        })
        .wait()
        .unwrap();
    let key = other.address_key(REALM);
    let _answers = session
        .declare_queryable(key.clone())
        .callback(move |query| {
            // Questions of the first session get no answer.
            if answers.load(Ordering::Relaxed) > 1 {
                let refusal = postcard::to_stdvec(&(1u8, "host-1 is only a test")).unwrap();
                query.reply(&key, refusal).wait().unwrap();
            }
        })
        .wait()
        .unwrap();
    let token = HostToken {
        node: other,
        protocol: PLANE_VERSION,
    };
    let _token = session
        .liveliness()
        .declare_token(token.key(REALM))
        .wait()
        .unwrap();
    until("an answer in another session", || {
        let peers = node.peers().unwrap().peers;
        peers
            .iter()
            .any(|peer| peer.detail.contains("host-1 is only a test"))
    });
    assert_eq!(
        tokens.load(Ordering::Relaxed),
        2,
        "the same life came again"
    );
}
