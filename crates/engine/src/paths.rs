//! How messages reach a subscriber, and whether that path is as fast as either side requires.

use crate::clients::Clients;
use crate::memory::Memory;
use crate::refuse::refuse;
use crate::topic::Topic;
use rgaps_layout::Domain;
use rgaps_session::{ArrivalPath, PathKind, Refusal, RefusalCode, Role};

/// What a client asks for when it joins a topic.
pub(crate) struct Wish<'a> {
    pub(crate) topic: &'a str,
    pub(crate) type_name: &'a str,
    pub(crate) domain: Option<Domain>,
    pub(crate) role: Role,
    pub(crate) require: Option<PathKind>,
    /// For a publisher of the links: how its messages reach this host.
    pub(crate) remote_path: Option<ArrivalPath>,
}

/// The best path from messages in `home` to a subscriber that reads in `reads`, and why it is no better. Takes two GPUs for
/// peers: only their processes know whether they are.
///
/// `remote_path`: the path of messages from another host, which decides.
fn path(
    home: Domain,
    reads: Option<Domain>,
    remote_path: Option<(PathKind, String)>,
) -> (PathKind, String) {
    let reads = reads.unwrap_or(home);
    match (remote_path, home, reads) {
        (Some(path), ..) => path,
        (None, Domain::Cuda(from), Domain::Cuda(to)) if from != to => {
            let why = format!("the messages are on {home}, and the subscriber reads on {reads}");
            (PathKind::Peer, why)
        }
        (None, from, to) if from == to => (PathKind::ZeroCopy, String::new()),
        _ => {
            let why = format!("the messages are in {home}, and the subscriber reads in {reads}");
            (PathKind::Pinned, why)
        }
    }
}

/// The path of messages that the links publish, and why it is no better.
fn from_remote(remote_path: Option<&ArrivalPath>) -> (PathKind, String) {
    let unsaid = (PathKind::Tcp, "their path is not known yet");
    let (path, why) = remote_path.map_or(unsaid, |over| (over.path, &over.why));
    let from = "the messages come from another host";
    match why {
        "" => (path, from.to_owned()),
        why => (path, format!("{from}: {why}")),
    }
}

/// Why a path is too slow: the side that requires a faster one. None: it is fast enough for both.
fn too_slow(
    publisher: Option<PathKind>,
    subscriber: Option<PathKind>,
    (path, why): &(PathKind, String),
) -> Option<String> {
    let sides = [("publisher", publisher), ("subscriber", subscriber)];
    let (side, require) = sides
        .into_iter()
        .find_map(|(side, require)| Some((side, require.filter(|require| require > path)?)))?;
    Some(format!(
        "the {side} requires a path of {require} or better, and this one is {path}: {why}; read in the \
         domain of the messages, or require less"
    ))
}

/// Refuses a publisher that names another domain than its topic's.
pub(crate) fn check_domain(topic: &Topic, wish: &Wish<'_>, memory: &Memory) -> Result<(), Refusal> {
    let named = topic.pool.map(|pool| memory.domain(pool));
    if let (Role::Publisher(_), Some(has), Some(wants)) = (&wish.role, named, wish.domain) {
        if has != wants {
            return Err(refuse(
                RefusalCode::DomainMismatch,
                format!(
                    "topic '{}' is in {has}, not in {wants}; publish without a domain, or \
                     use another topic",
                    topic.name
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses a member if a path between it and a present member is slower than either requires. Paths to other hosts are not
/// checked here: the links do not carry a topic where they are slower than its publisher requires.
pub(crate) fn check_paths(
    client: u32,
    topic: &Topic,
    wish: &Wish<'_>,
    clients: &Clients,
    memory: &Memory,
) -> Result<(), Refusal> {
    let own = clients.is_links(client);
    let domain_of = |pool: u32| memory.domain(pool);
    let clash = match wish.role {
        Role::Publisher(_) => {
            let home = topic.pool.map(domain_of).or(wish.domain);
            let home = home.unwrap_or(Domain::Host);
            let mut others = topic.subscribers.iter();
            others.find_map(|subscriber| {
                if clients.is_links(subscriber.client) {
                    return None;
                }
                let remote_path = own.then(|| from_remote(wish.remote_path.as_ref()));
                let path = path(home, subscriber.pool.map(domain_of), remote_path);
                let why = too_slow(wish.require, subscriber.require, &path)?;
                let who = clients.describe(subscriber.client);
                Some(format!("subscriber {who}: {why}"))
            })
        }
        Role::Subscriber(_) | Role::Observer(_) if own => None,
        Role::Subscriber(_) | Role::Observer(_) => topic.publishers.iter().find_map(|publisher| {
            let from_remote = || from_remote(publisher.remote_path.as_ref());
            let remote_path = publisher.of_links.then(from_remote);
            let path = path(domain_of(publisher.pool), wish.domain, remote_path);
            let why = too_slow(publisher.require, wish.require, &path)?;
            Some(format!("{}: {why}", publisher.describe()))
        }),
    };
    match clash {
        None => Ok(()),
        Some(clash) => Err(refuse(
            RefusalCode::PathTooSlow,
            format!(
                "joining topic '{}' is refused because of {clash}",
                topic.name
            ),
        )),
    }
}
