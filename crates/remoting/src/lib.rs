//! CUDA programs on hosts without a GPU.
//!
//! A program loads libraries that stand in for NVIDIA's (`crates/interpose`). Their calls become calls of CUDA's driver
//! that travel over one connection to a server, where a process of this client's own makes them. The crate has both ends:
//!
//! - `frame` and `call` are what crosses the connection. They do no I/O.
//! - [`ServerConnection`] is the client's end: it batches calls that nobody waits for.
//! - [`Front`] is the server: it greets, and starts a backend process for each client.
//! - [`run_backend`] is that process: it makes the calls on the driver of `rgaps-cuda`, which may be the test driver.
//! - [`math`] is the table of functions of cuBLAS and other libraries above the runtime, which cross as they are.
//!
//! Why it is built so is in decision 0045.

#![warn(clippy::too_many_lines)]
mod array;
mod async_copy;
mod backend;
mod board;
mod call;
mod client;
mod codes;
mod communicator;
mod descriptor;
mod digest;
pub mod driver_abi;
mod expected_copies;
mod extent;
mod frame;
mod front;
mod limits;
pub mod math;
mod options;
mod pieces;
mod relay;
mod socket;
mod stripes;

pub use array::{Resource, Shape, SAMPLER_BYTES, VIEW_BYTES};
pub use backend::{
    decode_for_fuzzing, encode_for_fuzzing, run as run_backend, BackendError, BackendOptions,
};
pub use call::{
    Call, CallAnswer, CallValue, ClientInfo, DeviceInfo, Inventory, KernelId, KernelInfo,
    MathArgument, ServerStatus, Tensor, TopicOptions,
};
pub use client::{status, ConnectError, Counters, From, Lost, ServerConnection, Waited};
pub use codes::Code;
pub use communicator::{Communication, Communicator, Endpoint, GpuList, Protocol, PORT};
pub use digest::{digest_of, Digest};
pub use extent::{row, Extent, Pitched};
pub use front::{Front, FrontError, FrontOptions};
pub use limits::{
    CLIENT_THREADS_MAX, IMAGE_KEPT_BYTES_MIN, INLINE_BYTES, LAUNCH_ATTRIBUTES_MAX, MARKS_MAX,
    PARAMETER_BYTES_MAX, SERVERS_MAX,
};
pub use options::SessionOptions;
pub use pieces::pieces;
pub use socket::Socket;
