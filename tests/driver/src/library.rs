//! Libraries and their kernels. A library belongs to no context; its variables lie in the memory of each GPU that uses it.

use crate::abi::Code;
use crate::call::{global, Global};
use crate::context::Context;
use crate::ptx::{self, Geometry, Kernel, Text};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const FAT_BINARY_MAGIC: [u8; 4] = 0xBA55_ED50u32.to_le_bytes();
/// Shared memory that a launch may ask for without an attribute, and with it.
pub(crate) const SHARED_BYTES_MAX: u32 = 48 << 10;
pub(crate) const SHARED_BYTES_OPTIN: u32 = 227 << 10;

/// A loaded image.
pub(crate) struct Library {
    text: Text,
    /// Addresses of its variables, by the position of the GPU.
    variables: Mutex<HashMap<usize, Vec<u64>>>,
}

/// A kernel of a library.
pub(crate) struct Function {
    library: Arc<Library>,
    index: usize,
    pub(crate) dynamic_shared_max: AtomicU32,
}

#[derive(Default)]
struct Tables {
    last: usize,
    libraries: HashMap<usize, Arc<Library>>,
    functions: HashMap<usize, (usize, Arc<Function>)>,
}

/// Libraries and kernels, by handle.
#[derive(Default)]
pub(crate) struct Libraries {
    tables: Mutex<Tables>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    fn next(&mut self) -> usize {
        self.last += 1;
        0x7e57_2000_0000 + self.last * 16
    }
}

impl Library {
    /// Reads an image: text, or a fat binary with uncompressed text in it.
    pub(crate) fn parse(image: &[u8]) -> Result<Library, Code> {
        let mut all = Text::default();
        let mut rest = image;
        while let Some(at) = rest.windows(8).position(|window| window == b".version") {
            rest = &rest[at..];
            let end = rest
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(rest.len());
            let text = std::str::from_utf8(&rest[..end]).map_err(|_| Code::INVALID_PTX)?;
            let parsed = ptx::parse(text)?;
            if !all.variables.is_empty() && !parsed.variables.is_empty() {
                // Kernels name variables by position.
                return Err(Code::NOT_SUPPORTED);
            }
            all.variables.extend(parsed.variables);
            all.kernels.extend(parsed.kernels);
            rest = &rest[end..];
        }
        match all.kernels.is_empty()
            && all.variables.is_empty()
            && image.starts_with(&FAT_BINARY_MAGIC)
        {
            // Only compiled code, or compressed text.
            true => Err(Code::NO_BINARY_FOR_GPU),
            false if rest.len() == image.len() => Err(Code::INVALID_IMAGE),
            false => Ok(Library {
                text: all,
                variables: Mutex::default(),
            }),
        }
    }

    /// Addresses of the variables on a GPU, which get their first values there.
    pub(crate) fn variables(&self, g: &Global, context: &Context) -> Result<Vec<u64>, Code> {
        let mut by_gpu = lock(&self.variables);
        if let Some(known) = by_gpu.get(&context.position) {
            return Ok(known.clone());
        }
        let mut addresses = Vec::new();
        for variable in &self.text.variables {
            let address = g
                .memory_mut()
                .allocate(variable.bytes as u64, context.position)?;
            // SAFETY: just allocated, with at least as many bytes as the variable.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    variable.initial.as_ptr(),
                    address as *mut u8,
                    variable.initial.len(),
                )
            };
            addresses.push(address);
        }
        by_gpu.insert(context.position, addresses.clone());
        Ok(addresses)
    }

    /// Address and bytes of a variable.
    pub(crate) fn variable(
        &self,
        g: &Global,
        context: &Context,
        (name, is_managed): (&str, bool),
    ) -> Result<(u64, usize), Code> {
        let position = self
            .text
            .variables
            .iter()
            .position(|variable| variable.name == name && variable.is_managed == is_managed);
        let position = position.ok_or(Code::NOT_FOUND)?;
        let addresses = self.variables(g, context)?;
        Ok((addresses[position], self.text.variables[position].bytes))
    }

    fn free(&self, g: &Global) {
        for address in lock(&self.variables)
            .drain()
            .flat_map(|(_, addresses)| addresses)
        {
            // Allocated here, and nowhere else freed.
            let _ = g.memory_mut().free(address);
        }
    }
}

