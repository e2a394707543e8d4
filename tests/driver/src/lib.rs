//! A stand-in for the CUDA driver, for tests on machines without a GPU.
//!
//! As a shared library (`librgaps_test_driver.so`) it exports the driver functions that rgaps uses,
//! under the driver's own symbol names; `RGAPS_CUDA_LIBRARY` names it to rgaps. GPU memory is host
//! memory: an allocation is a memfd, so its descriptor really shares it between processes, and a
//! mapping without write access really faults on a write. What matters most is kept as the driver
//! documents it, on the strict side where the documentation leaves a choice:
//!
//! - Streams are asynchronous. Each has a thread that runs its operations in order, each after a
//!   delay. A non-blocking stream waits for nothing else and nothing waits for it; the legacy
//!   default stream and blocking streams wait for one another.
//! - A stream that waits for a number in memory waits on its thread, whoever writes the number,
//!   another process too. A context that is destroyed or lost ends the wait.
//! - Kernels of modules are those of `crates/kernels`, done in host memory: a module's text is read for their
//!   names and parameters, and an address that the kernel may not touch ends the context. Kernels of libraries
//!   (`cuLibraryLoadData`) are interpreted from their PTX, which a fat binary must hold uncompressed.
//! - Copies wait as little as the documentation allows: from pageable memory until the bytes are
//!   staged, between devices not at all. Work that nobody waited for has not happened yet, and a
//!   reader sees the old bytes.
//! - Handles are checked where the driver would follow them: a wrong one gives an error.
//! - In a forked child every call fails, as the driver's do.
//!
//! Configured by the environment when the library is first called, and later by
//! [`TestDriver::configure`] with the same names in lower case and without the prefix:
//!
//! | variable | |
//! |---|---|
//! | `RGAPS_TEST_DRIVER_DEVICES` | number of GPUs, default 1 |
//! | `RGAPS_TEST_DRIVER_UUIDS` | their UUIDs, `GPU-...,GPU-...`; default: made of their numbers |
//! | `RGAPS_TEST_DRIVER_INTEGRATED` | which of them share the host's memory, by number, comma-separated; default none |
//! | `RGAPS_TEST_DRIVER_MEMORY_MB` | memory of each, default 65536; none is taken until it is written |
//! | `RGAPS_TEST_DRIVER_LACK` | what they cannot do: `vmm`, `fd`, `rdma`, `memops`, `register`, `readonly` (registering memory that may only be read), comma-separated |
//! | `RGAPS_TEST_DRIVER_PEERS` | `all`: any GPU may access any other's memory; default `none` |
//! | `RGAPS_TEST_DRIVER_QUEUES` | hardware queues of a context, shared by its streams; default 0: one for each stream |
//! | `RGAPS_TEST_DRIVER_DEPTH` | operations that a queue holds before queueing waits for room, default 1024 |
//! | `RGAPS_TEST_DRIVER_PATIENCE_MS` | a stream that waits or is held for longer ends the process, default 60000 |
//! | `RGAPS_TEST_DRIVER_DELAY_US` | delay before each operation of a stream, default 0 |
//! | `RGAPS_TEST_DRIVER_SEED` | makes each delay a random part of the above, the same every time |
//! | `RGAPS_TEST_DRIVER_TRACE` | a file: asynchronous copies and registrations of all processes are noted there, as `PROCESS CALL BYTES` (in the environment only) |
//! | `RGAPS_TEST_DRIVER_FAIL` | `CALL:WHEN:ERROR,...`, WHEN being `3` (the third call), `3+` (from it on), `10%` or `*`; the ERROR `lost` ends the context: all further calls in it fail, and nothing queued runs |
//!
//! `CUDA_VISIBLE_DEVICES` is obeyed, with ordinals or UUIDs, so that processes can count the same
//! GPUs differently.
mod abi;
mod api;
mod call;
mod config;
mod context;
mod control;
mod faults;
mod graph;
mod kernel;
mod library;
mod memory;
mod number;
mod physical;
mod ptx;
mod queue;
mod stream;
mod transfer;

pub use control::{library, Held, TestDriver};
