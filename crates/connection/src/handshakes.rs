//! Limits the connections whose handshake is not complete: their peers have proved nothing yet, and each takes a thread.
//!
//! There are at most [`HANDSHAKES_MAX`]. When one more arrives, the oldest connection of the address that has the most is closed: so a
//! stranger who opens many, and sends nothing, closes only their own. An address that has completed a handshake before has
//! [`KNOWN_SHARE`] connections that do not count, so that strangers at many addresses do not push out peers.
//!
//! An address is an IPv4 address, or the first 64 bits of an IPv6 address: one host usually has all addresses with those bits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// The most connections whose handshake is not complete.
pub const HANDSHAKES_MAX: usize = 64;
/// The most threads that serve them, including those whose connection was pushed out and that have not noticed yet.
const THREADS_MAX: usize = 2 * HANDSHAKES_MAX;
/// How many connections of a known address do not count.
const KNOWN_SHARE: usize = 8;
/// The most known addresses: those that have completed a handshake.
const KNOWN_MAX: usize = 1024;

/// Connections in their handshake, numbered by age.
#[derive(Debug, Default)]
struct Shares {
    /// The number of the newest connection.
    next: u64,
    /// The address of each connection.
    from: BTreeMap<u64, IpAddr>,
    known: BTreeSet<IpAddr>,
}

impl Shares {
    /// Adds a connection. Returns its number, and the number of the connection that it pushes out if there was no room; `None` if it is
    /// not admitted.
    fn admit(&mut self, from: IpAddr) -> Option<(u64, Option<u64>)> {
        let is_full = self.from.len() >= HANDSHAKES_MAX;
        let victim = if is_full {
            Some(self.victim(from)?)
        } else {
            None
        };
        if let Some(victim) = victim {
            self.from.remove(&victim);
        }
        self.next += 1;
        self.from.insert(self.next, from);
        Some((self.next, victim))
    }

    /// The connection that makes room: the oldest one of the address with the most; among several such addresses, the oldest of all.
    /// `None`: that is the newcomer's address, and it has no other connection.
    fn victim(&self, newcomer: IpAddr) -> Option<u64> {
        // For each address its oldest connection and how many it has.
        let mut addresses = BTreeMap::new();
        for (number, from) in &self.from {
            addresses.entry(*from).or_insert((Some(*number), 0usize)).1 += 1;
        }
        addresses.entry(newcomer).or_insert((None, 0)).1 += 1;
        let most = addresses.iter().max_by_key(|(from, (oldest, count))| {
            let is_known = self.known.contains(from);
            let share = if is_known { KNOWN_SHARE } else { 0 };
            let age = oldest.map_or(0, |oldest| u64::MAX - oldest);
            ((*count).saturating_sub(share), !is_known, age)
        });
        most.and_then(|(_, (oldest, _))| *oldest)
    }

    fn know(&mut self, from: IpAddr) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains(&from) {
            self.known.pop_first();
        }
        self.known.insert(from);
    }
}

/// The address that counts for a peer: an IPv4 address, or the first 64 bits of an IPv6 address.
fn share_of(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) => {
            let network = u128::from(v6) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 => v4,
    }
}

#[derive(Debug, Default)]
struct Inner {
    shares: Shares,
    tcp: BTreeMap<u64, TcpStream>,
    threads: usize,
}

/// The connections of an endpoint whose handshake is not complete.
#[derive(Clone, Debug, Default)]
pub struct Handshakes(Arc<Mutex<Inner>>);

impl Handshakes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("nobody panics with it")
    }

    /// Admits a connection, which counts until the returned handshake is dropped. `None`: there is no room for it.
    pub fn admit(&self, tcp: &TcpStream) -> Option<Handshake> {
        let from = share_of(tcp.peer_addr().ok()?.ip());
        let tcp = tcp.try_clone().ok()?;
        let mut inner = self.lock();
        if inner.threads >= THREADS_MAX {
            return None;
        }
        let (number, victim) = inner.shares.admit(from)?;
        inner.threads += 1;
        inner.tcp.insert(number, tcp);
        if let Some(victim) = victim.and_then(|victim| inner.tcp.remove(&victim)) {
            // Its thread then reads the end of the connection. Shutdown fails if the peer has closed it already.
            let _ = victim.shutdown(Shutdown::Both);
        }
        Some(Handshake {
            all: self.clone(),
            number,
            from,
        })
    }
}

/// A connection whose handshake is not complete.
pub struct Handshake {
    all: Handshakes,
    number: u64,
    from: IpAddr,
}

impl Handshake {
    /// Notes that the handshake is complete: its address is a known peer's from here on.
    pub fn complete(&self) {
        self.all.lock().shares.know(self.from);
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut inner = self.all.lock();
        inner.threads -= 1;
        inner.tcp.remove(&self.number);
        inner.shares.from.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn full_of(numbers: impl Fn(usize) -> u8) -> Shares {
        let mut shares = Shares::default();
        for at in 0..HANDSHAKES_MAX {
            let number = at as u64 + 1;
            let admitted = Some((number, None));
            assert_eq!(shares.admit(address(numbers(at))), admitted);
        }
        shares
    }

    const NEXT: u64 = HANDSHAKES_MAX as u64 + 1;

    #[test]
    fn one_that_opens_many_pushes_out_the_oldest_of_its_own() {
        let mut shares = full_of(|at| if at == 0 { 2 } else { 1 });
        assert_eq!(shares.admit(address(1)), Some((NEXT, Some(2))));
        assert_eq!(shares.admit(address(3)), Some((NEXT + 1, Some(3))));
    }

    #[test]
    fn known_peers_go_before_strangers_at_many_addresses() {
        let mut shares = full_of(|at| 100 + at as u8);
        shares.know(address(1));
        // The oldest stranger makes room for the peer, and the peer for no stranger.
        for at in 0..KNOWN_SHARE as u64 {
            let admitted = Some((NEXT + at, Some(at + 1)));
            assert_eq!(shares.admit(address(1)), admitted);
        }
        for number in 10..100 {
            shares.admit(address(number));
        }
        let of_peer = shares.from.values().filter(|from| **from == address(1));
        assert_eq!(of_peer.count(), KNOWN_SHARE);
    }

    #[test]
    fn a_known_address_with_more_than_its_share_counts_as_others_do() {
        let mut shares = full_of(|_| 1);
        shares.know(address(1));
        assert_eq!(shares.admit(address(2)), Some((NEXT, Some(1))));
    }

    #[test]
    fn peers_within_their_shares_are_not_pushed_out() {
        let mut shares = full_of(|at| (at / KNOWN_SHARE) as u8);
        (0..HANDSHAKES_MAX / KNOWN_SHARE).for_each(|number| shares.know(address(number as u8)));
        assert_eq!(shares.admit(address(200)), None);
    }

    #[test]
    fn a_host_has_one_share_of_its_ipv6_network() {
        let of = |text: &str| share_of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), address(1));
    }
}
