//! The contents of frames: calls of the client and answers of the server, encoded by postcard.
//!
//! Calls are those of CUDA's driver. The client mints the handles of streams, events and libraries, so that it
//! need not wait for them; addresses are the server's, since kernels dereference them.

use crate::array::{Resource, Shape};
use crate::digest::Digest;
use crate::extent::{Extent, Pitched};
use serde::{Deserialize, Serialize};

/// Changes with every change of this file or of frames.
pub const PROTOCOL: u32 = 7;
/// The beginning of a hello.
pub const MAGIC: [u8; 8] = *b"rgapsGPU";

/// The client's first message.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// What the connection is for.
    pub wish: Wish,
}

/// What a connection is for.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// To use GPUs.
    Session {
        /// The program's name, for listings.
        program: String,
        /// Its process id on its host.
        pid: u32,
        /// Which of the program's servers this one is. Each has its device memory at addresses of its own.
        server: u8,
    },
    /// To see who uses them.
    Status,
    /// To carry bytes of a session.
    Stripe {
        /// The session's, from its welcome.
        token: [u8; 16],
        /// Its position among the stripes.
        index: u8,
    },
}

/// The server's answer to a hello.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub enum Welcome {
    /// The session begins.
    Session {
        /// The GPUs.
        inventory: Inventory,
        /// The token that its stripes have to name.
        token: [u8; 16],
    },
    /// The connection belongs to its session now.
    Stripe,
    /// The server's GPUs and clients.
    Status(ServerStatus),
    /// The server refuses, for this reason.
    Refused(String),
}

/// The server's GPUs.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// The CUDA version that the driver supports, as `cuDriverGetVersion` has it.
    pub driver_version: i32,
    /// By ordinal.
    pub devices: Vec<DeviceInfo>,
}

/// A GPU.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct DeviceInfo {
    /// Its product name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes of its memory, or the limit of this client if that is lower.
    pub total_bytes: u64,
    /// Its address on the server's PCI bus.
    pub pci_bus_id: String,
    /// Attributes by number, from 1 on; those that the driver does not know are missing.
    pub attributes: Vec<(i32, i32)>,
    /// Whether it can access the memory of each device.
    pub peers: Vec<bool>,
}

/// A server, for `rgaps gpu list` and `rgaps gpu top`.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ServerStatus {
    /// The names of its GPUs.
    pub devices: Vec<String>,
    /// Its clients.
    pub clients: Vec<ClientInfo>,
    /// Most clients that it takes.
    pub clients_max: u32,
}

/// A client of a server.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientInfo {
    /// The backend's process id on the server.
    pub backend: u32,
    /// The program.
    pub program: String,
    /// Its process id on its host.
    pub pid: u32,
    /// Its address, for people.
    pub from: String,
    /// Calls so far.
    pub calls: u64,
    /// Bytes from it.
    pub bytes_in: u64,
    /// Bytes to it.
    pub bytes_out: u64,
    /// GPU memory that it holds.
    pub memory_bytes: u64,
    /// Time in which a call of its waited, for the GPU as a rule.
    pub waited_ns: u64,
}

/// A kernel: one of the names that its library was loaded with.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelId {
    /// The client's number of the library.
    pub library: u64,
    /// Position of its name among those of the library.
    pub index: u32,
}

