//! Libraries, their kernels and variables, and launches.

use super::api::{cu, LaunchAttribute, LaunchConfig};
use super::handles::{Kernel, Loaded};
use super::session::{done, number, Outcome, Session};
use crate::call::{Call, CallValue, KernelId, KernelInfo};
use crate::codes::Code;
use crate::frame::FrameHeader;
use crate::limits::{HANDLES_MAX, LAUNCH_ATTRIBUTES_MAX, PARAMETER_BYTES_MAX};
use std::ffi::{c_int, c_void, CString};

const ATTRIBUTE_COOPERATIVE: u32 = 2;
/// Attributes of launches without handles in them: cooperative, cluster dimension and its scheduling, programmatic
/// serialization, priority, synchronization domain, preferred cluster dimension, carveout.
const ATTRIBUTES: [u32; 8] = [2, 4, 5, 6, 8, 10, 11, 14];
/// Attributes of kernels are numbered below this.
const KERNEL_ATTRIBUTE_MAX: c_int = 16;

fn c_string(text: &str) -> Result<CString, Code> {
    CString::new(text).map_err(|_| Code::INVALID_VALUE)
}

impl Session {
    fn kernel(&self, id: &KernelId) -> Result<&Kernel, Code> {
        let library = self
            .libraries
            .get(&id.library)
            .ok_or(Code::INVALID_HANDLE)?;
        let kernel = library
            .kernels
            .get(id.index as usize)
            .and_then(Option::as_ref);
        kernel.ok_or(Code::INVALID_DEVICE_FUNCTION)
    }

    /// Loads an image, which the driver checks, and finds its kernels.
    pub(crate) fn load(
        &mut self,
        of: &FrameHeader,
        library: u64,
        names: &[&str],
        image: &[u8],
    ) -> Result<CallValue, Code> {
        self.enter(of.device)?;
        if self.libraries.contains_key(&library) || self.libraries.len() >= HANDLES_MAX {
            return Err(Code::INVALID_VALUE);
        }
        let null = std::ptr::null::<c_void>();
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function. The image is followed by a zero, so that text
        // ends; what it contains the driver has to check, in a process that has nothing of anybody but its sender's.
        unsafe {
            cu!(
                self.api,
                library_load(
                    &mut raw,
                    image.as_ptr().cast(),
                    null,
                    null,
                    0,
                    null,
                    null,
                    0
                )
            )?
        };
        self.libraries.insert(
            library,
            Loaded {
                raw,
                kernels: Vec::new(),
            },
        );
        self.find_all(of, library, names)
    }

    fn find_all(
        &mut self,
        of: &FrameHeader,
        library: u64,
        names: &[&str],
    ) -> Result<CallValue, Code> {
        let raw = self
            .libraries
            .get(&library)
            .ok_or(Code::INVALID_HANDLE)?
            .raw;
        let mut kernels = Vec::new();
        let mut infos = Vec::new();
        for name in names {
            match self.find(raw, name, of.device) {
                Ok((kernel, info)) => {
                    kernels.push(Some(kernel));
                    infos.push(info);
                }
                Err(code) => {
                    kernels.push(None);
                    infos.push(KernelInfo {
                        code: code.0,
                        ..KernelInfo::default()
                    });
                }
            }
        }
        let loaded = self
            .libraries
            .get_mut(&library)
            .ok_or(Code::INVALID_HANDLE)?;
        if loaded.kernels.len() + kernels.len() > HANDLES_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        loaded.kernels.extend(kernels);
        Ok(CallValue::Kernels(infos))
    }

