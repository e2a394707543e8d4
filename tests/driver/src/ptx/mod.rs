//! Kernels of CUDA programs, interpreted from their PTX.
//!
//! `parse` reads what nvcc makes of plain kernels; what it does not know it refuses when the kernel is looked up. `run` executes a
//! launch block by block; within a block each thread runs until it ends, waits at a barrier, or takes part in an operation of its
//! warp. Global memory is checked at each access, and a wrong address ends the context, as on a GPU.
mod alu;
mod atomic;
mod instruction;
mod parse;
mod run;
mod warp;

pub(crate) use parse::{parse, Kernel, Text};
pub(crate) use run::{launch, Geometry};
