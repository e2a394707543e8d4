//! Order on streams, over the test driver, or on a real GPU with `RGAPS_TEST_GPU=1`.
//!
//! Each test runs in a process of its own (`harness::alone`), because the driver keeps its state per process. The
//! harness kills a test after a limit.

mod capture;
mod daemon;
mod deaths;
mod deferred_release;
mod errors;
mod failures;
mod gpu;
mod harness;
mod loans;
mod lost;
mod many;
mod order;
mod peers;
mod seeds;
