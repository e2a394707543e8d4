//! The fuzz target of a client's calls, with seeded changes of a corpus; with libFuzzer by `make fuzz`.
#![forbid(unsafe_code)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

use rgaps_remoting::{
    decode_for_fuzzing, encode_for_fuzzing, Call, Extent, KernelId, MathArgument, Pitched,
    Resource, Shape, Tensor, TopicOptions, SAMPLER_BYTES,
};

/// Calls of each kind of content.
fn seeds() -> Vec<Vec<u8>> {
    let at = Pitched {
        array: 0,
        address: 1 << 46,
        row_bytes: 512,
        layer_bytes: 4096,
    };
    let extent = Extent {
        width_bytes: 300,
        height: 8,
        depth: 2,
    };
    let kernel = KernelId {
        library: 0x5247_0000_0010,
        index: 3,
    };
    let calls = [
        Call::Allocate { bytes: 4096 },
        Call::Math {
            function: 300,
            arguments: vec![
                MathArgument::Word(0x5247_0000_0010),
                MathArgument::Bytes(&[0, 0, 128, 63]),
                MathArgument::Room(96),
            ],
        },
        Call::CopyIn {
            to: at.address,
            stream: 2,
        },
        Call::Share {
            region: 48,
            bytes: 1 << 20,
        },
        Call::CopyShared {
            region: 48,
            host: at,
            device: at,
            extent,
            is_in: true,
            stream: 1,
            mark: Some(3),
        },
        Call::CopyToRegion {
            region: 48,
            offset: 4096,
            from: at.address,
            bytes: 77,
            stream: 0,
        },
        Call::WaitForMarks { marks: vec![1, 2] },
        Call::CopyRows {
            to: at,
            from: at,
            extent,
            stream: 0,
        },
        Call::ArrayCreate {
            array: 64,
            shape: Shape {
                width: 64,
                height: 16,
                depth: 0,
                format: 0x20,
                channels: 4,
                flags: 2,
            },
        },
        Call::TextureCreate {
            resource: Resource::Array(64),
            sampler: &[0; SAMPLER_BYTES],
            view: &[],
        },
        Call::TextureSampler { texture: 7 },
        Call::Fill {
            to: at,
            extent,
            value: 7,
            width: 4,
            stream: 1,
        },
        Call::StreamCreate {
            stream: 99,
            flags: 1,
            priority: -5,
        },
        Call::LibraryLoad {
            library: 16,
            kernels: vec!["_Z5saxpyifPKfPf", "other"],
        },
        Call::Variable {
            library: 16,
            name: "counter",
        },
        Call::GraphInstantiate {
            graph: 32,
            executable: 48,
            flags: 1,
        },
        Call::PoolSet {
            pool: 80,
            attribute: 4,
            value: u64::MAX,
        },
        Call::HostFunction {
            function: 64,
            stream: 2,
        },
        Call::Launch {
            kernel,
            grid: [3, 2, 1],
            block: [256, 1, 1],
            shared_bytes: 1024,
            stream: 0,
            cooperative: true,
            attributes: vec![(8, &[0; 64])],
            parameters: &[1, 2, 3, 4, 5, 6, 7, 8],
        },
        Call::TopicSubscriber {
            subscriber: 112,
            topic: "camera/left",
            options: TopicOptions {
                depth: 4,
                is_reliable: true,
                is_transient_local: false,
            },
        },
        Call::TopicPublish {
            publisher: 96,
            from: at.address,
            bytes: 4096,
            tensor: Some(Tensor {
                dtype: "float32".to_owned(),
                shape: vec![32, 32],
            }),
            stream: 2,
        },
        Call::TopicReceive {
            subscriber: 112,
            message: 128,
            timeout_ns: u64::MAX,
            stream: 1,
        },
        Call::Synchronize,
    ];
    calls.iter().map(encode_for_fuzzing).collect()
}

#[test]
fn calls_of_a_client() {
    seeded::run("calls", seeds(), decode_for_fuzzing, 20_000);
}
