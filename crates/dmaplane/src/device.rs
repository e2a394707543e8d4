//! `/dev/dmaplane`: the interface of the paper.

use crate::abi::device::*;
use crate::Error;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{ioctl, opcode, Getter, NoArg, Setter, Updater};
use std::os::fd::{FromRawFd, OwnedFd};

const DEVICE: &str = "/dev/dmaplane";
/// `DMAPLANE_MAGIC`.
const MAGIC: u8 = 0xE4;

/// The kind of a buffer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BufferKind {
    /// Contiguous memory that is coherent with devices. It cannot be exported.
    Coherent,
    /// Single pages, which can be exported as a dma-buf.
    Pages,
}

/// The rights to a memory region, besides reading it locally.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The device may write received messages there.
    pub local_write: bool,
    /// Peers may write there.
    pub remote_write: bool,
    /// Peers may read there.
    pub remote_read: bool,
}

impl Access {
    fn bits(self) -> u32 {
        u32::from(self.local_write)
            | u32::from(self.remote_write) << 1
            | u32::from(self.remote_read) << 2
    }
}

/// An open file of the device. Its buffers, channels and RDMA contexts end when it is closed; memory stays
/// while a mapping or dma-buf needs it.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

/// Makes a method of each call. The first word is the kind of call: `get` returns a record, `put` passes one, `both` passes one
/// and returns it changed, `number` passes a handle, `none` passes nothing. Then come the method's name, the call's name and
/// number, and the record.
macro_rules! calls {
    ($($(#[$doc:meta])* $how:ident $method:ident = $name:literal, $number:literal $(, $record:ty)?;)*) => {
        impl Device {
            $(calls!(@ $(#[$doc])* $how $method, $name, $number $(, $record)?);)*
        }

        /// The C name and the number of each call.
        #[cfg(test)]
        pub(crate) const CALLS: &[(&str, rustix::ioctl::Opcode)] = &[
            $((concat!("DMAPLANE_", $name), calls!(# $how $number $(, $record)?)),)*
        ];
    };
    (# get $number:literal, $record:ty) => { opcode::read::<$record>(MAGIC, $number) };
    (# put $number:literal, $record:ty) => { opcode::write::<$record>(MAGIC, $number) };
    (# both $number:literal, $record:ty) => { opcode::read_write::<$record>(MAGIC, $number) };
    (# number $number:literal) => { opcode::write::<u32>(MAGIC, $number) };
    (# none $number:literal) => { opcode::none(MAGIC, $number) };
    (@ $(#[$doc:meta])* get $method:ident, $name:literal, $number:literal, $record:ty) => {
        $(#[$doc])*
        pub fn $method(&self) -> Result<$record, Error> {
            // SAFETY: the number is that of the module's header, whose call writes one `$record`, all of it integers.
            // `self.fd` is the module's device: `open` opened it by its name, which only root can give.
            let call = unsafe { Getter::<{ calls!(# get $number, $record) }, $record>::new() };
            // SAFETY: `self.fd` is `/dev/dmaplane`, which `open` alone puts there, so the kernel takes this number as the call
            // of this name and writes one `$record` into `call`, which lives until `ioctl` returns.
            unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call($name, error))
        }
    };
    (@ $(#[$doc:meta])* put $method:ident, $name:literal, $number:literal, $record:ty) => {
        $(#[$doc])*
        pub fn $method(&self, record: $record) -> Result<(), Error> {
            // SAFETY: the number is that of the module's header, whose call reads one `$record`, which has no unnamed
            // padding. `self.fd` is the module's device: `open` opened it by its name, which only root can give.
            let call = unsafe { Setter::<{ calls!(# put $number, $record) }, $record>::new(record) };
            // SAFETY: `self.fd` is `/dev/dmaplane`, which `open` alone puts there, so the kernel takes this number as the call
            // of this name and reads one `$record` from `call`, which lives until `ioctl` returns.
            unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call($name, error))
        }
    };
    (@ $(#[$doc:meta])* both $method:ident, $name:literal, $number:literal, $record:ty) => {
        $(#[$doc])*
        pub fn $method(&self, mut record: $record) -> Result<$record, Error> {
            // SAFETY: the number is that of the module's header, whose call reads and writes one `$record`, all of it integers
            // without unnamed padding. `self.fd` is the module's device: `open` opened it by its name, which only root can give.
            let call = unsafe { Updater::<{ calls!(# both $number, $record) }, $record>::new(&mut record) };
            // SAFETY: `self.fd` is `/dev/dmaplane`, which `open` alone puts there, so the kernel takes this number as the call
            // of this name. It reads and writes one `$record`: `record`, which `call` borrows until `ioctl` returns. Besides,
            // it writes the module's buffers, which this crate does not map, and memory of GPUs, as the caller of `gpu_pin`
            // allows.
            unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call($name, error))?;
            Ok(record)
        }
    };
    (@ $(#[$doc:meta])* number $method:ident, $name:literal, $number:literal) => {
        $(#[$doc])*
        pub fn $method(&self, handle: u32) -> Result<(), Error> {
            // SAFETY: the number is that of the module's header, whose call reads one `u32` by its address.
            // `self.fd` is the module's device: `open` opened it by its name, which only root can give.
            let call = unsafe { Setter::<{ calls!(# number $number) }, u32>::new(handle) };
            // SAFETY: `self.fd` is `/dev/dmaplane`, which `open` alone puts there, so the kernel takes this number as the call
            // of this name and reads one `u32` from `call`, which lives until `ioctl` returns.
            unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call($name, error))
        }
    };
    (@ $(#[$doc:meta])* none $method:ident, $name:literal, $number:literal) => {
        $(#[$doc])*
        pub fn $method(&self) -> Result<(), Error> {
            // SAFETY: the number is that of the module's header, whose call takes nothing.
            // `self.fd` is the module's device: `open` opened it by its name, which only root can give.
            let call = unsafe { NoArg::<{ calls!(# none $number) }>::new() };
            // SAFETY: `self.fd` is `/dev/dmaplane`, which `open` alone puts there, so the kernel takes this number as the call
            // of this name, which has no argument: it touches no memory of this process.
            unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call($name, error))
        }
    };
}

calls! {
    /// Makes this file's channel.
    get create_channel = "CREATE_CHANNEL", 0x01, ChannelParams;
    /// Puts an entry into the channel.
    put submit = "SUBMIT", 0x02, SubmitParams;
    /// Takes a completed entry; waits while one is in flight.
    both complete = "COMPLETE", 0x03, CompleteParams;
    /// Counts of the channel.
    get stats = "GET_STATS", 0x04, Stats;
    /// Makes a buffer as the record asks; see [`Device::buffer`].
    both create_buffer = "CREATE_BUFFER", 0x05, BufParams;
    /// Gives a buffer's handle up. It fails while the buffer is mapped or exported.
    number destroy_buffer = "DESTROY_BUFFER", 0x06;
    /// The offset of a buffer in the device, for `mmap`.
    both mmap_info = "GET_MMAP_INFO", 0x08, MmapInfo;
    /// Counts of buffers.
    get buffer_stats = "GET_BUF_STATS", 0x09, BufStats;
    /// Counts of dma-bufs.
    get dmabuf_stats = "GET_DMABUF_STATS", 0x0B, DmabufStats;
    /// Makes this file's RDMA context; see [`Device::connect`].
    both setup_rdma = "SETUP_RDMA", 0x10, RdmaSetup;
    /// Ends the RDMA context.
    none teardown_rdma = "TEARDOWN_RDMA", 0x11;
    /// Registers a buffer as the record asks; see [`Device::register`].
    both register_mr = "REGISTER_MR", 0x20, MrParams;
    /// Ends a memory region.
    number deregister_mr = "DEREGISTER_MR", 0x21;
    /// Sends a message to itself.
    both loopback = "LOOPBACK_TEST", 0x30, LoopbackParams;
    /// Measures messages there and back, one at a time.
    both pingpong = "PINGPONG_BENCH", 0x31, BenchParams;
    /// Measures messages in one direction, several in flight.
    both streaming = "STREAMING_BENCH", 0x32, BenchParams;
    /// Counts of RDMA.
    get rdma_stats = "GET_RDMA_STATS", 0x33, RdmaStats;
    /// Sets credits and watermarks.
    both configure_flow = "CONFIGURE_FLOW", 0x40, FlowParams;
    /// Streams for some seconds, and measures the throughput in windows of 1 s.
    both sustained_stream = "SUSTAINED_STREAM", 0x41, SustainedParams;
    /// Measures streams at several depths of the queue.
    both qdepth_sweep = "QDEPTH_SWEEP", 0x42, SweepParams;
    /// Counts of credits.
    get flow_stats = "GET_FLOW_STATS", 0x43, FlowStats;
    /// NUMA nodes with processors, memory and distances.
    get numa_topology = "QUERY_NUMA_TOPO", 0x50, NumaTopo;
    /// Measures copies from every node's processors to every node's memory.
    both numa_bench = "NUMA_BENCH", 0x51, NumaBenchParams;
    /// Unpins the memory of a GPU handle.
    put gpu_unpin = "GPU_UNPIN", 0x61, GpuUnpinParams;
    /// Copies from a GPU handle to a buffer.
    both gpu_to_host = "GPU_DMA_TO_HOST", 0x62, GpuDmaParams;
    /// Copies from a buffer to a GPU handle.
    both gpu_from_host = "GPU_DMA_FROM_HOST", 0x63, GpuDmaParams;
    /// Measures copies between a GPU handle and a buffer.
    both gpu_bench = "GPU_BENCH", 0x64, GpuBenchParams;
    /// Registers a GPU handle.
    both gpu_register_mr = "GPU_REGISTER_MR", 0x65, GpuMrParams;
    /// Sends a message from a GPU region to a host region.
    both gpu_loopback = "GPU_LOOPBACK", 0x66, GpuLoopbackParams;
    /// Counts of GPU calls.
    get gpu_stats = "GET_GPU_STATS", 0x67, GpuStats;
    /// Latencies of this file's RDMA operations.
    both histogram = "GET_HISTOGRAM", 0x70, HistParams;
    /// Writes into a peer's region, with a notice.
    both write_imm = "RDMA_WRITE_IMM", 0x80, WriteImmParams;
    /// Posts a receive.
    both post_recv = "RDMA_POST_RECV", 0x81, PostRecvParams;
    /// Takes the oldest completed receive.
    both poll_recv = "RDMA_POLL_RECV", 0x82, PollRecvParams;
    /// Makes a queue pair for a peer: another open file, or another host.
    get init_peer = "RDMA_INIT_PEER", 0x90, RdmaPeerInfo;
    /// Connects that queue pair with the peer's.
    put connect_peer = "RDMA_CONNECT_PEER", 0x91, RdmaPeerInfo;
    /// Sends a message to the peer.
    both remote_send = "RDMA_REMOTE_SEND", 0x92, RdmaRemoteXferParams;
    /// Receives a message from the peer.
    both remote_recv = "RDMA_REMOTE_RECV", 0x93, RdmaRemoteXferParams;
    /// Ends the peer's queue pair.
    none destroy_peer = "RDMA_DESTROY_PEER", 0x94;
}

/// The numbers of the calls whose methods are below.
const EXPORT: rustix::ioctl::Opcode = opcode::read_write::<ExportDmabufArg>(MAGIC, 0x0A);
const GPU_PIN: rustix::ioctl::Opcode = opcode::read_write::<GpuPinParams>(MAGIC, 0x60);

impl Device {
    /// Opens the device.
    pub fn open() -> Result<Device, Error> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(DEVICE, flags, Mode::empty());
        let fd = fd.map_err(|error| Error::open(DEVICE, error))?;
        Ok(Device { fd })
    }

    /// Makes a buffer of zeros, on `node` if given. The result names the node on which the buffer is.
    pub fn buffer(
        &self,
        kind: BufferKind,
        bytes: u64,
        node: Option<u32>,
    ) -> Result<BufParams, Error> {
        self.create_buffer(BufParams {
            alloc_type: match kind {
                BufferKind::Coherent => 0,
                BufferKind::Pages => 1,
            },
            size: bytes,
            numa_node: node.map_or(-1, |node| node as i32),
            ..BufParams::default()
        })
    }

    /// Exports a buffer of pages as a new dma-buf.
    pub fn export_dmabuf(&self, buffer: u32) -> Result<OwnedFd, Error> {
        let mut record = ExportDmabufArg {
            buf_id: buffer,
            fd: -1,
        };
        // SAFETY: EXPORT_DMABUF reads and writes one `ExportDmabufArg`, integers without padding. `self.fd` is the
        // module's device: `open` opened it by its name, which only root can give.
        let call = unsafe { Updater::<EXPORT, ExportDmabufArg>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane`, which `open` alone puts there, so the kernel takes this number as EXPORT_DMABUF
        // and reads and writes one `ExportDmabufArg`: `record`, which `call` borrows until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("EXPORT_DMABUF", error))?;
        // SAFETY: the call succeeded, so the descriptor is one that the kernel made for it just now, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(record.fd) })
    }

    /// Makes an RDMA context on the device `name` (see `rdma link`). A depth of 0 means the module's default.
    pub fn connect(
        &self,
        name: &str,
        port: u32,
        cq_depth: u32,
        queue_depth: u32,
    ) -> Result<RdmaSetup, Error> {
        let mut record = RdmaSetup {
            port,
            cq_depth,
            max_send_wr: queue_depth,
            max_recv_wr: queue_depth,
            ..RdmaSetup::default()
        };
        // A 0 ends the name. A longer name is passed without its end, and no device has it.
        let room = record.ib_dev_name.len() - 1;
        let name = name.as_bytes().get(..room).unwrap_or(name.as_bytes());
        record.ib_dev_name[..name.len()].copy_from_slice(name);
        self.setup_rdma(record)
    }

    /// Registers a whole buffer as a memory region.
    pub fn register(&self, buffer: u32, access: Access) -> Result<MrParams, Error> {
        self.register_mr(MrParams {
            buf_id: buffer,
            access_flags: access.bits(),
            ..MrParams::default()
        })
    }

    /// Pins memory of a GPU.
    ///
    /// # Safety
    /// The GPU's memory from `gpu_va` on stays allocated until it is unpinned, and nobody relies on its bytes while calls
    /// on the handle write them.
    pub unsafe fn gpu_pin(&self, mut record: GpuPinParams) -> Result<GpuPinParams, Error> {
        // SAFETY: GPU_PIN reads and writes one `GpuPinParams`, integers without unnamed padding. `self.fd` is the
        // module's device: `open` opened it by its name, which only root can give.
        let call = unsafe { Updater::<GPU_PIN, GpuPinParams>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane`, which `open` alone puts there, so the kernel takes this number as GPU_PIN and
        // reads and writes one `GpuPinParams`: `record`, which `call` borrows until `ioctl` returns. The GPU's memory stays
        // allocated until it is unpinned, and nobody relies on bytes that calls on the handle write: our caller promises both.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("GPU_PIN", error))?;
        Ok(record)
    }
}

/// The calls that [`CALLS`] lacks.
#[cfg(test)]
pub(crate) const WRITTEN_OUT: &[(&str, rustix::ioctl::Opcode)] = &[
    ("DMAPLANE_EXPORT_DMABUF", EXPORT),
    ("DMAPLANE_GPU_PIN", GPU_PIN),
];
