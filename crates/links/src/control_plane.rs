//! The control plane, over Zenoh: hosts announce themselves with liveliness tokens, and ask each other for the addresses of their lanes.
//!
//! Only [`ControlPlane::ask_address`] waits for another host: on a thread of its own, which reports the answer as an event.

use crate::keys::{is_host, HostLife, HostToken, PLANE_VERSION};
use crate::lock;
use crate::wire::exactly;
use anyhow::{anyhow, bail, Context};
use rgaps_client::links::Links;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zenoh::liveliness::LivelinessToken;
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

/// How long a host may take to answer the question for its address.
const ADDRESS_LIMIT: Duration = Duration::from_secs(2);
/// Limits of Zenoh's handshakes: how long one may take, and how many may be in progress.
const ACCEPT_MS: u64 = 2000;
const ACCEPTS_MAX: usize = 1000;
/// Most bytes of a question for an address, and of its answer.
const MAX_ADDRESS_BYTES: usize = 4096;
/// Most addresses of a host's lanes in an answer.
const MAX_ADDRESSES: usize = 16;

/// An event about another host.
#[derive(Clone, Debug, PartialEq)]
pub enum PlaneEvent {
    /// A host's token appeared.
    Appeared(HostToken),
    /// A host's token is gone, at least for now.
    Left(HostLife),
    /// Another host asked for this one's address, and got it with this secret.
    AddressAsked(HostLife, LaneSecret),
    /// Another host answered the question for its address.
    AddressAnswer(HostLife, Result<Address, String>),
    /// A host that this one asked for its address did not answer, and why.
    NoAnswer(HostLife, String),
    /// The Zenoh session is being replaced: all hosts that are present appear again.
    Reopened,
}

/// Gets events, on threads of Zenoh and others. It must not block.
pub type PlaneListener = Arc<dyn Fn(PlaneEvent) + Send + Sync>;

/// The secret that lanes between one life of a host and one life of another present.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSecret(pub [u8; 32]);

impl std::fmt::Debug for LaneSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LaneSecret(..)")
    }
}

/// How to reach a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Where it accepts lanes.
    pub lanes: Vec<SocketAddr>,
    /// The secret that lanes to that host present.
    pub secret: LaneSecret,
}

/// The answer to the question for an address: the address, or why there is none.
type Reply = Result<Address, String>;

/// The secrets for other hosts. A life of a host gets the same one each time, unless more than [`MAX_SECRETS`] lives have asked.
#[derive(Default)]
struct Secrets(Mutex<BTreeMap<HostLife, LaneSecret>>);

const MAX_SECRETS: usize = 1024;

impl Secrets {
    fn of(&self, node: &HostLife) -> LaneSecret {
        let mut known = lock(&self.0);
        if known.len() >= MAX_SECRETS && !known.contains_key(node) {
            known.pop_first();
        }
        let secret = known.entry(node.clone());
        *secret.or_insert_with(|| LaneSecret(random_bytes()))
    }
}

fn random_bytes<const N: usize>() -> [u8; N] {
    use std::io::Read;
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("nothing can be kept secret without /dev/urandom");
    bytes
}

/// A random number that is not 0.
pub fn random_u64() -> u64 {
    u64::from_le_bytes(random_bytes()).max(1)
}

/// This host's membership in the control plane. Its token disappears when this is dropped.
pub struct ControlPlane {
    /// The Zenoh session. The probe uses it, too.
    pub session: Session,
    realm: String,
    links: Links,
    own: HostLife,
    /// Where this host accepts lanes.
    lanes: Vec<SocketAddr>,
    secrets: Arc<Secrets>,
    // Zenoh undeclares the token when it is dropped. None: this host is not announced.
    node: Option<LivelinessToken>,
    listener: PlaneListener,
}

