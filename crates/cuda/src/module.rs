//! GPU kernels that the driver compiles from PTX text.

use crate::abi::*;
use crate::context::Context;
use crate::driver::cu;
use crate::error::CudaError;
use crate::foreign::OnStream;
use std::ffi::{c_void, CStr};
use std::fmt;
use std::sync::Arc;

/// Kernels loaded in a context, until this value and all its [`Kernel`]s are dropped.
pub struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

/// One kernel of a module, which it keeps loaded.
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
            // SAFETY: the out pointer is ours; PTX is text that ends in NUL. Loading runs no kernel:
            // the callers of `launch` answer for what kernels do.
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
    /// The kernel takes exactly these parameters, all 64 bits wide, and accesses only memory that it
    /// may use with these values. That memory stays valid, and the module loaded, until the work has
    /// finished.
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
        // SAFETY: the driver copies the parameters, which `values` points to, before it returns. Our caller promises that the
        // kernel takes these parameters, and that the memory it uses stays valid until it has finished.
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
        // A failure here is ignored: a context that cannot be entered is lost, and its modules with it.
        let _entered = self.context.enter();
        // SAFETY: `load` loaded the module, and only this drop unloads it. Each `Kernel` holds an Arc of the module, so none is left.
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
