//! `gpu serve` and its clients, on the test driver: limits, clients that vanish, a server that is killed.

mod arrays;
mod liars;
#[path = "../support/mod.rs"]
mod support;
mod topics;
mod trust;

use rgaps_remoting::{
    digest_of, status, Call, CallValue, Code, Communication, ConnectError, Endpoint, From,
    KernelId, ServerConnection, ServerStatus, SessionOptions,
};
use rgaps_testkit::{until, Process};
use serde_json::Value as Json;
use std::io::{BufRead, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const HERE: From = From {
    thread: 0,
    device: 0,
};

/// A kernel that never ends.
const ENDLESS: &str = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry endless()\n{\n$L_again:\nbra $L_again;\n}\n\0";

struct Server {
    process: Process,
    endpoint: Endpoint,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// Connections under the default configuration.
fn plain() -> Communication {
    Communication::of(&rgaps_session::Config::default())
}

fn open(at: &Endpoint, program: &str) -> Result<Arc<ServerConnection>, ConnectError> {
    ServerConnection::open(&plain(), at, program, SessionOptions::default())
}

fn look(at: &Endpoint) -> ServerStatus {
    status(&plain(), at).unwrap()
}

/// Starts a server that keeps its files in `folder`. Returns its process, and the addresses on which it says that it listens.
fn serve(folder: &Path, options: &[&str]) -> (Process, Vec<String>) {
    let (said, saying) = UnixStream::pair().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
    command.args(["--json", "gpu", "serve"]).args(options);
    command.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
    command.env("XDG_CACHE_HOME", folder);
    command
        .stdin(Stdio::null())
        .stdout(std::os::fd::OwnedFd::from(saying));
    let process = Process::start(&mut command);
    drop(command);
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line).unwrap();
    let serving: Json = serde_json::from_str(&line).expect("a server says where it listens");
    let listen = serde_json::from_value(serving["listen"].clone()).unwrap();
    (process, listen)
}

impl Server {
    fn start(options: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.sock");
        let listen = format!("unix:{}", path.display());
        let (process, said) = serve(folder.path(), &[&["--listen", &listen], options].concat());
        assert_eq!(said, [listen.as_str()]);
        Server {
            process,
            endpoint: listen.parse().unwrap(),
            path,
            _folder: folder,
        }
    }

    fn client(&self) -> Arc<ServerConnection> {
        open(&self.endpoint, "test").unwrap()
    }

    fn clients(&self) -> usize {
        look(&self.endpoint).clients.len()
    }
}

fn code(client: &ServerConnection, call: &Call<'_>) -> Code {
    Code(client.call(HERE, call, &[]).unwrap().code)
}

fn allocate(client: &ServerConnection, bytes: u64) -> u64 {
    let answer = client.call(HERE, &Call::Allocate { bytes }, &[]).unwrap();
    match answer.value {
        CallValue::Number(address) => address,
        other => panic!("{other:?}, {}", answer.code),
    }
}

/// Checks that a client can copy bytes to the server and back.
fn works(client: &ServerConnection) {
    carries(client, 100_000);
}

/// Checks that a client can copy `count` bytes to the server and back.
fn carries(client: &ServerConnection, count: u64) {
    let to = allocate(client, count);
    let bytes: Vec<u8> = (0..count).map(|number| (number / 7) as u8).collect();
    client
        .send(HERE, &Call::CopyIn { to, stream: 0 }, &bytes)
        .unwrap();
    let mut back = vec![0; bytes.len()];
    let call = Call::CopyOut {
        from: to,
        bytes: bytes.len() as u64,
        stream: 0,
    };
    // SAFETY: `back` is a local vector of this length, and `call_out` returns only when it has written.
    let answer = unsafe { client.call_out(HERE, &call, back.as_mut_ptr(), back.len()) };
    assert_eq!(answer.unwrap().code, 0);
    assert_eq!(bytes, back);
    assert_eq!(code(client, &Call::Free { address: to }), Code::SUCCESS);
}

/// Shares a region of the server's memory with the client.
fn region(client: &ServerConnection, region: u64, bytes: u64) {
    let share = client.start(HERE, &Call::Share { region, bytes }).unwrap();
    let (answer, memory) = client.finish(share).unwrap();
    assert_eq!(answer.code, 0);
    assert!(memory.is_some());
}

fn is_running(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_client_comes_works_and_leaves() {
    let server = Server::start(&[]);
    let client = server.client();
    works(&client);
    assert_eq!(client.inventory().devices[0].name, "rgaps test GPU");
    let found = look(&server.endpoint);
    assert_eq!(
        (found.clients.len(), found.clients[0].program.as_str()),
        (1, "test")
    );
    client.close();
    until("the client has left", || server.clients() == 0);
}

#[test]
fn a_server_that_is_killed_ends_its_clients_calls() {
    let mut server = Server::start(&[]);
    let client = server.client();
    works(&client);
    let backend = look(&server.endpoint).clients[0].backend;
    // The backend's mappings, and so its device memory, are in another part of the address space than those of clients.
    let personality = std::fs::read_to_string(format!("/proc/{backend}/personality")).unwrap();
    let personality = u32::from_str_radix(personality.trim(), 16).unwrap();
    assert_ne!(personality & 0x020_0000, 0, "ADDR_COMPAT_LAYOUT");
    server.process.kill();
    until("the backend has ended", || !is_running(backend));
    until("calls fail", || {
        client.call(HERE, &Call::Synchronize, &[]).is_err()
    });
    assert!(client.is_lost());
    assert!(client.send(HERE, &Call::Free { address: 1 }, &[]).is_err());
}

#[test]
fn a_server_that_is_killed_ends_a_call_that_waits() {
    let mut server = Server::start(&[]);
    let client = server.client();
    endless(&client);
    let waiter = client.clone();
    let waiting = std::thread::spawn(move || waiter.call(HERE, &Call::Synchronize, &[]));
    server.process.kill();
    assert!(waiting.join().unwrap().is_err());
}

/// Starts a kernel that never ends.
fn endless(client: &ServerConnection) {
    let load = Call::LibraryLoad {
        library: 1,
        kernels: vec!["endless"],
    };
    assert_eq!(
        client.call(HERE, &load, ENDLESS.as_bytes()).unwrap().code,
        0
    );
    let launch = Call::Launch {
        kernel: KernelId {
            library: 1,
            index: 0,
        },
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        stream: 0,
        cooperative: false,
        attributes: Vec::new(),
        parameters: &[],
    };
    assert_eq!(code(client, &launch), Code::SUCCESS);
}

#[test]
fn the_time_in_which_a_client_waits_is_shown() {
    let server = Server::start(&[]);
    let client = server.client();
    works(&client);
    endless(&client);
    let waited = || look(&server.endpoint).clients[0].waited_ns;
    let before = waited();
    let waiter = client.clone();
    let waiting = std::thread::spawn(move || waiter.call(HERE, &Call::Synchronize, &[]));
    // The call still waits.
    until("the time grows", || waited() > before + 1_000_000);
    client.close();
    assert!(waiting.join().unwrap().is_err());
}

#[test]
fn servers_that_the_configuration_names_need_no_option() {
    let server = Server::start(&["--devices", "0"]);
    let realm = support::Realm::new();
    let configure = |servers: &str| {
        let text = format!("[gpu]\nservers = [{servers}]\n");
        std::fs::write(realm.path("rgaps.toml"), text).unwrap();
    };
    let named = realm.run(&["gpu", "list"]).fails_with(2);
    assert!(named.contains("gpu.servers"), "{named}");
    configure(&format!("\"{}\"", server.endpoint));
    let listed = realm.run(&["gpu", "list"]).ok();
    assert!(listed.contains("GPU 0: rgaps test GPU"), "{listed}");
    // A server that does not answer does not hide the others.
    configure(&format!("\"{}\", \"unix:/there/is/none\"", server.endpoint));
    let run = realm.run(&["gpu", "list"]);
    assert!(run.stdout.contains("GPU 0: rgaps test GPU"), "{run:?}");
    assert!(run.stderr.contains("/there/is/none"), "{run:?}");
    assert_ne!(run.code, 0);
    configure("\"host:name\"");
    let wrong = realm.run(&["gpu", "top"]).fails_with(2);
    assert!(wrong.contains("gpu.servers"), "{wrong}");
}

#[test]
fn a_client_that_vanishes_takes_its_endless_kernel_with_it() {
    let server = Server::start(&[]);
    let client = server.client();
    endless(&client);
    let backend = look(&server.endpoint).clients[0].backend;
    let waiter = client.clone();
    let waiting = std::thread::spawn(move || waiter.call(HERE, &Call::Synchronize, &[]));
    client.close();
    assert!(waiting.join().unwrap().is_err());
    until("the backend has ended", || !is_running(backend));
    works(&server.client());
}

#[test]
fn a_client_gets_no_more_memory_than_its_limit() {
    let server = Server::start(&["--memory", "1MiB"]);
    let (client, other) = (server.client(), server.client());
    let first = allocate(&client, 600 << 10);
    assert_eq!(
        code(&client, &Call::Allocate { bytes: 600 << 10 }),
        Code::OUT_OF_MEMORY
    );
    assert_eq!(
        client.call(HERE, &Call::MemoryInfo, &[]).unwrap().value,
        CallValue::Pair(424 << 10, 1 << 20)
    );
    assert_eq!(client.inventory().devices[0].total_bytes, 1 << 20);
    // Each client has a limit of its own.
    allocate(&other, 600 << 10);
    assert_eq!(code(&client, &Call::Free { address: first }), Code::SUCCESS);
    allocate(&client, 1 << 20);
}

#[test]
fn a_full_server_refuses_and_says_so() {
    let server = Server::start(&["--clients", "1"]);
    let client = server.client();
    match open(&server.endpoint, "second") {
        Err(ConnectError::Refused(_, reason)) => assert!(reason.contains("full"), "{reason}"),
        other => panic!("{other:?}"),
    }
    client.close();
    until("there is room again", || {
        open(&server.endpoint, "third").is_ok()
    });
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let nowhere: Endpoint = "unix:/there/is/none.sock".parse().unwrap();
    let error = open(&nowhere, "test").unwrap_err().to_string();
    assert!(
        error.contains("rgaps gpu serve") && error.contains("/there/is/none.sock"),
        "{error}"
    );
}

#[test]
fn a_server_that_is_killed_ends_copies_on_their_way() {
    let mut server = Server::start(&[]);
    let client = server.client();
    const BYTES: usize = 1 << 20;
    let from = allocate(&client, BYTES as u64);
    region(&client, 7, BYTES as u64);
    let mut here = vec![0u8; BYTES];
    let call = Call::CopyToRegion {
        region: 7,
        offset: 0,
        from,
        bytes: BYTES as u64,
        stream: 0,
    };
    let land = |to: *mut u8| {
        // SAFETY: `to` points to `here`, which has `BYTES` bytes. This function drops it only after `wait_for_async_copies`.
        unsafe { client.call_out_async(HERE, &call, to, BYTES) }
    };
    land(here.as_mut_ptr()).unwrap();
    client
        .wait_for_async_copies(here.as_ptr() as usize, BYTES)
        .unwrap();
    // These copies wait behind a kernel that never ends.
    endless(&client);
    for _ in 0..3 {
        land(here.as_mut_ptr()).unwrap();
    }
    server.process.kill();
    // Returns, whether the reading thread or this one sees the loss first.
    let _ = client.wait_for_async_copies(here.as_ptr() as usize, BYTES);
    until("calls fail", || {
        client.call(HERE, &Call::Synchronize, &[]).is_err()
    });
    assert!(land(here.as_mut_ptr()).is_err());
}

#[test]
fn the_first_quiet_failure_is_deferred_to_the_thread() {
    let server = Server::start(&[]);
    let client = server.client();
    let other = From {
        thread: 1,
        device: 0,
    };
    client
        .send(HERE, &Call::StreamDestroy { stream: 77 }, &[])
        .unwrap();
    client.send(HERE, &Call::Free { address: 5 }, &[]).unwrap();
    assert_eq!(
        client
            .call(other, &Call::Synchronize, &[])
            .unwrap()
            .deferred,
        0
    );
    assert_eq!(
        client.call(HERE, &Call::Synchronize, &[]).unwrap().deferred,
        Code::INVALID_HANDLE.0
    );
    assert_eq!(
        client.call(HERE, &Call::Synchronize, &[]).unwrap().deferred,
        0
    );
}

#[test]
fn the_daemon_keeps_a_server_that_the_configuration_asks_for() {
    let realm = support::Realm::new();
    let listen = format!("unix:{}", realm.path("gpu.sock").display());
    let text = format!("[gpu]\nserve = true\nlisten = [\"{listen}\"]\nclients = 3\n");
    std::fs::write(realm.path("rgaps.toml"), text).unwrap();
    let mut up = realm.command(&["up"]);
    up.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
    assert!(up.status().unwrap().success());
    let endpoint: Endpoint = listen.parse().unwrap();
    let look = || status(&plain(), &endpoint).ok();
    until("the server listens", || look().is_some());
    assert_eq!(look().unwrap().clients_max, 3);
    let client = open(&endpoint, "test").unwrap();
    works(&client);
    let backend = look().unwrap().clients[0].backend;
    assert!(realm.run(&["down"]).code == 0);
    until("server and backend have ended", || {
        look().is_none() && !is_running(backend)
    });
}

#[test]
fn an_image_is_sent_once() {
    let server = Server::start(&[]);
    // Large enough for the server to keep it, and unlike all other images.
    let text = format!("//{}\n{ENDLESS}", "x".repeat(20_000));
    let image = text.as_bytes();
    let known = Call::LibraryKnown {
        library: 1,
        digest: digest_of(image),
        kernels: vec!["endless"],
    };
    let client = server.client();
    let ask = |client: &ServerConnection| client.call(HERE, &known, &[]).unwrap();
    assert_eq!(
        (ask(&client).code, ask(&client).value),
        (0, CallValue::Nothing)
    );
    let load = Call::LibraryLoad {
        library: 1,
        kernels: vec!["endless"],
    };
    let loaded = client.call(HERE, &load, image).unwrap();
    assert!(matches!(&loaded.value, CallValue::Kernels(kernels) if kernels[0].code == 0));
    // Another client, which has not sent the image.
    assert_eq!(ask(&server.client()), loaded);
}

#[test]
fn bytes_of_large_copies_travel_over_stripes() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, said) = serve(folder.path(), &["--listen", "127.0.0.1:0"]);
    let at: Endpoint = said[0].parse().unwrap();
    let client = ServerConnection::open(
        &plain(),
        &at,
        "test",
        SessionOptions {
            stripes: 3,
            ..SessionOptions::default()
        },
    )
    .unwrap();
    carries(&client, (1 << 20) - 1);
    carries(&client, 1 << 20);
    carries(&client, 4 << 20);
    carries(&client, (9 << 20) + 12_345);
    // The server reads the bytes of a call that it refuses, too.
    let wrong = Call::CopyIn { to: 5, stream: 0 };
    client.send(HERE, &wrong, &vec![1; 5 << 20]).unwrap();
    let answer = client.call(HERE, &Call::Synchronize, &[]).unwrap();
    assert_eq!(answer.deferred, Code::INVALID_VALUE.0);
    carries(&client, 7 << 20);
    // Several threads copy at the same time.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| carries(&client, (5 << 20) + 1));
        }
    });
    assert_eq!(look(&at).clients.len(), 1);
}

