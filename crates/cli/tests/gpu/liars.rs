//! Misbehaving clients: wrong handles, addresses and lengths; strangers that send junk or nothing.

use super::{allocate, code, region, works, Server, HERE};
use rgaps_remoting::{Call, CallValue, Code, Extent, From, KernelId, Pitched};
use rgaps_testkit::{until, Random};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

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
        array: 0,
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
        thread: 0,
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
    let CallValue::Kernels(infos) = client.call(HERE, &load, text.as_bytes()).unwrap().value else {
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
    // Attribute 7 contains a handle.
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

#[test]
fn lies_about_shared_memory_are_refused() {
    let server = Server::start(&[]);
    let client = server.client();
    let address = allocate(&client, 8192);
    region(&client, 7, 8192);
    let (at, extent) = (
        |address| Pitched {
            array: 0,
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
fn strangers_and_liars_harm_nobody() {
    let server = Server::start(&[]);
    let good = server.client();
    let seed = rgaps_testkit::seed();
    let mut random = Random::new(seed);
    for round in 0..60 {
        let mut stranger = UnixStream::connect(&server.path).unwrap();
        let length = random.below(300) as usize;
        let junk: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        // The server may close the connection before it has read everything.
        let _ = stranger.write_all(&junk);
        if round % 10 == 0 {
            works(&good);
        }
    }
    for round in 0..40 {
        let client = server.client();
        // An address and a stream that the client does not own, with the bytes of a copy.
        let call = Call::CopyIn {
            to: random.next_u64(),
            stream: random.below(4),
        };
        client
            .send(HERE, &call, &vec![round; random.below(100_000) as usize])
            .unwrap();
        let _ = client.call(HERE, &Call::Synchronize, &[]);
        let quiet = Call::Synchronize;
        // No client may wait for a call that has no answer.
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
    // The server closes the connection when the time for the handshake is over.
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    assert!(rest.is_empty());
    works(&server.client());
}