impl ControlPlane {
    /// Joins the realm's control plane. `lanes`: where this host accepts lanes. Zenoh's threads call `listener`.
    pub fn join(
        realm: &str,
        links: &Links,
        own: HostLife,
        lanes: Vec<SocketAddr>,
        listener: PlaneListener,
    ) -> anyhow::Result<ControlPlane> {
        let plane = ControlPlane {
            session: open(links)?,
            realm: realm.to_owned(),
            links: links.clone(),
            own,
            lanes,
            secrets: Arc::default(),
            node: None,
            listener,
        };
        plane.listen()?;
        Ok(plane)
    }

    /// Answers questions, and listens for other hosts.
    fn listen(&self) -> anyhow::Result<()> {
        self.answer_questions()?;
        let (realm, listener) = (self.realm.clone(), self.listener.clone());
        let this = self.own.host.clone();
        self.session
            .liveliness()
            .declare_subscriber(format!("rgaps/{realm}/node/**"))
            .history(true)
            .callback(move |sample| {
                let there = sample.kind() == SampleKind::Put;
                if let Some(item) = read_token(&realm, &this, sample.key_expr().as_str(), there) {
                    listener(item);
                }
            })
            .background()
            .wait()
            .map_err(|error| anyhow!("other hosts cannot be listened for: {error}"))
    }

    /// Replaces the Zenoh session. It helps when two sessions reconnected while their last connection was still closing: those may never
    /// pass on each other's questions (Zenoh's issue 1886).
    pub fn reopen(&mut self) -> anyhow::Result<()> {
        let was_announced = self.node.take().is_some();
        rgaps_bridge::close_session(self.session.clone());
        (self.listener)(PlaneEvent::Reopened);
        self.session = open(&self.links)?;
        self.listen()?;
        if was_announced {
            self.announce()?;
        }
        Ok(())
    }

    /// Announces this host, once. Call when this host knows its wants: other hosts then forget what only its former life wanted.
    pub fn announce(&mut self) -> anyhow::Result<()> {
        if self.node.is_some() {
            return Ok(());
        }
        let key = token(self.own.clone()).key(&self.realm);
        let node = self
            .session
            .liveliness()
            .declare_token(key)
            .wait()
            .map_err(|error| anyhow!("this host cannot be announced: {error}"))?;
        self.node = Some(node);
        Ok(())
    }

    fn answer_questions(&self) -> anyhow::Result<()> {
        let key = self.own.address_key(&self.realm);
        let (lanes, secrets) = (self.lanes.clone(), self.secrets.clone());
        let (at, listener) = (key.clone(), self.listener.clone());
        self.session
            .declare_queryable(key)
            .callback(move |query| {
                let asked = query.payload().map(|payload| payload.to_bytes());
                let answer = answer(asked.as_deref().unwrap_or_default(), &lanes, &secrets);
                let reply: Reply = match answer {
                    Ok((node, address)) => {
                        listener(PlaneEvent::AddressAsked(node, address.secret));
                        Ok(address)
                    }
                    Err(error) => {
                        tracing::warn!("refused a host: {error:#}");
                        Err(format!("{error:#}"))
                    }
                };
                let bytes = postcard::to_stdvec(&reply).unwrap_or_default();
                if let Err(error) = query.reply(&at, bytes).wait() {
                    tracing::debug!(%error, "sending an answer to a host failed");
                }
            })
            .background()
            .wait()
            .map_err(|error| anyhow!("other hosts cannot be answered: {error}"))
    }

    /// Asks another host for its address; the answer comes as [`PlaneEvent::AddressAnswer`], or [`PlaneEvent::NoAnswer`].
    pub fn ask_address(&self, node: &HostLife) -> anyhow::Result<()> {
        let payload = postcard::to_stdvec(&token(self.own.clone()))?;
        let (session, listener) = (self.session.clone(), self.listener.clone());
        let (key, node) = (node.address_key(&self.realm), node.clone());
        std::thread::Builder::new()
            .name("rgaps-meeting".to_owned())
            .spawn(move || {
                listener(match ask(&session, &key, payload) {
                    Ok(reply) => {
                        let address = read_reply(&reply).map_err(|error| format!("{error:#}"));
                        PlaneEvent::AddressAnswer(node, address)
                    }
                    Err(error) => PlaneEvent::NoAnswer(node, format!("{error:#}")),
                });
            })
            .context("creating a thread")?;
        Ok(())
    }