    fn find(&self, library: usize, name: &str, device: u16) -> Result<(Kernel, KernelInfo), Code> {
        let name = c_string(name)?;
        let mut raw = 0;
        // SAFETY: the out pointer is to a variable of this function; the library was just loaded.
        unsafe { cu!(self.api, library_kernel(&mut raw, library, name.as_ptr()))? };
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: both out pointers are to variables of this function.
            let found = unsafe {
                cu!(
                    self.api,
                    kernel_parameter(raw, parameters.len(), &mut offset, &mut bytes)
                )
            };
            match found {
                Ok(()) if offset + bytes <= PARAMETER_BYTES_MAX => {
                    parameters.push((offset as u32, bytes as u32));
                }
                // There are no more.
                Err(Code::INVALID_VALUE) => break,
                Ok(()) => return Err(Code::NOT_SUPPORTED),
                Err(code) => return Err(code),
            }
        }
        let info = KernelInfo {
            code: 0,
            parameters: parameters.clone(),
            attributes: self.attributes(raw, device),
        };
        Ok((Kernel { raw, parameters }, info))
    }

    fn attributes(&self, kernel: usize, device: u16) -> Vec<(i32, i32)> {
        let attribute = |number: c_int| {
            let mut value = 0;
            // SAFETY: the out pointer is to a variable of this function; the kernel is one of a loaded library.
            let found = unsafe {
                cu!(
                    self.api,
                    kernel_attribute(&mut value, number, kernel, device.into())
                )
            };
            found.ok().map(|()| (number, value))
        };
        (0..KERNEL_ATTRIBUTE_MAX).filter_map(attribute).collect()
    }

    pub(super) fn library_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match call {
            Call::LibraryKnown {
                library,
                digest,
                kernels,
            } => match self.images.find(digest) {
                Some(image) => self.load(of, *library, kernels, &image).map(Outcome::Now),
                None => done(Ok(())),
            },
            Call::LibraryMore { library, kernels } => {
                self.find_all(of, *library, kernels).map(Outcome::Now)
            }
            Call::LibraryNow { library } => {
                let library = self.libraries.get(library).ok_or(Code::INVALID_HANDLE)?.raw;
                let mut module = 0;
                // SAFETY: the out pointer is to a variable of this function; the library is one of this session.
                done(unsafe { cu!(api, library_module(&mut module, library)) })
            }
            Call::LibraryUnload { library } => {
                let loaded = self.libraries.remove(library).ok_or(Code::INVALID_HANDLE)?;
                // SAFETY: a library of this session, just taken out of its table with its kernels, so no later call uses them.
                done(unsafe { cu!(api, library_unload(loaded.raw)) })
            }
            Call::Variable { library, name } => {
                let library = self.libraries.get(library).ok_or(Code::INVALID_HANDLE)?.raw;
                let name = c_string(name)?;
                let (mut address, mut bytes) = (0, 0);
                let (to, size, name) = (&mut address, &mut bytes, name.as_ptr());
                // SAFETY: both out pointers are to variables of this function; the library is one of this session.
                unsafe {
                    match cu!(api, library_global(to, size, library, name)) {
                        Err(Code::NOT_FOUND) => {
                            // A managed variable, which exists once the code is loaded.
                            cu!(api, library_module(&mut 0, library))?;
                            cu!(api, library_managed(to, size, library, name))?;
                        }
                        found => found?,
                    }
                }
                self.memory.add_variable(address, bytes as u64, of.device);
                Ok(Outcome::Now(CallValue::Pair(address, bytes as u64)))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    pub(super) fn kernel_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Outcome, Code> {
        let api = self.api.clone();
        match *call {
            Call::KernelInfo { kernel } => {
                let kernel = self.kernel(&kernel)?;
                let info = KernelInfo {
                    code: 0,
                    parameters: kernel.parameters.clone(),
                    attributes: self.attributes(kernel.raw, of.device),
                };
                Ok(Outcome::Now(CallValue::Kernels(vec![info])))
            }
            Call::KernelSet {
                kernel,
                attribute,
                value,
            } => {
                let (raw, device) = (self.kernel(&kernel)?.raw, of.device.into());
                // SAFETY: a kernel of this session; the rest are numbers, which the driver checks.
                done(unsafe { cu!(api, kernel_attribute_set(attribute, value, raw, device)) })
            }
            Call::Occupancy {
                kernel,
                block_threads: threads,
                shared_bytes,
                flags,
            } => {
                let (raw, shared) = (self.kernel(&kernel)?.raw, shared_bytes as usize);
                let mut blocks = 0;
                // SAFETY: the out pointer is to a variable of this function; a kernel may stand for a function.
                unsafe { cu!(api, occupancy(&mut blocks, raw, threads, shared, flags))? };
                number(blocks as u64)
            }
            Call::OccupancyShared {
                kernel,
                blocks,
                block_threads: threads,
            } => {
                let raw = self.kernel(&kernel)?.raw;
                let mut bytes = 0;
                // SAFETY: the out pointer is to a variable of this function; a kernel may stand for a function.
                unsafe { cu!(api, occupancy_shared(&mut bytes, raw, blocks, threads))? };
                number(bytes as u64)
            }
            _ => self.launch(of, call),
        }
    }

    fn launch(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        let Call::Launch {
            kernel,
            grid,
            block,
            shared_bytes,
            stream,
            cooperative,
            attributes,
            parameters,
        } = call
        else {
            return Err(Code::INVALID_VALUE);
        };
        let api = self.api.clone();
        let stream = self.stream(of, *stream)?;
        let kernel = self.kernel(kernel)?;
        let mut pointers = Vec::with_capacity(kernel.parameters.len());
        for (offset, bytes) in &kernel.parameters {
            let (start, end) = (*offset as usize, (*offset + *bytes) as usize);
            let value = parameters.get(start..end).ok_or(Code::INVALID_VALUE)?;
            pointers.push(value.as_ptr().cast_mut().cast::<c_void>());
        }
        let values = pointers.as_mut_ptr();
        let ([gx, gy, gz], [bx, by, bz]) = (*grid, *block);
        let (raw, shared) = (kernel.raw, *shared_bytes);
        if attributes.is_empty() && !cooperative {
            let extra = std::ptr::null_mut();
            // SAFETY: a kernel and a stream of this session; `values` points to as many bytes for each parameter as the
            // driver said that it has, and the driver copies them before it returns.
            return done(unsafe {
                cu!(
                    api,
                    launch(raw, gx, gy, gz, bx, by, bz, shared, stream, values, extra)
                )
            });
        }
        if attributes.is_empty() {
            // SAFETY: a kernel and a stream of this session; `values` points to as many bytes for each parameter as the
            // driver said that it has, and the driver copies them before it returns.
            return done(unsafe {
                cu!(
                    api,
                    launch_cooperative(raw, gx, gy, gz, bx, by, bz, shared, stream, values)
                )
            });
        }
        let mut raw_attributes = launch_attributes(attributes, *cooperative)?;
        let config = LaunchConfig {
            grid: *grid,
            block: *block,
            shared_bytes: shared,
            stream,
            attribute_count: raw_attributes.len() as u32,
            attributes: raw_attributes.as_mut_ptr(),
        };
        // SAFETY: a kernel and a stream of this session; the configuration and its attributes, which hold no handles and
        // no addresses, and the parameters, which have the lengths that the driver gave, stay until it returns.
        done(unsafe { cu!(api, launch_ex(&config, raw, values, std::ptr::null_mut())) })
    }
}

fn launch_attributes(
    wanted: &[(u32, &[u8])],
    cooperative: bool,
) -> Result<Vec<LaunchAttribute>, Code> {
    if wanted.len() > LAUNCH_ATTRIBUTES_MAX {
        return Err(Code::INVALID_VALUE);
    }
    let mut all = Vec::with_capacity(wanted.len() + 1);
    let attribute = |id, bytes: &[u8]| {
        let mut value = [0; 64];
        let known = ATTRIBUTES.contains(&id) && bytes.len() <= value.len();
        value[..bytes.len().min(64)].copy_from_slice(&bytes[..bytes.len().min(64)]);
        known
            .then_some(LaunchAttribute { id, pad: 0, value })
            .ok_or(Code::NOT_SUPPORTED)
    };
    for (id, bytes) in wanted {
        all.push(attribute(*id, bytes)?);
    }
    if cooperative && !wanted.iter().any(|(id, _)| *id == ATTRIBUTE_COOPERATIVE) {
        all.push(attribute(ATTRIBUTE_COOPERATIVE, &1i32.to_le_bytes())?);
    }
    Ok(all)
}