/// A call.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[allow(
    missing_docs,
    reason = "its fields are the parameters of CUDA's function"
)]
pub enum Call<'a> {
    /// `cuMemAlloc`. Gives an address.
    Allocate { bytes: u64 },
    /// `cuMemAllocAsync`. Gives an address.
    AllocateOnStream { bytes: u64, stream: u64 },
    /// `cuMemAllocFromPoolAsync`. Gives an address.
    AllocateFromPool { bytes: u64, pool: u64, stream: u64 },
    /// `cuDeviceGetDefaultMemPool`, which gets this number.
    PoolDefault { pool: u64 },
    /// `cuMemPoolCreate`.
    PoolCreate { pool: u64, bytes_max: u64 },
    /// `cuMemPoolDestroy`.
    PoolDestroy { pool: u64 },
    /// `cuDeviceSetMemPool`.
    PoolUse { pool: u64 },
    /// `cuMemPoolSetAttribute`.
    PoolSet {
        pool: u64,
        attribute: u32,
        value: u64,
    },
    /// `cuMemPoolGetAttribute`. Gives a number.
    PoolGet { pool: u64, attribute: u32 },
    /// `cuMemPoolTrimTo`.
    PoolTrim { pool: u64, bytes: u64 },
    /// `cuMemFree`.
    Free { address: u64 },
    /// `cuMemFreeAsync`.
    FreeOnStream { address: u64, stream: u64 },
    /// `cuMemGetInfo`. Gives free and total bytes.
    MemoryInfo,
    /// Copies the bytes behind the frame to the device.
    CopyIn { to: u64, stream: u64 },
    /// Copies rows to the device, which follow each other without gaps behind the frame.
    CopyInRows {
        to: Pitched,
        extent: Extent,
        stream: u64,
    },
    /// Gives bytes of the device.
    CopyOut { from: u64, bytes: u64, stream: u64 },
    /// Gives rows without gaps.
    CopyOutRows {
        from: Pitched,
        extent: Extent,
        stream: u64,
    },
    /// Makes a region of the server's memory. On a Unix socket the answer has its descriptor with it, and both ends have the memory.
    Share { region: u64, bytes: u64 },
    /// Gives a region back.
    Unshare { region: u64 },
    /// Copies between a region and the device; the address of `host` is an offset in the region. The answer comes after the copy.
    /// A client can wait for a copy with a `mark` by that number.
    CopyShared {
        region: u64,
        host: Pitched,
        device: Pitched,
        extent: Extent,
        is_in: bool,
        stream: u64,
        mark: Option<u16>,
    },
    /// Copies to a region, and gives the bytes when the copy is done. The client does not map that region.
    CopyToRegion {
        region: u64,
        offset: u64,
        from: u64,
        bytes: u64,
        stream: u64,
    },
    /// Waits for the last copies with these marks.
    WaitForMarks { marks: Vec<u16> },
    /// Copies on the server.
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
        stream: u64,
    },
    /// Copies rows on the server.
    CopyRows {
        to: Pitched,
        from: Pitched,
        extent: Extent,
        stream: u64,
    },
    /// `cuArray3DCreate`.
    ArrayCreate { array: u64, shape: Shape },
    /// `cuArrayDestroy`.
    ArrayDestroy { array: u64 },
    /// `cuMipmappedArrayCreate`.
    MipmapCreate {
        mipmap: u64,
        shape: Shape,
        levels: u32,
    },
    /// `cuMipmappedArrayGetLevel`, which gets the number `array`.
    MipmapLevel { mipmap: u64, level: u32, array: u64 },
    /// `cuMipmappedArrayDestroy`.
    MipmapDestroy { mipmap: u64 },
    /// `cuTexObjectCreate`; `sampler` and `view` are the driver's structures, which contain no addresses, and `view` may be empty. Gives
    /// the driver's handle, since kernels get it as a parameter.
    TextureCreate {
        resource: Resource,
        sampler: &'a [u8],
        view: &'a [u8],
    },
    /// `cuTexObjectDestroy`.
    TextureDestroy { texture: u64 },
    /// `cuTexObjectGetTextureDesc`: the driver gives back what it made of the structure.
    TextureSampler { texture: u64 },
    /// `cuSurfObjectCreate`. Gives the driver's handle.
    SurfaceCreate { array: u64 },
    /// `cuSurfObjectDestroy`.
    SurfaceDestroy { surface: u64 },
    /// Sets elements of 1, 2 or 4 bytes; `extent` counts bytes.
    Fill {
        to: Pitched,
        extent: Extent,
        value: u32,
        width: u8,
        stream: u64,
    },
    /// `cuLaunchHostFunc` of a function of the client.
    HostFunction { function: u64, stream: u64 },
    /// Waits until a stream has reached a function. Gives its number.
    NextHostFunction,
    /// The client has run a function.
    HostFunctionDone { function: u64 },
    /// `cuStreamBeginCapture`.
    CaptureBegin { stream: u64 },
    /// `cuStreamEndCapture`.
    CaptureEnd { stream: u64, graph: u64 },
    /// `cuStreamGetCaptureInfo`. Gives the state and the number of the recording.
    CaptureStatus { stream: u64 },
    /// The nodes of `cuStreamGetCaptureInfo`: those on which the next node will depend.
    CaptureNodes { stream: u64 },
    /// `cuGraphGetNodes`. Gives them.
    GraphNodes { graph: u64 },
    /// `cuGraphInstantiateWithFlags`.
    GraphInstantiate {
        graph: u64,
        executable: u64,
        flags: u64,
    },
    /// `cuGraphExecUpdate`. Gives its result, 0 if the graph fits.
    GraphUpdate { executable: u64, graph: u64 },
    /// `cuGraphUpload`.
    GraphUpload { executable: u64, stream: u64 },
    /// `cuGraphLaunch`.
    GraphLaunch { executable: u64, stream: u64 },
    /// `cuGraphDestroy`.
    GraphDestroy { graph: u64 },
    /// `cuGraphExecDestroy`.
    GraphExecDestroy { executable: u64 },
    /// `cuStreamCreateWithPriority`.
    StreamCreate {
        stream: u64,
        flags: u32,
        priority: i32,
    },
    /// `cuStreamDestroy`.
    StreamDestroy { stream: u64 },
    /// `cuStreamSynchronize`.
    StreamSynchronize { stream: u64 },
    /// `cuStreamQuery`.
    StreamQuery { stream: u64 },
    /// `cuStreamWaitEvent`.
    StreamWaitEvent { stream: u64, event: u64, flags: u32 },
    /// `cuEventCreate`.
    EventCreate { event: u64, flags: u32 },
    /// `cuEventDestroy`.
    EventDestroy { event: u64 },
    /// `cuEventRecordWithFlags`.
    EventRecord { event: u64, stream: u64, flags: u32 },
    /// `cuEventSynchronize`.
    EventSynchronize { event: u64 },
    /// `cuEventQuery`.
    EventQuery { event: u64 },
    /// `cuEventElapsedTime`. Gives milliseconds.
    EventElapsed { start: u64, end: u64 },
    /// `cuCtxSynchronize`.
    Synchronize,
    /// `cuLibraryLoadData`, with the image behind the frame. Gives descriptions of the kernels.
    LibraryLoad { library: u64, kernels: Vec<&'a str> },
    /// `cuLibraryLoadData` of an image that the server may have kept, by its digest. Gives nothing if it has not: the client then sends
    /// the image.
    LibraryKnown {
        library: u64,
        digest: Digest,
        kernels: Vec<&'a str>,
    },
    /// Finds more kernels of a library. Gives descriptions of them.
    LibraryMore { library: u64, kernels: Vec<&'a str> },
    /// `cuLibraryGetModule`: the driver, which loads lazily, loads the code now, and gives an error if that fails.
    LibraryNow { library: u64 },
    /// `cuLibraryUnload`.
    LibraryUnload { library: u64 },
    /// `cuLibraryGetGlobal`, or `cuLibraryGetManaged`. Gives address and bytes.
    Variable { library: u64, name: &'a str },
    /// `cuKernelGetAttribute`, all of them.
    KernelInfo { kernel: KernelId },
    /// `cuKernelSetAttribute`.
    KernelSet {
        kernel: KernelId,
        attribute: i32,
        value: i32,
    },
    /// `cuLaunchKernel` and its kin.
    Launch {
        kernel: KernelId,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: u64,
        cooperative: bool,
        attributes: Vec<(u32, &'a [u8])>,
        parameters: &'a [u8],
    },
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`. Gives a number.
    Occupancy {
        kernel: KernelId,
        block_threads: i32,
        shared_bytes: u64,
        flags: u32,
    },
    /// `cuOccupancyAvailableDynamicSMemPerBlock`. Gives a number.
    OccupancyShared {
        kernel: KernelId,
        blocks: i32,
        block_threads: i32,
    },
    /// `cuCtxGetLimit`. Gives a number.
    Limit { limit: u32 },
    /// `cuCtxSetLimit`.
    LimitSet { limit: u32, value: u64 },
    /// `cuCtxEnablePeerAccess` to the memory of a device.
    PeerEnable { device: u16 },
    /// `cuCtxDisablePeerAccess`.
    PeerDisable { device: u16 },
    /// `cuCtxGetStreamPriorityRange`. Gives least and greatest.
    StreamPriorities,
    /// Ends everything that the client has on the device, and its primary context.
    Reset,
    /// Joins a topic of the server's host as a publisher, in the memory of the device.
    TopicPublisher {
        publisher: u64,
        topic: &'a str,
        options: TopicOptions,
    },
    /// Joins a topic as a subscriber, which reads in the memory of the device.
    TopicSubscriber {
        subscriber: u64,
        topic: &'a str,
        options: TopicOptions,
    },
    /// Copies a range of the device into a loan and publishes that, both behind the work of a stream. Gives the message's sequence number.
    TopicPublish {
        publisher: u64,
        from: u64,
        bytes: u64,
        tensor: Option<Tensor>,
        stream: u64,
    },
    /// Waits for the next message and has a stream wait for its bytes. Gives [`CallValue::Message`].
    TopicReceive {
        subscriber: u64,
        message: u64,
        timeout_ns: u64,
        stream: u64,
    },
    /// Releases a message, once the work of a stream is done.
    TopicRelease { message: u64, stream: u64 },
    /// Leaves a topic. Messages that were received stay.
    TopicLeave { member: u64 },
    /// Loads a library above the runtime, by its number in the table that both ends have (`math`).
    MathOpen { library: u8, fingerprint: u64 },
    /// Calls a function of one, by its number in the table. Gives [`CallValue::Math`].
    Math {
        function: u16,
        arguments: Vec<MathArgument<'a>>,
    },
}

/// An argument of a function of a library above the runtime.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum MathArgument<'a> {
    /// A number, a handle, an address on the device, or null.
    Word(u64),
    /// The bytes to which an address of the host points.
    Bytes(&'a [u8]),
    /// Room for so many bytes of the host, which come back.
    Room(u32),
}

/// A description of a message's bytes: an array in row-major order.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its element type, as numpy and torch name it.
    pub dtype: String,
    /// Elements of each dimension.
    pub shape: Vec<u64>,
}

/// How a member joins a topic.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicOptions {
    /// Messages that a publisher keeps, or that wait for a subscriber; 0: rgaps's default.
    pub depth: u32,
    /// Whether a subscriber misses no message.
    pub is_reliable: bool,
    /// Whether a publisher keeps its messages for those that come later, and a subscriber wants them.
    pub is_transient_local: bool,
}

/// A kernel, as the driver describes it.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelInfo {
    /// Why it cannot be used, or 0.
    pub code: i32,
    /// Offset and bytes of each parameter.
    pub parameters: Vec<(u32, u32)>,
    /// Attributes by number, from 0 on; those that the driver does not know are missing.
    pub attributes: Vec<(i32, i32)>,
}

/// What a call gives.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub enum CallValue {
    /// Nothing but the code.
    Nothing,
    /// An address or a number.
    Number(u64),
    /// Two of them.
    Pair(u64, u64),
    /// A time.
    Float(f32),
    /// A region, whose descriptor comes with the answer.
    Memory,
    /// Kernels of a library, in the order of their names.
    Kernels(Vec<KernelInfo>),
    /// Nodes of a graph, as the driver names them. No call takes one.
    Nodes(Vec<u64>),
    /// Why a call of topics failed, and what to do.
    Text(String),
    /// A message of a topic, where it lies on the device.
    Message {
        /// Address of its first byte.
        address: u64,
        /// Its length.
        bytes: u64,
        /// Its number at its publisher.
        sequence: u64,
        /// Messages of that publisher that the subscriber missed before it.
        missed: u64,
        /// Its element type and shape, if its publisher gave them.
        tensor: Option<Tensor>,
    },
    /// The result of a function of a library above the runtime, and the bytes of all its outputs, one behind the other.
    Math {
        /// Its status, number or address.
        result: u64,
        /// Bytes of the outputs.
        bytes: Vec<u8>,
    },
    /// `CUDA_TEXTURE_DESC` of a texture.
    Sampler(Vec<u8>),
}

/// The answer to a call. Bytes of memory follow where the call asks for them and has not failed.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct CallAnswer {
    /// The driver's code for this call.
    pub code: i32,
    /// The code of the first quiet call of this thread that failed since the thread's last answer, or 0.
    pub deferred: i32,
    /// The result.
    pub value: CallValue,
}
