//! Hosts that prove their identity, and hosts that cannot.
#![forbid(unsafe_code)]
#[path = "support/authority.rs"]
mod authority;
mod support;

use authority::{files, links, links_to, Authority};
use rgaps::PeerState;
use rgaps_client::links::Links;
use rgaps_connection::{Security, Tls, TlsFiles};
use rgaps_links::control_plane::{random_u64, ControlPlane, PlaneEvent};
use rgaps_links::keys::HostLife;
use rgaps_transport::machine::BufferReply;
use rgaps_transport::{
    Endpoint, EndpointConfig, FlowId, FlowReceiver, LaneKey, LinkConfig, LinkEvent, LinkRuntime,
    LinkUser, Peer,
};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use support::{content, ports, receive, until, wait_for_subscribers, Host, LIMIT, LOOK_AGAIN};

#[test]
fn junk_on_the_control_port_delays_no_host_for_long() {
    let authority = Authority::new();
    let ports = ports(2);
    let more = |name: &str| files(&authority.ca(), &authority.certify(name));
    // Only the second host knows of the first.
    let first = Host::start(
        "host-a",
        &links_to("host-a", "tls", ports[0], &[], &more("host-a")),
    );
    let connect = || TcpStream::connect(("127.0.0.1", ports[0]));
    until("a control port", || connect().is_ok());
    let idle: Vec<TcpStream> = (0..500).map(|_| connect().unwrap()).collect();
    for _ in 0..1500 {
        // The host may close the connection before this writes.
        let _ = connect().unwrap().write_all(&[0xff; 64]);
    }
    let begun = Instant::now();
    let second = links("host-b", "tls", ports[1], ports[0], &more("host-b"));
    let second = Host::start("host-b", &second);
    second.wait_for_peers(1);
    println!("linked after {:?}", begun.elapsed());
    drop((idle, first));
}

#[test]
fn topics_cross_between_hosts_that_prove_who_they_are() {
    const SIZES: [usize; 5] = [0, 100, 70_000, 3_000_000, 9_345_678];
    let authority = Authority::new();
    let ports = ports(2);
    let start = |name: &str, own: usize| {
        let more = files(&authority.ca(), &authority.certify(name));
        Host::start(name, &links(name, "tls", ports[own], ports[1 - own], &more))
    };
    let hosts = [start("host-a", 0), start("host-b", 1)];
    let nodes = [hosts[0].node("member"), hosts[1].node("member")];
    let topics = ["from/a", "from/b"];
    let publishers = [0, 1].map(|at| {
        let publisher = nodes[at].publisher(topics[at]).deadline(LIMIT);
        publisher.create().unwrap()
    });
    let subscribers = [0, 1].map(|at| {
        let subscriber = nodes[at].subscriber(topics[1 - at]).reliable();
        subscriber.create().unwrap()
    });
    for publisher in &publishers {
        wait_for_subscribers(publisher, 1);
    }
    for (at, publisher) in publishers.iter().enumerate() {
        for (number, bytes) in SIZES.into_iter().enumerate() {
            publisher
                .put(&content((10 * at + number) as u64, bytes))
                .unwrap();
        }
    }
    for (at, subscriber) in subscribers.iter().enumerate() {
        for (number, bytes) in SIZES.into_iter().enumerate() {
            let sample = receive(subscriber);
            let expected = content((10 * (1 - at) + number) as u64, bytes);
            assert!(sample.as_slice().unwrap() == expected, "{bytes} bytes");
        }
    }
    for (at, node) in nodes.iter().enumerate() {
        let remote = node.topic(topics[at]).unwrap().remote;
        assert!(remote[0].path.contains("tcp with TLS"), "{remote:?}");
        until("nothing that is not reached", || {
            node.peers().unwrap().not_reached.is_empty()
        });
    }
}

#[test]
fn hosts_of_different_realms_say_so() {
    let ports = ports(2);
    let start = |name: &str, realm: &str, own: usize| {
        let links = links(name, "tcp", ports[own], ports[1 - own], "");
        Host::start_in_realm(realm, name, &links)
    };
    let hosts = [start("host-a", "lab", 0), start("host-b", "field", 1)];
    for (host, says) in hosts.iter().zip([
        "host 'host-b' is of realm 'field', and this host of realm 'lab'",
        "host 'host-a' is of realm 'lab', and this host of realm 'field'",
    ]) {
        let node = host.node("peers");
        until("the reason", || {
            let peers = node.peers().unwrap_or_default();
            assert_eq!(peers.peers, []);
            let mut rows = peers.not_reached.iter();
            rows.any(|row| row.reason.starts_with(says))
        });
    }
}

