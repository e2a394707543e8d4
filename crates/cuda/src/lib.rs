//! GPU memory behind the pool's segment abstraction.
//!
//! [`Driver::load`] loads the CUDA driver at run time, so the same binary runs on machines without a
//! GPU and reports why it has none. The crate binds only the functions that it uses (`table`). A type of
//! its own holds each resource (allocation handle, reserved addresses, primary context, stream) and
//! frees it on drop, so a call that fails half way leaves nothing behind.
//!
//! Memory comes from the driver's virtual memory management only: physical allocations that travel
//! as file descriptors, mapped into an address range that was reserved for the whole pool. The
//! daemon's side, [`CudaSource`], needs no context: a context costs hundreds of megabytes of GPU
//! memory and would put the daemon among the processes that share the GPU. The clients' side,
//! [`CudaMapping`], retains the device's primary context, which is the one that torch and every
//! other user of the CUDA runtime has too, and never that of another device.
//!
//! Every call pushes the context and pops it again, so it works on any thread and keeps the caller's
//! current context.

#![warn(clippy::too_many_lines)]
mod abi;
mod buffer;
mod context;
mod device;
mod direct;
mod driver;
mod error;
mod foreign;
mod handle;
mod library;
mod mapping;
mod memory_operations;
mod module;
mod pinned;
mod reader;
mod registered;
mod registered_mapping;
mod source;
mod stream;
mod table;

pub use buffer::DeviceBuffer;
pub use context::{Context, DeviceMemory};
pub use device::Device;
pub use direct::WritesOrder;
pub use driver::Driver;
pub use error::{is_lost_context, CudaError, MpsFailure};
pub use foreign::{ForeignStreams, OnStream};
pub use library::{Library, LIBRARY_ENV};
pub use mapping::CudaMapping;
pub use memory_operations::memory_operations_work;
pub use module::{Kernel, Module};
pub use pinned::PinnedBuffer;
pub use reader::DeviceReader;
pub use registered::Registered;
pub use registered_mapping::RegisteredMapping;
pub use source::CudaSource;
pub use stream::CudaStream;
