//! One conformance suite for all communicators but plug-ins.

use super::*;
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
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
    let big = vec![7; 1 << 20];
    // An accepted connection does what connecting takes when it is read first.
    let (accepted, calls) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let accepted = server.accept().unwrap();
            let all = read(&*accepted, 3 + (1 << 20));
            (accepted, all)
        });
        client.connect().unwrap();
        let calls = write_all(&*client, [b"abc", &big]).unwrap();
        let (accepted, all) = reader.join().unwrap();
        assert_eq!((&all[..3], &all[3..]), (&b"abc"[..], &big[..]));
        (accepted, calls)
    });
    assert!(calls >= 1);
    write_all(&*accepted, [b"back", b""]).unwrap();
    assert_eq!(read(&*client, 4), b"back");
    assert!(accepted.admit().is_ok());
    // A close ends the reads that wait at both ends.
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

/// Two ends whose cards are on one network of the process.
fn over_rdma(faults: Faults) {
    let network = SoftwareNetwork::new(faults);
    let local = communication("");
    let end = |at: &str, card| {
        let tcp = local.communicator(&at.parse().unwrap()).unwrap();
        Arc::new(Rdma::at(tcp, network.device(card).unwrap()))
    };
    conforms(end("127.0.0.1:0", "server"), |at| {
        end(at.strip_prefix("rdma/").unwrap(), "client")
    });
}

#[test]
fn rdma_conforms() {
    over_rdma(Faults::default());
}

#[test]
fn rdma_conforms_on_a_slow_network_with_small_queues() {
    for seed in 0..20 {
        over_rdma(Faults {
            seed,
            delay_one_in: 3,
            depth_max: 12,
            ..Faults::default()
        });
    }
}

#[test]
fn what_was_written_before_a_close_arrives() {
    let network = SoftwareNetwork::new(Faults {
        delay_one_in: 3,
        ..Faults::default()
    });
    let local = communication("");
    let tcp = |at: &str| local.communicator(&at.parse().unwrap()).unwrap();
    let server = Rdma::at(tcp("127.0.0.1:0"), network.device("server").unwrap());
    server.serve().unwrap();
    let at = server.to_string();
    let there = tcp(at.strip_prefix("rdma/").unwrap());
    let client = Rdma::at(there, network.device("client").unwrap());
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            client.connect().unwrap();
            let all = read(&client, bytes.len());
            (all, client.read(&mut [0; 1]).unwrap())
        });
        let accepted = server.accept().unwrap();
        write_all(&*accepted, [&bytes, &[]]).unwrap();
        drop(accepted);
        assert!(reader.join().unwrap() == (bytes.clone(), 0));
    });
}

#[test]
fn an_end_without_rdma_says_so() {
    let network = SoftwareNetwork::new(Faults::default());
    let local = communication("");
    let server = local.communicator(&"127.0.0.1:0".parse().unwrap()).unwrap();
    server.serve().unwrap();
    let there = local
        .communicator(&server.to_string().parse().unwrap())
        .unwrap();
    let client = Rdma::at(there, network.device("client").unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let accepted = server.accept().unwrap();
            write_all(&*accepted, [b"no RDMA here", b""]).unwrap();
        });
        let error = client.connect().unwrap_err();
        assert!(error.to_string().contains("rdma/"), "{error}");
    });
    let error = communication("").communicator(&"rdma/127.0.0.1".parse().unwrap());
    let text = error.err().unwrap().to_string();
    assert!(text.contains("links.trusted_fabric"), "{text}");
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
