//! `gpu serve` and its clients, on the test driver: limits, clients that lie or vanish, a server that is killed.

use rgaps_remoting::{
    status, Call, Code, ConnectError, Connection, Endpoint, Extent, From, KernelId, Pitched, Value,
};
use rgaps_testkit::{until, Process, Random};
use serde_json::Value as Json;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

const HERE: From = From { lane: 0, device: 0 };

/// A kernel that does not end.
const ENDLESS: &str = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry endless()\n{\n$L_again:\nbra $L_again;\n}\n\0";

struct Server {
    process: Process,
    endpoint: Endpoint,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(options: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.sock");
        let listen = format!("unix:{}", path.display());
        let (said, saying) = UnixStream::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
        command
            .args(["--json", "gpu", "serve", "--listen", &listen])
            .args(options);
        command.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
        command
            .stdin(Stdio::null())
            .stdout(std::os::fd::OwnedFd::from(saying));
        let process = Process::start(&mut command);
        drop(command);
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).unwrap();
        let serving: Json = serde_json::from_str(&line).expect("a server says where it listens");
        assert_eq!(serving["listen"][0], listen.as_str());
        Server {
            process,
            endpoint: listen.parse().unwrap(),
            path,
            _folder: folder,
        }
    }

    fn client(&self) -> Arc<Connection> {
        Connection::open(&self.endpoint, "test").unwrap()
    }

    fn clients(&self) -> usize {
        status(&self.endpoint).unwrap().clients.len()
    }
}

fn code(client: &Connection, call: &Call<'_>) -> Code {
    Code(client.call(HERE, call, &[]).unwrap().code)
}

fn allocate(client: &Connection, bytes: u64) -> u64 {
    let answer = client.call(HERE, &Call::Allocate { bytes }, &[]).unwrap();
    match answer.value {
        Value::Number(address) => address,
        other => panic!("{other:?}, {}", answer.code),
    }
}

