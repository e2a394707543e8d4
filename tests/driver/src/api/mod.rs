//! The exported functions, under the driver's symbol names.
//!
//! They check arguments as the driver is documented to and leave the work to the other modules.
//! All are called from C, with the obligations that the driver's documentation puts on a caller:
//! output pointers are null or valid, descriptions and host ranges are readable.
#![allow(non_snake_case)]

pub(crate) mod array;
mod context;
mod copy;
mod device;
mod graph;
mod library;
mod module;
pub(crate) mod pool;
mod rows;
mod stream;
mod vmm;
