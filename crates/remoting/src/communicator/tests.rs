//! One suite for all communicators that need no library.

use super::*;
use std::path::PathBuf;

fn communication(text: &str) -> Communication {
    let mut config = Config::default();
    config.links.insecure = text.contains("insecure");
    Communication::of(&config)
}

fn read(from: &dyn Communicator, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    read_exact(from, &mut all).unwrap();
    all
}

/// What every communicator does.
fn conforms(server: Arc<dyn Communicator>, client: impl Fn(&str) -> Arc<dyn Communicator>) {
    let mut none = [0; 1];
    assert!(server.read(&mut none).is_err(), "nobody has connected");
    server.serve().unwrap();
    let client = client(&server.to_string());
    client.connect().unwrap();
    let accepted = server.accept().unwrap();
    let big = vec![7; 1 << 20];
    let calls = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&*accepted, 3 + (1 << 20)));
        let calls = write_all(&*client, [b"abc", &big]).unwrap();
        let all = reader.join().unwrap();
        assert_eq!((&all[..3], &all[3..]), (&b"abc"[..], &big[..]));
        calls
    });
    assert!(calls >= 1);
    write_all(&*accepted, [b"back", b""]).unwrap();
    assert_eq!(read(&*client, 4), b"back");
    assert!(accepted.admit().is_ok());
    // Whoever waits in a read hears of a close at either end.
    std::thread::scope(|scope| {
        let here = scope.spawn(|| client.read(&mut [0; 1]).unwrap_or(0));
        let there = scope.spawn(|| accepted.read(&mut [0; 1]).unwrap_or(0));
        client.close();
        assert_eq!((here.join().unwrap(), there.join().unwrap()), (0, 0));
    });
}

#[test]
fn tcp_conforms() {
    let local = communication("");
    let server = local.communicator(&"127.0.0.1:0".parse().unwrap()).unwrap();
    conforms(server, |at| {
        local.communicator(&at.parse().unwrap()).unwrap()
    });
}

#[test]
fn unix_sockets_conform() {
    let path = PathBuf::from(format!(
        "{}/rgaps-unix-{}",
        std::env::temp_dir().display(),
        std::process::id()
    ));
    let local = communication("");
    let server = local.communicator(&Endpoint::Unix(path.clone())).unwrap();
    conforms(server, |at| {
        local.communicator(&at.parse().unwrap()).unwrap()
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn nothing_crosses_a_network_in_plain_unless_it_may() {
    let outside = "tcp/0.0.0.0:0".parse().unwrap();
    let server = communication("").communicator(&outside).unwrap();
    let error = server.serve().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("links.insecure"), "{error}");
    // An address that is never connected to, since the refusal comes first.
    let there = "192.0.2.1:9".parse().unwrap();
    let error = communication("").communicator(&there).unwrap().connect();
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    let server = communication("insecure").communicator(&outside).unwrap();
    server.serve().unwrap();
}

#[test]
fn what_the_configuration_lacks_is_named() {
    for (at, named) in [
        ("tls/127.0.0.1", "links.tls"),
        ("other/1", "gpu.communicators.other"),
    ] {
        let error = communication("").communicator(&at.parse().unwrap()).err();
        let text = error.unwrap().to_string();
        assert!(text.contains(named), "{text}");
    }
}