/// Checks that a stranger gets no messages that `host-a` sends to `host-c`. `rgaps peers` of `host-a` and of the stranger gives the
/// reasons `why_here` and `why_there`.
fn gets_nothing(stranger: &str, protocol: &str, why_here: &str, why_there: &str) {
    let authority = Authority::new();
    let ports = ports(3);
    let member = |name: &str, own: u16, others: &[u16]| {
        let more = files(&authority.ca(), &authority.certify(name));
        Host::start(name, &links_to(name, "tls", own, others, &more))
    };
    let here = member("host-a", ports[0], &ports[1..]);
    let friend = member("host-c", ports[2], &ports[..1]);
    let there = Host::start(
        "host-b",
        &links("host-b", protocol, ports[1], ports[0], stranger),
    );
    let (a, b) = (here.node("publisher"), there.node("subscriber"));
    let c = friend.node("friend");
    let subscriber = b.subscriber("secret").reliable().create().unwrap();
    let friends = c.subscriber("secret").reliable().create().unwrap();
    let publisher = a.publisher("secret").deadline(LIMIT).create().unwrap();
    for (node, why) in [(&a, why_here), (&b, why_there)] {
        let said = Mutex::new(Vec::new());
        let tells = || {
            let peers = node.peers().unwrap_or_default();
            let mut rows = peers.not_reached.iter();
            let tells = rows.any(|row| row.reason.contains(why));
            *said.lock().unwrap() = peers.not_reached;
            tells
        };
        let begun = Instant::now();
        while !tells() {
            let said = said.lock().unwrap();
            assert!(
                begun.elapsed() < LIMIT,
                "waited for '{why}' in 'rgaps peers': {said:?}"
            );
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    wait_for_subscribers(&publisher, 1);
    // Messages reach the member, and nobody else.
    for _ in 0..20 {
        publisher.put(b"secret").unwrap();
        assert_eq!(receive(&friends).as_slice().unwrap(), b"secret");
    }
    let heard = subscriber.try_recv();
    assert!(matches!(heard, Ok(None)), "{heard:?}");
    assert_eq!(publisher.subscribers(), 1);
    let peers_of_a = a.peers().unwrap().peers;
    let names: Vec<_> = peers_of_a.iter().map(|peer| &peer.host).collect();
    assert_eq!(names, ["host-c"]);
    assert_eq!(b.peers().unwrap().peers, []);
}

#[test]
fn a_host_of_another_ca_gets_nothing() {
    let (ours, others) = (Authority::new(), Authority::new());
    drop(ours);
    let stranger = files(&others.ca(), &others.certify("host-b"));
    gets_nothing(&stranger, "tls", "another CA", "another CA");
}

#[test]
fn a_host_without_a_certificate_gets_nothing() {
    gets_nothing("", "tcp", "does not speak TLS", "nobody who speaks");
}

#[test]
fn a_certificate_for_another_name_is_refused_before_it_is_used() {
    let authority = Authority::new();
    let ports = ports(2);
    let more = files(&authority.ca(), &authority.certify("host-c"));
    let text = links("host-b", "tls", ports[1], ports[0], &more);
    let host = Host::start_whole("host-b", &text);
    let said = said_by_links(&host.path());
    assert!(said.contains("does not name 'host-b'"), "{said}");
}

/// Runs `rgaps-links`, which ends at once, and returns its output.
fn said_by_links(config: &Path) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rgaps-links"))
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("waited {LIMIT:?} for rgaps-links to refuse its configuration");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Receives no messages, and records the link's events.
#[derive(Default)]
struct Ears(Mutex<Vec<LinkEvent>>);

impl FlowReceiver for Ears {
    fn buffer(&self, _: FlowId, _: u64, _: &[u8], _: u64) -> BufferReply {
        BufferReply::Refused
    }
}

impl LinkUser for Ears {
    fn event(&self, event: LinkEvent, _: &LinkRuntime) {
        self.0.lock().unwrap().push(event);
    }
}

/// A host with a valid certificate of the realm for `host-x`, which claims another name.
struct Impostor {
    plane: ControlPlane,
    news: Receiver<PlaneEvent>,
    endpoint: Endpoint,
    own: HostLife,
}

impl Impostor {
    fn new(authority: &Authority, claims: &str, own: u16, other: u16) -> Impostor {
        let (certificate, key) = authority.certify("host-x");
        let own_life = HostLife {
            host: claims.to_owned(),
            incarnation: random_u64(),
        };
        let read = |path: &Path| std::fs::read(path).unwrap();
        let pem = TlsFiles {
            roots: read(&authority.ca()),
            chain: read(&certificate),
            key: read(&key),
        };
        let endpoint = Endpoint::new(EndpointConfig {
            incarnation: own_life.incarnation,
            realm: fnv("default"),
            listen: Some("127.0.0.1:0".parse().unwrap()),
            security: Security::Tls(Tls::new(&pem).unwrap()),
            rdma: None,
        })
        .unwrap();
        let mut links = Links {
            control: vec![format!("tls/127.0.0.1:{own}")],
            connect: vec![format!("tls/127.0.0.1:{other}")],
            ..Links::default()
        };
        links.tls.ca = Some(authority.ca());
        (links.tls.certificate, links.tls.key) = (Some(certificate), Some(key));
        let (told, news) = channel();
        let tell = Arc::new(move |item| told.send(item).unwrap());
        let lanes = endpoint.local_addr().into_iter().collect();
        let mut plane =
            ControlPlane::join("default", &links, own_life.clone(), lanes, tell).unwrap();
        plane.announce().unwrap();
        Impostor {
            plane,
            news,
            endpoint,
            own: own_life,
        }
    }

    fn hear<T>(&self, what: &str, mut of: impl FnMut(PlaneEvent) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(begun.elapsed());
            let news = self.news.recv_timeout(left);
            let news = news.unwrap_or_else(|_| panic!("waited {LIMIT:?} for {what}"));
            if let Some(found) = of(news) {
                return found;
            }
        }
    }

    /// A link with `host-a`. It dials the addresses, or waits for `host-a` if there are none.
    fn link(
        &self,
        life: &HostLife,
        secret: [u8; 32],
        dial: Vec<std::net::SocketAddr>,
    ) -> (Arc<Ears>, rgaps_transport::Link) {
        let ears = Arc::new(Ears::default());
        let peer = Peer {
            incarnation: life.incarnation,
            key: LaneKey(secret),
            dial,
        };
        let users = (ears.clone() as _, ears.clone() as _);
        let link = self
            .endpoint
            .link("host-a", LinkConfig::default(), peer, users);
        (ears, link.unwrap())
    }
}

fn fnv(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn a_host_with_the_certificate_of_another_name_gets_no_lane() {
    let authority = Authority::new();
    // The host whose name comes first opens the lanes: the test tries both roles.
    for claims in ["host-0", "host-b"] {
        let ports = ports(2);
        let more = files(&authority.ca(), &authority.certify("host-a"));
        let here = Host::start("host-a", &links("host-a", "tls", ports[0], ports[1], &more));
        let node = here.node("publisher");
        let publisher = node.publisher("secret").create().unwrap();
        let impostor = Impostor::new(&authority, claims, ports[1], ports[0]);
        let life = impostor.hear("host-a", |news| match news {
            PlaneEvent::Appeared(token) if token.node.host == "host-a" => Some(token.node),
            _ => None,
        });
        let (ears, link) = if claims < "host-a" {
            impostor.plane.ask_address(&life).unwrap();
            let address = impostor.hear("an answer", |news| match news {
                PlaneEvent::AddressAnswer(_, Ok(address)) => Some(address),
                // The host refused: asks again, as links do.
                PlaneEvent::AddressAnswer(_, Err(_)) => {
                    impostor.plane.ask_address(&life).unwrap();
                    None
                }
                _ => None,
            });
            impostor.link(&life, address.secret.0, address.lanes)
        } else {
            let secret = impostor.hear("a question", |news| match news {
                PlaneEvent::AddressAsked(_, secret) => Some(secret),
                _ => None,
            });
            impostor.link(&life, secret.0, vec![])
        };
        until("the reason in 'rgaps peers'", || {
            let peers = node.peers().unwrap().peers;
            let row = peers.iter().find(|row| row.host == impostor.own.host);
            row.is_some_and(|row| {
                row.state != PeerState::Linked && row.detail.contains("certificate")
            })
        });
        publisher.put(b"secret").unwrap();
        assert_eq!(publisher.subscribers(), 0);
        let heard = ears.0.lock().unwrap();
        assert!(
            !heard.iter().any(|event| matches!(event, LinkEvent::Up)),
            "{heard:?}"
        );
        drop(heard);
        let row = &node.peers().unwrap().peers[0];
        assert_eq!((row.lanes, row.topics_out, row.messages_in), (0, 0, 0));
        link.close();
        impostor.plane.leave();
    }
}

#[test]
fn nothing_goes_over_a_network_in_the_clear_unless_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("rgaps.toml");
    for (address, said) in [
        ("listen = \"10.1.2.3:0\"", "links.listen"),
        ("connect = [\"tcp/10.1.2.3:7447\"]", "links.connect"),
        ("control = [\"tcp/0.0.0.0:0\"]", "links.control"),
    ] {
        let text = format!("autostart = false\n[links]\nhost = \"a\"\n{address}\n");
        std::fs::write(&config, &text).unwrap();
        let refused = said_by_links(&config);
        assert!(
            refused.contains(said) && refused.contains("insecure = true"),
            "{refused}"
        );
        // With `insecure`, only the daemon is missing.
        std::fs::write(&config, format!("{text}insecure = true\n")).unwrap();
        let refused = said_by_links(&config);
        assert!(!refused.contains("insecure"), "{refused}");
    }
}
