//! The libraries that a CUDA program loads in place of NVIDIA's when its GPU is on another host.
//!
//! `librgaps_gpu.so` holds the functions, each under a name of its own (`rgaps_rt_cudaMalloc`, `rgaps_cu_cuMemAlloc_v2`), and the
//! connection. `libcudart.so.13`, `libcudart.so.12` and `libcuda.so.1` are thin: each has every symbol of the real library, with
//! its version, and a jump to the function here, or to one that says "not supported" and logs the name once.
//! `tools/gpu-libs.py` makes them. So programs and libraries that use both runtime and driver share one session.
//!
//! This crate implements the runtime by calls of the driver: it keeps devices, errors, registered kernels and memory of the program, and
//! answers what it can without asking the server (decision 0045). It forwards the libraries above the runtime as they are: `math`.

#![warn(clippy::too_many_lines)]
mod abi;
mod allocate;
mod bulk;
mod callbacks;
mod driver;
mod errors;
mod failures;
mod formats;
mod graphs;
mod handles;
mod host_copy;
mod kernels;
mod launch;
mod managed;
mod math;
mod memory;
mod notice;
mod properties;
mod reset;
mod runs;
mod runtime;
mod servers;
mod session;
mod thread;
mod topics;
mod transfer;
mod waits;
