//! Libraries above CUDA's runtime (cuBLAS, cuRAND, cuFFT, cuDNN), forwarded at the level of their own functions.
//!
//! There is no code for single functions. A table (`functions.txt`, made from NVIDIA's headers by `tools/math-calls.py`) says for
//! each function what its parameters are; the client packs the registers and the stack of a call as the table says, and the
//! backend unpacks them and calls the function of the real library, which it loads when a client first asks for it.
//!
//! - [`table`] reads the table.
//! - [`Failure`] reports the failure of a call that nobody waited for, as a number that is no code of CUDA's.

mod failure;
mod table;

pub use failure::Failure;
pub use table::{
    attribute_bytes, library_of, table, Attribute, Condition, Function, Gives, MathLibrary,
    ParameterKind, Size, Statuses, Table, ATTRIBUTE_BYTES_MAX, POINTER_ENTRY_BYTES,
    SCALAR_BYTES_MAX,
};

/// Integers and addresses that C passes in registers, by the System V and the Arm convention.
#[cfg(target_arch = "x86_64")]
pub const INT_REGISTERS: usize = 6;
/// Integers and addresses that C passes in registers, by the System V and the Arm convention.
#[cfg(target_arch = "aarch64")]
pub const INT_REGISTERS: usize = 8;
/// Floats that C passes in registers, by both.
pub const FLOAT_REGISTERS: usize = 8;
