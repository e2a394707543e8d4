//! The C interface: `include/rgaps.h` and `include/rgaps/device.h`, which document it, over the Rust library.
//!
//! Every function that C calls does three things: it checks what C handed over (`boundary`), calls
//! the Rust library, and turns its outcome into a code and a message (`status`). Panics stop at
//! `boundary::guard`. Handles are boxes whose addresses are kept in a table of those that live
//! (`handle`), so that destroying one twice is noticed before memory is touched.
//!
//! The header is written by hand, for people to read; `header_test` compares every function,
//! structure and constant in it with this crate.
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
