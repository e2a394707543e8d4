//! Kernels, loaded from text.

use crate::abi::*;
use crate::context::Context;
use crate::driver::cu;
use crate::error::CudaError;
use crate::foreign::OnStream;
use std::ffi::{c_void, CStr};
use std::fmt;
use std::sync::Arc;

/// Kernels in a context, until this value and all their [`Kernel`]s are dropped.
pub struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

/// One of a module.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<Module>,
    raw: CUfunction,
}

impl Module {
    /// Has the driver compile PTX text for the context's GPU.
    pub fn load(context: Arc<Context>, ptx: &CStr) -> Result<Arc<Module>, CudaError> {
        let mut raw: CUmodule = 0;
        {
            let _entered = context.enter()?;
            // SAFETY: the out pointer is ours; PTX is text that ends in NUL. What the kernels do
            // is for those to vouch for who launch them.
            unsafe {
                cu!(
                    context.driver(),
                    cuModuleLoadData(&mut raw, ptx.as_ptr().cast())
                )?
            };
        }
        Ok(Arc::new(Module { context, raw }))
    }

    /// The kernel of this name.
    pub fn kernel(self: &Arc<Self>, name: &CStr) -> Result<Kernel, CudaError> {
        let mut raw: CUfunction = 0;
        let _entered = self.context.enter()?;
        // SAFETY: the out pointer is ours; the name is a C string.
        unsafe {
            cu!(
                self.context.driver(),
                cuModuleGetFunction(&mut raw, self.raw, name.as_ptr())
            )?
        };
        Ok(Kernel {
            module: self.clone(),
            raw,
        })
    }

    /// The context that it is loaded in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Kernel {
    /// Queues running the kernel on a stream of the module's context.
    ///
    /// # Safety
    /// The kernel has as many parameters, all 64 bits wide, and does nothing wrong with these
    /// values; the memory that it uses is valid until the work has finished. The module is kept
    /// until then.
    pub unsafe fn launch(
        &self,
        on: &OnStream<'_>,
        (blocks, threads): (u32, u32),
        parameters: &[u64],
    ) -> Result<(), CudaError> {
        let mut values: Vec<*mut c_void> = parameters
            .iter()
            .map(|value| (&raw const *value).cast_mut().cast())
            .collect();
        // SAFETY: the driver copies the parameters, which `values` points to, before it returns. That the kernel takes them,
        // and that what it uses stays until it has finished, our caller promises.
        unsafe {
            cu!(
                self.module.context.driver(),
                cuLaunchKernel(
                    self.raw,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    on.raw(),
                    values.as_mut_ptr(),
                    std::ptr::null_mut()
                )
            )
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // A context that cannot be entered is lost; it is tried all the same.
        let _entered = self.context.enter();
        // SAFETY: loaded in `load`, and unloaded here only, when no kernel of it is left.
        if let Err(error) = unsafe { cu!(self.context.driver(), cuModuleUnload(self.raw)) } {
            tracing::debug!(%error, "module not unloaded");
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:#x})", self.raw)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({:#x})", self.raw)
    }
}