    /// Leaves at once, so that other hosts need not wait for a timeout.
    pub fn leave(self) {
        rgaps_bridge::close_session(self.session);
    }
}

fn open(links: &Links) -> anyhow::Result<Session> {
    zenoh::open(configure(links)?).wait().map_err(|error| {
        anyhow!("the control plane cannot be opened: {error}; see links.control in rgaps.toml")
    })
}

fn ask(session: &Session, key: &str, payload: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let replies = session
        .get(key)
        .payload(payload)
        .timeout(ADDRESS_LIMIT)
        .wait()
        .map_err(|error| anyhow!("{error}"))?;
    // If the host was lost a moment ago, the channel ends at once without a reply.
    let reply = replies
        .recv_timeout(ADDRESS_LIMIT)
        .ok()
        .flatten()
        .context("it did not answer")?;
    let sample = reply.result().map_err(|error| anyhow!("{error}"))?;
    Ok(sample.payload().to_bytes().into_owned())
}

/// Decodes a host's answer to the question for its address. An error: the host refuses, or the answer is invalid.
pub fn read_reply(bytes: &[u8]) -> anyhow::Result<Address> {
    let address = match decode::<Reply>(bytes)? {
        Ok(address) => address,
        Err(why) => bail!("it refuses: {}", why.chars().take(200).collect::<String>()),
    };
    if address.lanes.is_empty() || address.lanes.len() > MAX_ADDRESSES {
        bail!("it named {} addresses", address.lanes.len());
    }
    Ok(address)
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> anyhow::Result<T> {
    if bytes.len() > MAX_ADDRESS_BYTES {
        bail!("a message of {} bytes, which is too long", bytes.len());
    }
    exactly(bytes).context("a message that is none")
}

fn answer(
    asked: &[u8],
    lanes: &[SocketAddr],
    secrets: &Secrets,
) -> anyhow::Result<(HostLife, Address)> {
    let node = read_question(asked)?;
    let secret = secrets.of(&node);
    let lanes = lanes.to_vec();
    Ok((node, Address { lanes, secret }))
}

/// Decodes a question for this host's address. Returns the life that asks. An error: it speaks another version, or the question is invalid.
pub fn read_question(asked: &[u8]) -> anyhow::Result<HostLife> {
    let HostToken { protocol, node } = decode(asked)?;
    if protocol != PLANE_VERSION {
        bail!("{}", versions(&node.host, protocol));
    }
    if !is_host(&node.host) || node.incarnation == 0 {
        bail!("a host of that name there cannot be");
    }
    Ok(node)
}

/// The token of a life that speaks this host's version.
pub(crate) fn token(node: HostLife) -> HostToken {
    let protocol = PLANE_VERSION;
    HostToken { node, protocol }
}

/// Why two hosts with different versions cannot be linked.
pub fn versions(host: &str, theirs: u32) -> String {
    format!(
        "host '{host}' speaks version {theirs} of what is said between hosts, this one version \
         {PLANE_VERSION}: install the same version of rgaps on both"
    )
}

/// The event of a token that appeared or is gone. None: it is no token of another host.
fn read_token(realm: &str, this: &str, key: &str, there: bool) -> Option<PlaneEvent> {
    let token = HostToken::parse(realm, key).filter(|token| token.node.host != this)?;
    Some(match there {
        true => PlaneEvent::Appeared(token),
        false => PlaneEvent::Left(token.node),
    })
}

/// Adds the limit [`ACCEPT_MS`] for handshakes to a listening TLS endpoint, unless the endpoint has settings of its own after `#`.
fn with_limit(endpoint: &str) -> String {
    match endpoint.starts_with("tls/") && !endpoint.contains('#') {
        true => format!("{endpoint}#tls_handshake_timeout_ms={ACCEPT_MS}"),
        false => endpoint.to_owned(),
    }
}

/// Zenoh's configuration, without anything that rgaps was not configured to do.
fn configure(links: &Links) -> anyhow::Result<zenoh::Config> {
    let mut config = zenoh::Config::default();
    let mut set = |key: &str, value: Value| {
        config
            .insert_json5(key, &value.to_string())
            .map_err(|error| anyhow!("Zenoh does not take {key} = {value}: {error}"))
    };
    set("mode", json!("peer"))?;
    let listen: Vec<String> = links.control.iter().map(|at| with_limit(at)).collect();
    set("listen/endpoints", json!(listen))?;
    set("transport/unicast/accept_timeout", json!(ACCEPT_MS))?;
    set("transport/unicast/accept_pending", json!(ACCEPTS_MAX))?;
    set("connect/endpoints", json!(links.connect))?;
    // Set as a whole: Zenoh knows no key of a single part.
    let retry = json!({"period_init_ms": 100, "period_max_ms": 500, "period_increase_factor": 1.5});
    set("connect/retry", retry)?;
    set("scouting/multicast/enabled", json!(links.scouting))?;
    set("scouting/gossip/enabled", json!(links.gossip))?;
    set("transport/link/tx/lease", json!(links.lease_ms))?;
    set("transport/link/tx/keep_alive", json!(4))?;
    set("timestamping/enabled", json!(false))?;
    set("adminspace/enabled", json!(false))?;
    if let Some([ca, certificate, key]) = links.tls.paths() {
        let path = |path: &std::path::Path| json!(path.to_string_lossy());
        set("transport/link/tls/root_ca_certificate", path(ca))?;
        set("transport/link/tls/listen_certificate", path(certificate))?;
        set("transport/link/tls/listen_private_key", path(key))?;
        set("transport/link/tls/connect_certificate", path(certificate))?;
        set("transport/link/tls/connect_private_key", path(key))?;
        set("transport/link/tls/enable_mtls", json!(true))?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_have_a_limit() {
        assert_eq!(
            with_limit("tls/0.0.0.0:7447"),
            "tls/0.0.0.0:7447#tls_handshake_timeout_ms=2000"
        );
        for own in ["tcp/[::1]:7447", "tls/[::]:7447#tls_handshake_timeout_ms=5"] {
            assert_eq!(with_limit(own), own);
        }
    }

    #[test]
    fn a_meeting_names_both_versions() {
        let node = HostLife {
            host: "old".to_owned(),
            incarnation: 3,
        };
        let protocol = PLANE_VERSION + 6;
        let asked = postcard::to_stdvec(&HostToken { protocol, node }).unwrap();
        let refused = answer(&asked, &[], &Secrets::default()).unwrap_err();
        let text = refused.to_string();
        for part in [
            "'old'",
            &format!("version {}", PLANE_VERSION + 6),
            &format!("version {PLANE_VERSION}"),
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn what_is_no_question_is_refused() {
        let secrets = Secrets::default();
        for (host, incarnation) in [("", 1), ("a/b", 1), ("a", 0)] {
            let node = HostLife {
                host: host.to_owned(),
                incarnation,
            };
            let asked = postcard::to_stdvec(&token(node)).unwrap();
            answer(&asked, &[], &secrets).unwrap_err();
        }
        for length in 0..64 {
            answer(&vec![0xff; length], &[], &secrets).unwrap_err();
        }
        answer(&vec![0; MAX_ADDRESS_BYTES + 1], &[], &secrets).unwrap_err();
    }

    #[test]
    fn a_life_of_a_host_has_one_secret() {
        let secrets = Secrets::default();
        let node = |incarnation| HostLife {
            host: "a".to_owned(),
            incarnation,
        };
        let first = secrets.of(&node(1));
        assert_eq!(secrets.of(&node(1)), first);
        assert_ne!(secrets.of(&node(2)), first);
        for life in 3..2 * MAX_SECRETS as u64 {
            secrets.of(&node(life));
        }
        assert!(secrets.0.lock().unwrap().len() <= MAX_SECRETS);
    }
}