/// Bytes there and back.
fn works(client: &Connection) {
    let to = allocate(client, 100_000);
    let bytes: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
    client
        .send(HERE, &Call::CopyIn { to, stream: 0 }, &bytes)
        .unwrap();
    let mut back = vec![0; bytes.len()];
    let call = Call::CopyOut {
        from: to,
        bytes: bytes.len() as u64,
        stream: 0,
    };
    // SAFETY: the buffer is this function's, and has this length.
    let answer = unsafe { client.call_out(HERE, &call, back.as_mut_ptr(), back.len()) };
    assert_eq!(answer.unwrap().code, 0);
    assert_eq!(bytes, back);
    assert_eq!(code(client, &Call::Free { address: to }), Code::SUCCESS);
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
    let found = status(&server.endpoint).unwrap();
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
    let backend = status(&server.endpoint).unwrap().clients[0].backend;
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

/// Starts a kernel that does not end.
fn endless(client: &Connection) {
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
fn a_client_that_vanishes_takes_its_endless_kernel_with_it() {
    let server = Server::start(&[]);
    let client = server.client();
    endless(&client);
    let backend = status(&server.endpoint).unwrap().clients[0].backend;
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
        Value::Pair(424 << 10, 1 << 20)
    );
    assert_eq!(client.inventory().devices[0].total_bytes, 1 << 20);
    // Another client has its own.
    allocate(&other, 600 << 10);
    assert_eq!(code(&client, &Call::Free { address: first }), Code::SUCCESS);
    allocate(&client, 1 << 20);
}

#[test]
fn a_full_server_refuses_and_says_so() {
    let server = Server::start(&["--clients", "1"]);
    let client = server.client();
    match Connection::open(&server.endpoint, "second") {
        Err(ConnectError::Refused(_, reason)) => assert!(reason.contains("full"), "{reason}"),
        other => panic!("{other:?}"),
    }
    client.close();
    until("there is room again", || {
        Connection::open(&server.endpoint, "third").is_ok()
    });
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let nowhere: Endpoint = "unix:/there/is/none.sock".parse().unwrap();
    let error = Connection::open(&nowhere, "test").unwrap_err().to_string();
    assert!(
        error.contains("rgaps gpu serve") && error.contains("/there/is/none.sock"),
        "{error}"
    );
}

#[test]
fn wrong_handles_and_addresses_are_refused() {
    let server = Server::start(&[]);
    let client = server.client();
    let address = allocate(&client, 4096);
    let extent = |width_bytes, height| Extent {
        width_bytes,
        height,
        depth: 1,
    };
    let at = |address, row_bytes| Pitched {
        address,
        row_bytes,
        layer_bytes: 0,
    };
    let here = std::ptr::from_ref(&server) as u64;
    let kernel = KernelId {
        library: 7,
        index: 7,
    };
    for (call, wanted) in [
        (Call::Free { address: here }, Code::INVALID_VALUE),
        (
            Call::Free {
                address: address + 1,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::CopyOut {
                from: here,
                bytes: 8,
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::CopyOut {
                from: address,
                bytes: 4097,
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::CopyOut {
                from: address,
                bytes: u64::MAX,
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::CopyOut {
                from: u64::MAX,
                bytes: 8,
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::Copy {
                to: here,
                from: address,
                bytes: 8,
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::CopyOutRows {
                from: at(address, 64),
                extent: extent(64, 65),
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::CopyOutRows {
                from: at(address, u64::MAX),
                extent: extent(64, 3),
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::Fill {
                to: at(here, 8),
                extent: extent(8, 1),
                value: 0,
                width: 1,
                stream: 0,
            },
            Code::INVALID_VALUE,
        ),
        (Call::StreamSynchronize { stream: 99 }, Code::INVALID_HANDLE),
        (Call::StreamDestroy { stream: 0 }, Code::INVALID_HANDLE),
        (
            Call::StreamCreate {
                stream: 1,
                flags: 0,
                priority: 0,
            },
            Code::INVALID_VALUE,
        ),
        (Call::EventSynchronize { event: 99 }, Code::INVALID_HANDLE),
        (
            Call::EventCreate { event: 0, flags: 0 },
            Code::INVALID_VALUE,
        ),
        (Call::LibraryUnload { library: 99 }, Code::INVALID_HANDLE),
        (Call::KernelInfo { kernel }, Code::INVALID_HANDLE),
        (
            Call::Variable {
                library: 99,
                name: "x",
            },
            Code::INVALID_HANDLE,
        ),
        (Call::PeerEnable { device: 500 }, Code::INVALID_DEVICE),
    ] {
        assert_eq!(code(&client, &call), wanted, "{call:?}");
    }
    let far = From {
        lane: 0,
        device: 500,
    };
    assert_eq!(
        client.call(far, &Call::Synchronize, &[]).unwrap().code,
        Code::INVALID_DEVICE.0
    );
    works(&client);
}

#[test]
fn parameters_that_are_too_short_are_refused() {
    let server = Server::start(&[]);
    let client = server.client();
    let text = ".version 6.3\n.target sm_70\n.visible .entry one(.param .u64 a, .param .u32 b)\n{\nret;\n}\n\0";
    let load = Call::LibraryLoad {
        library: 1,
        kernels: vec!["one", "none"],
    };
    let Value::Kernels(infos) = client.call(HERE, &load, text.as_bytes()).unwrap().value else {
        panic!("no kernels")
    };
    assert_eq!(infos[0].parameters, [(0, 8), (8, 4)]);
    assert_eq!(infos[1].code, Code::NOT_FOUND.0);
    let launch = |parameters, attributes| Call::Launch {
        kernel: KernelId {
            library: 1,
            index: 0,
        },
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        stream: 0,
        cooperative: false,
        attributes,
        parameters,
    };
    assert_eq!(
        code(&client, &launch(&[0; 11], vec![])),
        Code::INVALID_VALUE
    );
    assert_eq!(code(&client, &launch(&[], vec![])), Code::INVALID_VALUE);
    // An attribute with a handle in it.
    assert_eq!(
        code(&client, &launch(&[0; 12], vec![(7, &[0; 64])])),
        Code::NOT_SUPPORTED
    );
    assert_eq!(
        code(&client, &launch(&[0; 12], vec![(8, &[0; 65])])),
        Code::NOT_SUPPORTED
    );
    assert_eq!(code(&client, &launch(&[0; 12], vec![])), Code::SUCCESS);
}

/// A region of the server's memory.
fn region(client: &Connection, region: u64, bytes: u64) {
    let share = client.start(HERE, &Call::Share { region, bytes }).unwrap();
    let (answer, memory) = client.finish(share).unwrap();
    assert_eq!(answer.code, 0);
    assert!(memory.is_some());
}

#[test]
fn lies_about_shared_memory_are_refused() {
    let server = Server::start(&[]);
    let client = server.client();
    let address = allocate(&client, 8192);
    region(&client, 7, 8192);
    let (at, extent) = (
        |address| Pitched {
            address,
            row_bytes: 64,
            layer_bytes: 64,
        },
        |width_bytes, height| Extent {
            width_bytes,
            height,
            depth: 1,
        },
    );
    let copy = |region, offset, device, extent, mark| Call::CopyShared {
        region,
        host: at(offset),
        device: at(device),
        extent,
        is_in: false,
        stream: 0,
        mark,
    };
    let to_region = |offset, from, bytes| Call::CopyToRegion {
        region: 7,
        offset,
        from,
        bytes,
        stream: 0,
    };
    let here = std::ptr::from_ref(&server) as u64;
    let row = |bytes| extent(bytes, 1);
    for (call, wanted) in [
        (copy(7, 8000, address, row(193), None), Code::INVALID_VALUE),
        (
            copy(7, u64::MAX, address, row(1), None),
            Code::INVALID_VALUE,
        ),
        (
            copy(7, 0, address, row(u64::MAX), None),
            Code::INVALID_VALUE,
        ),
        (
            copy(7, 0, address, extent(64, 129), None),
            Code::INVALID_VALUE,
        ),
        (copy(7, 0, here, row(8), None), Code::INVALID_VALUE),
        (copy(8, 0, address, row(8), None), Code::INVALID_HANDLE),
        (copy(7, 0, address, row(8), Some(64)), Code::INVALID_VALUE),
        (to_region(8000, address, 193), Code::INVALID_VALUE),
        (to_region(0, address, 8193), Code::INVALID_VALUE),
        (to_region(0, here, 8), Code::INVALID_VALUE),
        (
            Call::WaitForMarks {
                marks: vec![0; 1000],
            },
            Code::INVALID_VALUE,
        ),
        (Call::WaitForMarks { marks: vec![999] }, Code::SUCCESS),
        (Call::Unshare { region: 8 }, Code::INVALID_HANDLE),
        (
            Call::Share {
                region: 7,
                bytes: 4096,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::Share {
                region: 9,
                bytes: 1 << 60,
            },
            Code::OUT_OF_MEMORY,
        ),
        (copy(7, 8000, address, row(192), Some(63)), Code::SUCCESS),
    ] {
        assert_eq!(code(&client, &call), wanted, "{call:?}");
    }
    assert_eq!(code(&client, &Call::Unshare { region: 7 }), Code::SUCCESS);
    let gone = copy(7, 0, address, row(8), None);
    assert_eq!(code(&client, &gone), Code::INVALID_HANDLE);
    works(&client);
}

#[test]
fn wrong_functions_graphs_and_pools_are_refused() {
    let server = Server::start(&[]);
    let client = server.client();
    let (graph, stream, pool) = (5, 0, 5);
    for (call, wanted) in [
        (
            Call::HostFunction {
                function: 1,
                stream: 99,
            },
            Code::INVALID_HANDLE,
        ),
        (Call::HostFunctionDone { function: 1 }, Code::INVALID_VALUE),
        (Call::GraphNodes { graph }, Code::INVALID_VALUE),
        (Call::GraphDestroy { graph }, Code::INVALID_VALUE),
        (
            Call::GraphLaunch {
                executable: 5,
                stream,
            },
            Code::INVALID_VALUE,
        ),
        (
            Call::GraphInstantiate {
                graph,
                executable: 6,
                flags: 0,
            },
            Code::INVALID_VALUE,
        ),
        (Call::CaptureBegin { stream: 99 }, Code::INVALID_HANDLE),
        (Call::PoolDestroy { pool }, Code::INVALID_VALUE),
        (Call::PoolUse { pool }, Code::INVALID_VALUE),
        (Call::PoolGet { pool, attribute: 4 }, Code::INVALID_VALUE),
        (
            Call::AllocateFromPool {
                bytes: 8,
                pool,
                stream,
            },
            Code::INVALID_VALUE,
        ),
        (Call::PoolDefault { pool }, Code::SUCCESS),
        (Call::PoolDefault { pool }, Code::INVALID_VALUE),
        (Call::PoolDestroy { pool }, Code::INVALID_VALUE),
        (Call::PoolGet { pool, attribute: 0 }, Code::INVALID_VALUE),
        (
            Call::PoolGet {
                pool,
                attribute: 99,
            },
            Code::INVALID_VALUE,
        ),
    ] {
        assert_eq!(code(&client, &call), wanted, "{call:?}");
    }
    works(&client);
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
        // SAFETY: the buffer is this function's, has this length, and stays until the landings are over.
        unsafe { client.land(HERE, &call, to, BYTES) }
    };
    land(here.as_mut_ptr()).unwrap();
    client
        .wait_for_landings(here.as_ptr() as usize, BYTES)
        .unwrap();
    // Behind a kernel that does not end.
    endless(&client);
    for _ in 0..3 {
        land(here.as_mut_ptr()).unwrap();
    }
    server.process.kill();
    // Whether the loss is seen by the thread that reads or by this one, it comes back.
    let _ = client.wait_for_landings(here.as_ptr() as usize, BYTES);
    until("calls fail", || {
        client.call(HERE, &Call::Synchronize, &[]).is_err()
    });
    assert!(land(here.as_mut_ptr()).is_err());
}

#[test]
fn the_first_quiet_failure_is_deferred_to_the_lane() {
    let server = Server::start(&[]);
    let client = server.client();
    let other = From { lane: 1, device: 0 };
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
fn strangers_and_liars_harm_nobody() {
    let server = Server::start(&[]);
    let good = server.client();
    let seed = rgaps_testkit::seed();
    let mut random = Random::new(seed);
    for round in 0..60 {
        let mut stranger = UnixStream::connect(&server.path).unwrap();
        let length = random.below(300) as usize;
        let junk: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        // It may be closed before it has all.
        let _ = stranger.write_all(&junk);
        if round % 10 == 0 {
            works(&good);
        }
    }
    for round in 0..40 {
        let client = server.client();
        // An address and a stream that are not its own, with bytes behind them.
        let call = Call::CopyIn {
            to: random.next_u64(),
            stream: random.below(4),
        };
        client
            .send(HERE, &call, &vec![round; random.below(100_000) as usize])
            .unwrap();
        let _ = client.call(HERE, &Call::Synchronize, &[]);
        let quiet = Call::Synchronize;
        // Nobody may wait without an answer.
        let _ = client.send(HERE, &quiet, &[]);
        until("the liar is put out", || {
            client.call(HERE, &Call::Synchronize, &[]).is_err()
        });
    }
    works(&good);
    until("only one client is left", || server.clients() == 1);
}

#[test]
fn a_stranger_that_says_nothing_does_not_stay() {
    let server = Server::start(&[]);
    let mut stranger = UnixStream::connect(&server.path).unwrap();
    // It reads the end when its time is over.
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    assert!(rest.is_empty());
    works(&server.client());
}
