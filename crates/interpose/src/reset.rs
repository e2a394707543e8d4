//! The end of a device's context.

use crate::handles::arrays;
use crate::{kernels, managed, memory, session, thread};
use rgaps_remoting::Code;

/// Ends the current device's context, and all that it has.
pub(crate) fn reset() -> Result<(), Code> {
    session::unstick();
    kernels::forget_device(thread::device());
    managed::reset();
    arrays::reset(thread::device());
    memory::reset()
}
