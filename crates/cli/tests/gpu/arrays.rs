//! Arrays, textures and surfaces of clients that violate the protocol.

use super::{allocate, code, Server, HERE};
use rgaps_remoting::{
    Call, CallValue, Code, Extent, Pitched, Resource, ServerConnection, Shape, SAMPLER_BYTES,
    VIEW_BYTES,
};

const FLOATS: u32 = 0x20;

fn shape(width: u64, height: u64) -> Shape {
    Shape {
        width,
        height,
        format: FLOATS,
        channels: 1,
        ..Shape::default()
    }
}

fn create(client: &ServerConnection, array: u64, shape: Shape) -> Code {
    code(client, &Call::ArrayCreate { array, shape })
}

#[test]
fn copies_that_leave_an_array_are_refused() {
    let server = Server::start(&[]);
    let client = server.client();
    let address = allocate(&client, 1 << 20);
    let array = shape(16, 8);
    assert_eq!(create(&client, 64, array), Code::SUCCESS);
    let memory = Pitched {
        address,
        row_bytes: 64,
        ..Pitched::default()
    };
    let copy = |to, width_bytes, height, depth| Call::CopyRows {
        to,
        from: memory,
        extent: Extent {
            width_bytes,
            height,
            depth,
        },
        stream: 0,
    };
    let at = |array_number, position| array.element(array_number, position).unwrap();
    let whole = copy(at(64, (0, 0, 0)), 64, 8, 1);
    assert_eq!(code(&client, &whole), Code::SUCCESS);
    let shorter = Pitched {
        row_bytes: 32,
        ..at(64, (0, 0, 0))
    };
    let far = Pitched {
        address: u64::MAX,
        ..at(64, (0, 0, 0))
    };
    for (call, wanted) in [
        (copy(at(64, (4, 0, 0)), 64, 8, 1), Code::INVALID_VALUE),
        (copy(at(64, (0, 1, 0)), 64, 8, 1), Code::INVALID_VALUE),
        (copy(at(64, (0, 0, 1)), 64, 8, 1), Code::INVALID_VALUE),
        (copy(shorter, 32, 8, 1), Code::INVALID_VALUE),
        (copy(far, 4, 1, 1), Code::INVALID_VALUE),
        (copy(at(65, (0, 0, 0)), 64, 8, 1), Code::INVALID_HANDLE),
    ] {
        assert_eq!(code(&client, &call), wanted, "{call:?}");
    }
    let fill = Call::Fill {
        to: Pitched {
            array: 64,
            ..memory
        },
        extent: Extent {
            width_bytes: 4,
            height: 1,
            depth: 1,
        },
        value: 1,
        width: 1,
        stream: 0,
    };
    assert_eq!(code(&client, &fill), Code::INVALID_VALUE);
}

#[test]
fn arrays_count_as_memory_of_the_client() {
    let server = Server::start(&["--memory", "1MiB"]);
    let client = server.client();
    let (half, quarter) = (shape(512, 256), shape(512, 128));
    let mipmap = Call::MipmapCreate {
        mipmap: 96,
        shape: quarter,
        levels: 10,
    };
    assert_eq!(create(&client, 64, half), Code::SUCCESS);
    assert_eq!(create(&client, 64, half), Code::INVALID_VALUE, "twice");
    assert_eq!(code(&client, &mipmap), Code::SUCCESS);
    assert_eq!(create(&client, 80, quarter), Code::OUT_OF_MEMORY);
    let level = Call::MipmapLevel {
        mipmap: 96,
        level: 1,
        array: 112,
    };
    assert_eq!(code(&client, &level), Code::SUCCESS);
    let destroy = |array| Call::ArrayDestroy { array };
    assert_eq!(code(&client, &destroy(112)), Code::INVALID_VALUE, "a level");
    let whole = Call::MipmapDestroy { mipmap: 96 };
    assert_eq!(code(&client, &whole), Code::SUCCESS);
    assert_eq!(code(&client, &destroy(112)), Code::INVALID_HANDLE);
    assert_eq!(code(&client, &destroy(64)), Code::SUCCESS);
    assert_eq!(code(&client, &destroy(64)), Code::INVALID_HANDLE);
    assert_eq!(
        client.call(HERE, &Call::MemoryInfo, &[]).unwrap().value,
        CallValue::Pair(1 << 20, 1 << 20)
    );
    for wrong in [
        shape(0, 1),
        shape(u64::MAX, u64::MAX),
        Shape {
            channels: 3,
            ..half
        },
    ] {
        assert_eq!(create(&client, 80, wrong), Code::INVALID_VALUE, "{wrong:?}");
    }
    let sparse = Shape {
        flags: 0x40,
        ..half
    };
    assert_eq!(create(&client, 80, sparse), Code::NOT_SUPPORTED);
}

#[test]
fn textures_of_what_is_not_the_clients_are_refused() {
    let server = Server::start(&[]);
    let client = server.client();
    let address = allocate(&client, 4096);
    assert_eq!(create(&client, 64, shape(16, 8)), Code::SUCCESS);
    let sampler = [0; SAMPLER_BYTES];
    let view = [0; VIEW_BYTES];
    let texture = |resource, sampler, view| Call::TextureCreate {
        resource,
        sampler,
        view,
    };
    let linear = |address, bytes| Resource::Linear {
        address,
        format: FLOATS,
        channels: 1,
        bytes,
    };
    let rows = |pitch, height| Resource::Rows {
        address,
        format: FLOATS,
        channels: 1,
        width: 16,
        height,
        pitch,
    };
    for (resource, wanted) in [
        (linear(address, 4096), Code::SUCCESS),
        (rows(64, 64), Code::SUCCESS),
        (Resource::Array(64), Code::SUCCESS),
        (linear(address, 4097), Code::INVALID_VALUE),
        (
            linear(std::ptr::from_ref(&server) as u64, 8),
            Code::INVALID_VALUE,
        ),
        (rows(64, 65), Code::INVALID_VALUE),
        (rows(32, 2), Code::INVALID_VALUE),
        (rows(u64::MAX, u64::MAX), Code::INVALID_VALUE),
        (Resource::Array(65), Code::INVALID_HANDLE),
        (Resource::Mipmap(64), Code::INVALID_HANDLE),
    ] {
        let call = texture(resource, &sampler, &view);
        assert_eq!(code(&client, &call), wanted, "{resource:?}");
    }
    for call in [
        texture(Resource::Array(64), &sampler[1..], &[]),
        texture(Resource::Array(64), &sampler, &view[8..]),
        Call::TextureDestroy { texture: 7 },
        Call::TextureSampler { texture: 7 },
        Call::SurfaceDestroy { surface: 7 },
    ] {
        assert_eq!(code(&client, &call), Code::INVALID_VALUE, "{call:?}");
    }
    let surface = Call::SurfaceCreate { array: 65 };
    assert_eq!(code(&client, &surface), Code::INVALID_HANDLE);
}
