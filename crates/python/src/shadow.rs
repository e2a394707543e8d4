//! Finds writes to samples. With `RGAPS_DEBUG=writes`, views of a sample see a writable copy, the shadow. When the last view has
//! ended, the shadow's hash shows whether somebody wrote to it.
//!
//! Without the variable, mappings are read-only: a write to a sample ends the process (host) or its context (GPU), and nothing
//! says which line of code wrote.

use crate::device;
use crate::error::{unless_raised, warn, IntoPyErr};
use crate::order;
use pyo3::prelude::*;
use rgaps::Domain;
use rgaps_cuda::DeviceBuffer;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::OnceLock;

/// A comma-separated list of checks. The only one is `writes`.
const VARIABLE: &str = "RGAPS_DEBUG";

/// Whether the user wants to find writes to samples.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let named = std::env::var(VARIABLE).unwrap_or_default();
        named.split(',').any(|word| word.trim() == "writes")
    })
}

/// A copy of a sample's bytes, and the hash of the original bytes.
pub(crate) struct Shadow {
    memory: Memory,
    sum: u64,
    /// The line of Python code that took the first view.
    taken: String,
}

enum Memory {
    Host(Box<[u8]>),
    Device(DeviceBuffer),
}

/// Who wrote to the message.
pub(crate) enum Written {
    /// Something in this process wrote through a view.
    Here,
    /// The block itself changed, which only its publisher can write.
    ByPublisher,
}

impl Shadow {
    pub(crate) fn new(py: Python<'_>, sample: &rgaps::Sample) -> PyResult<Shadow> {
        let mut bytes = vec![0; sample.len() as usize].into_boxed_slice();
        order::before_reading_on_cpu(py, sample)?;
        let read = || sample.read(0, &mut bytes);
        py.detach(read).map_err(IntoPyErr::into_py_err)?;
        let sum = sum(&bytes);
        let memory = match sample.domain() {
            Domain::Host => Memory::Host(bytes),
            Domain::Cuda(uuid) => {
                let context = device::context(uuid)?;
                let (from, count) = (bytes.as_ptr() as u64, bytes.len() as u64);
                // SAFETY: `bytes` is ours and lives until `copy_of` returns, which waits for its copy.
                let buffer = py.detach(|| unsafe { DeviceBuffer::copy_of(context, from, count) });
                Memory::Device(buffer.map_err(IntoPyErr::into_py_err)?)
            }
        };
        let taken =
            unless_raised(running_line(py))?.unwrap_or_else(|| "an unknown line".to_owned());
        Ok(Shadow { memory, sum, taken })
    }

    /// The address of the copy.
    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            Memory::Host(bytes) => bytes.as_ptr() as u64,
            Memory::Device(buffer) => buffer.address(),
        }
    }

    /// Checks whether the copy or the original has changed. Call it when no view of the copy is left.
    pub(crate) fn look(&self, sample: &rgaps::Sample) -> Option<Written> {
        let copied = match &self.memory {
            Memory::Host(bytes) => sum(bytes),
            // Reading fails if the context is lost; then there is nothing to check.
            Memory::Device(buffer) => sum(&buffer.read().ok()?),
        };
        if copied != self.sum {
            return Some(Written::Here);
        }
        let mut bytes = vec![0; sample.len() as usize];
        sample.read(0, &mut bytes).ok()?;
        (sum(&bytes) != self.sum).then_some(Written::ByPublisher)
    }

    /// Warns of the write. Fails if the user makes warnings errors.
    pub(crate) fn warn(
        &self,
        py: Python<'_>,
        written: &Written,
        topic: &str,
        sequence: u64,
    ) -> PyResult<()> {
        let taken = &self.taken;
        let message = match written {
            Written::Here => format!(
                "message {sequence} of topic '{topic}' was written to, through a view that was \
                 taken at {taken}; without RGAPS_DEBUG this ends the process, or its context on \
                 the GPU: samples are read-only, so write to a copy (tensor.clone(), array.copy())"
            ),
            Written::ByPublisher => format!(
                "message {sequence} of topic '{topic}' changed while it was held (since {taken}): \
                 its publisher wrote to it after publishing it"
            ),
        };
        warn(py, "WriteWarning", &message)
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The line of Python code that runs now.
fn running_line(py: Python<'_>) -> PyResult<String> {
    let helper = py.import("rgaps._place")?;
    helper.call_method0("place")?.extract()
}