impl Function {
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.library.text.kernels[self.index]
    }

    /// Checks a launch as the driver does.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), Code> {
        let threads: u64 = geometry.block.iter().map(|size| u64::from(*size)).product();
        let sizes = geometry.block.iter().chain(&geometry.grid);
        if sizes.into_iter().any(|size| *size == 0) || threads > crate::kernel::MAX_THREADS.into() {
            return Err(Code::INVALID_VALUE);
        }
        if self
            .kernel()
            .threads_max
            .is_some_and(|most| threads > most.into())
        {
            return Err(Code::INVALID_VALUE);
        }
        let most = self.dynamic_shared_max.load(Ordering::Acquire) as usize;
        if geometry.shared_bytes > most {
            return Err(Code::INVALID_VALUE);
        }
        if let Err(reason) = &self.kernel().code {
            eprintln!("rgaps test driver: kernel {}: {reason}", self.kernel().name);
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(())
    }

    /// What running it does.
    pub(crate) fn run(&self, context: &Arc<Context>, parameters: &[u8], geometry: Geometry) {
        let ran = self
            .library
            .variables(global(), context)
            .and_then(|variables| {
                ptx::launch(context, self.kernel(), parameters, &variables, geometry)
            });
        if let Err(code) = ran {
            context.lose(code);
        }
    }
}

impl Libraries {
    pub(crate) fn add(&self, library: Library) -> usize {
        let mut tables = lock(&self.tables);
        let handle = tables.next();
        tables.libraries.insert(handle, Arc::new(library));
        handle
    }

    pub(crate) fn remove(&self, g: &Global, handle: usize) -> Result<(), Code> {
        let library = {
            let mut tables = lock(&self.tables);
            tables.functions.retain(|_, (of, _)| *of != handle);
            tables
                .libraries
                .remove(&handle)
                .ok_or(Code::INVALID_HANDLE)?
        };
        library.free(g);
        Ok(())
    }

    pub(crate) fn library(&self, handle: usize) -> Result<Arc<Library>, Code> {
        lock(&self.tables)
            .libraries
            .get(&handle)
            .cloned()
            .ok_or(Code::INVALID_HANDLE)
    }

    /// A handle of the kernel `name`; the same each time.
    pub(crate) fn function(&self, library: usize, name: &str) -> Result<usize, Code> {
        let mut tables = lock(&self.tables);
        let found = tables
            .libraries
            .get(&library)
            .ok_or(Code::INVALID_HANDLE)?
            .clone();
        let index = found
            .text
            .kernels
            .iter()
            .position(|kernel| kernel.name == name)
            .ok_or(Code::NOT_FOUND)?;
        let known = tables
            .functions
            .iter()
            .find(|(_, (of, function))| *of == library && function.index == index);
        if let Some((handle, _)) = known {
            return Ok(*handle);
        }
        let handle = tables.next();
        let function = Function {
            library: found,
            index,
            dynamic_shared_max: AtomicU32::new(SHARED_BYTES_MAX),
        };
        tables
            .functions
            .insert(handle, (library, Arc::new(function)));
        Ok(handle)
    }

    pub(crate) fn get(&self, function: usize) -> Option<Arc<Function>> {
        lock(&self.tables)
            .functions
            .get(&function)
            .map(|(_, function)| function.clone())
    }

    /// Forgets the variables on a GPU whose context is gone; they begin anew.
    pub(crate) fn remove_of(&self, g: &Global, context: &Context) {
        for library in lock(&self.tables).libraries.values() {
            for address in lock(&library.variables)
                .remove(&context.position)
                .unwrap_or_default()
            {
                let _ = g.memory_mut().free(address);
            }
        }
    }
}