/// Forwards connections to a server. Returns its own address, and a channel with its ends of the connections to the server.
fn carrier(server: &Endpoint) -> (Endpoint, std::sync::mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let (sender, ends) = std::sync::mpsc::channel();
    let server = server.to_string();
    let forward = |from: &TcpStream, to: &TcpStream| {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || {
            // An error ends the connection like an orderly end.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let server = TcpStream::connect(&server).unwrap();
            forward(&client, &server);
            forward(&server, &client);
            sender.send(server).unwrap();
        }
    });
    (at.parse().unwrap(), ends)
}

#[test]
fn a_session_ends_with_one_of_its_stripes() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, said) = serve(folder.path(), &["--listen", "127.0.0.1:0"]);
    let server: Endpoint = said[0].parse().unwrap();
    let (at, ends) = carrier(&server);
    let options = SessionOptions {
        stripes: 2,
        ..SessionOptions::default()
    };
    let client = ServerConnection::open(&plain(), &at, "test", options).unwrap();
    carries(&client, 4 << 20);
    let all: Vec<TcpStream> = ends.iter().take(3).collect();
    all[2].shutdown(Shutdown::Both).unwrap();
    until("the session has ended", || look(&server).clients.is_empty());
    assert!(client.call(HERE, &Call::Synchronize, &[]).is_err());
}
