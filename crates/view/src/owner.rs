//! Finds the user at the other end of a TCP connection within this host, by the kernel's list of sockets (`/proc/net/tcp`).

use std::net::{IpAddr, SocketAddr, TcpStream};

/// The user id of the process at the other end. None: the kernel does not list the socket.
pub(crate) fn owner_of(stream: &TcpStream) -> Option<u32> {
    let (peer, own) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    // A socket of IPv6 may have IPv4 addresses, so this looks in both lists.
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|path| {
        let list = std::fs::read_to_string(path).ok()?;
        find(&list, peer, own)
    })
}

/// The user of the socket with these own and peer addresses, from the text of a list.
fn find(list: &str, own: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let (own, peer) = (written(own), written(peer));
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (words.next()?, words.next()?);
        let is_it = (0..2).any(|at| own[at] == local && peer[at] == remote);
        // Skips state, queues, timer and retransmissions, before the user.
        words.nth(4).filter(|_| is_it)?.parse().ok()
    })
}

/// The two ways in which the kernel may write an address: 32-bit words in the machine's byte order, and the port.
fn written(address: SocketAddr) -> [String; 2] {
    let port = address.port();
    let words = |bytes: &[u8]| {
        let words = bytes.chunks_exact(4);
        let words = words.map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
        words.map(|word| format!("{word:08X}")).collect::<String>()
    };
    let (short, long) = match address.ip() {
        IpAddr::V4(ip) => (words(&ip.octets()), words(&ip.to_ipv6_mapped().octets())),
        IpAddr::V6(ip) => (words(&ip.octets()), words(&ip.octets())),
    };
    [short, long].map(|ip| format!("{ip}:{port:04X}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_connection_of_this_process_is_ours() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // Some hosts have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            assert_eq!(
                owner_of(&stream),
                Some(rustix::process::geteuid().as_raw()),
                "{address}"
            );
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_user_is_that_of_the_other_end() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:2240 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 1\n\
             1: 0100007F:C350 0100007F:2240 01 00000000:00000000 00:00000000 00000000  1001        0 2\n";
        let (server, client) = (
            "127.0.0.1:8768".parse().unwrap(),
            "127.0.0.1:50000".parse().unwrap(),
        );
        assert_eq!(find(list, client, server), Some(1001));
        assert_eq!(find(list, server, client), Some(0));
        assert_eq!(find(list, client, client), None);
        let mapped = "0: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:2240 01 0:0 0:0 0 7 0 2";
        assert_eq!(find(mapped, client, server), Some(7));
    }
}
