//! The C interface over the Rust library. `include/rgaps.h` and `include/rgaps/device.h` document it.
//!
//! Every function that C calls does three things: it checks C's arguments (`boundary`), calls the Rust library, and turns
//! the result into a code and a message (`status`). `boundary::guard` stops panics. A handle is a box; a table keeps the
//! addresses of all live handles (`handle`), so that a second destroy fails before it touches memory.
//!
//! The headers are written by hand; `header_test` compares every function, structure and constant in them with this crate.
#![warn(clippy::too_many_lines)]
#![allow(non_camel_case_types)] // types that C sees have their C names

mod boundary;
mod device;
mod device_bridge;
mod domain;
mod handle;
mod listener;
mod loan;
mod metadata;
mod node;
mod options;
mod path;
mod publisher;
mod pulled;
mod sample;
mod status;
mod subscriber;
mod tensor;
mod version;
mod wait_set;

#[cfg(test)]
mod header_test;
