//! Kernels and variables that the program has registered, and what the server said of them.
//!
//! A program registers the fat binary of each of its files before `main`. Nothing is sent then: an image goes to the server when
//! the first of its kernels or variables is used.

use crate::servers::{at, device_of, number_of};
use crate::{managed, memory, notice, session, thread};
use rgaps_remoting::{digest_of, Call, Code, KernelId, KernelInfo, Value, IMAGE_KEPT_BYTES_MIN};
use rgaps_sync::lock;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_void, CStr, CString};
use std::sync::{Mutex, MutexGuard, OnceLock};

const WRAPPER_MAGIC: u32 = 0x466243b1;
const IMAGE_MAGIC: u32 = 0xBA55ED50;
/// Of wrappers that point to one image; others have been linked by nvlink.
const WRAPPER_PLAIN: u32 = 1;

/// `__fatBinC_Wrapper_t`.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    image: *const u8,
    rest: *const c_void,
}

/// The head of an image.
#[repr(C)]
struct ImageHead {
    magic: u32,
    version: u16,
    head_bytes: u16,
    body_bytes: u64,
}

/// Images of a program, or modules that it loads.
pub(crate) struct Library {
    number: u64,
    image: Image,
    state: Mutex<KernelState>,
}

enum Image {
    /// In the program's own memory, for as long as it is loaded.
    Static { start: *const u8, bytes: usize },
    /// A copy.
    Owned(Vec<u8>),
    /// Something that cannot be sent, and why.
    Unusable(Code),
}

// SAFETY: an image is never changed: the program keeps the memory behind `Image::Static` as it is until it unregisters the library
// (`Library::register`), and any thread may read it. The rest may go to other threads by itself.
unsafe impl Send for Library {}
// SAFETY: an image is never changed: the program keeps the memory behind `Image::Static` as it is until it unregisters the library
// (`Library::register`). Whatever changes is in `state`, behind its mutex.
unsafe impl Sync for Library {}

#[derive(Default)]
struct KernelState {
    kernels: Vec<&'static Kernel>,
    /// How many of them each server knows.
    loaded: HashMap<usize, Result<usize, Code>>,
    /// The program has unloaded it.
    is_unloaded: bool,
}

/// A kernel. Its address is its handle.
pub(crate) struct Kernel {
    library: &'static Library,
    index: u32,
    name: CString,
    infos: Mutex<HashMap<u16, Result<&'static KernelInfo, Code>>>,
}

struct Variable {
    library: &'static Library,
    name: String,
    /// Address and bytes by device.
    addresses: HashMap<u16, (u64, u64)>,
}

#[derive(Default)]
struct Registry {
    /// By the address of the function in the program that stands for the kernel.
    functions: HashMap<usize, &'static Kernel>,
    variables: HashMap<usize, Variable>,
    /// Of managed variables: the library's handle, and where the program has its pointer to the variable. Until the program uses them.
    managed: Vec<(usize, usize)>,
    handles: HashSet<usize>,
    libraries: HashSet<usize>,
}

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    lock(REGISTRY.get_or_init(Mutex::default))
}

impl Library {
    fn add(image: Image) -> &'static Library {
        let library: &'static Library = Box::leak(Box::new(Library {
            number: session::mint(),
            image,
            state: Mutex::default(),
        }));
        registry()
            .libraries
            .insert(std::ptr::from_ref(library) as usize);
        library
    }

    /// The library of a handle.
    pub(crate) fn of(handle: usize) -> Result<&'static Library, Code> {
        match registry().libraries.contains(&handle) {
            // SAFETY: the address of a library, which is never given back.
            true => Ok(unsafe { &*(handle as *const Library) }),
            false => Err(Code::INVALID_HANDLE),
        }
    }

    /// Registers a program's fat binary.
    ///
    /// # Safety
    /// `wrapper` is what nvcc makes, and stays as it is while the program runs.
    pub(crate) unsafe fn register(wrapper: *const c_void) -> &'static Library {
        // SAFETY: nvcc's code passes a wrapper of this layout, as the caller promises.
        let image = unsafe {
            let wrapper = &*wrapper.cast::<Wrapper>();
            match (wrapper.magic, wrapper.version) {
                (WRAPPER_MAGIC, WRAPPER_PLAIN) => static_image(wrapper.image),
                (WRAPPER_MAGIC, _) => {
                    notice::once(
                        "kernels that were linked by nvlink (-rdc=true) are not supported yet",
                    );
                    Image::Unusable(Code::NOT_SUPPORTED)
                }
                _ => Image::Unusable(Code::INVALID_IMAGE),
            }
        };
        Library::add(image)
    }

    /// Loads an image that the program has in memory: a fat binary, an object file, or PTX.
    ///
    /// # Safety
    /// `image` is one of these.
    pub(crate) unsafe fn load(image: *const u8) -> Result<&'static Library, Code> {
        // SAFETY: an image of one of the kinds whose length can be read, as the caller promises.
        let bytes = unsafe { image_bytes(image) }.ok_or(Code::INVALID_IMAGE)?;
        // SAFETY: `image_bytes` has read the image's length, `bytes`, from its head or up to the 0 byte that ends it. Our caller promises such an
        // image, which the program keeps during its call; the bytes are copied here.
        let copy = unsafe { std::slice::from_raw_parts(image, bytes) }.to_vec();
        Ok(Library::add(Image::Owned(copy)))
    }

    /// Adds a kernel. The server learns of it with the image, or is asked later.
    pub(crate) fn kernel(&'static self, name: &CStr) -> &'static Kernel {
        let mut state = lock(&self.state);
        if let Some(known) = state
            .kernels
            .iter()
            .find(|kernel| kernel.name.as_c_str() == name)
        {
            return known;
        }
        let kernel: &'static Kernel = Box::leak(Box::new(Kernel {
            library: self,
            index: state.kernels.len() as u32,
            name: name.to_owned(),
            infos: Mutex::default(),
        }));
        state.kernels.push(kernel);
        drop(state);
        registry()
            .handles
            .insert(std::ptr::from_ref(kernel) as usize);
        kernel
    }

    /// Sends the image and the names of its kernels, unless the server has them.
    pub(crate) fn load_all(&self) -> Result<(), Code> {
        let server = number_of(thread::device());
        let mut state = lock(&self.state);
        if state.is_unloaded {
            return Err(Code::INVALID_HANDLE);
        }
        if let Some(loaded) = state.loaded.get(&server).copied() {
            return match loaded {
                Ok(known) if known == state.kernels.len() => Ok(()),
                // A kernel was asked for that was not among the names.
                Ok(known) => self.load_more(&mut state, known),
                Err(code) => Err(code),
            };
        }
        let result = self.send(&state.kernels);
        // A failure of the connection is told again by every call.
        let loaded = result.map(|()| state.kernels.len());
        state.loaded.insert(server, loaded);
        result
    }

    fn load_more(&self, state: &mut KernelState, known: usize) -> Result<(), Code> {
        let names: Vec<&str> = state.kernels[known..]
            .iter()
            .map(|kernel| kernel.name())
            .collect();
        let call = Call::LibraryMore {
            library: self.number,
            kernels: names,
        };
        note(&state.kernels[known..], session::call(&call, &[])?)?;
        let known = state.kernels.len();
        state.loaded.insert(number_of(thread::device()), Ok(known));
        Ok(())
    }

    fn send(&self, kernels: &[&'static Kernel]) -> Result<(), Code> {
        let image = match &self.image {
            // SAFETY: the program's image, which stays as long as the program has it registered.
            Image::Static { start, bytes } => unsafe { std::slice::from_raw_parts(*start, *bytes) },
            Image::Owned(bytes) => bytes,
            Image::Unusable(code) => return Err(*code),
        };
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name()).collect();
        let library = self.number;
        if image.len() >= IMAGE_KEPT_BYTES_MIN {
            let call = Call::LibraryKnown {
                library,
                digest: digest_of(image),
                kernels: names.clone(),
            };
            match session::call(&call, &[])? {
                // The server does not have it.
                Value::Nothing => {}
                known => return note(kernels, known),
            }
        }
        let call = Call::LibraryLoad {
            library,
            kernels: names,
        };
        note(kernels, session::call(&call, image)?)
    }

    /// Has the driver load the code, if it is loaded lazily.
    pub(crate) fn load_now(&self) -> Result<(), Code> {
        let library = self.number;
        session::call(&Call::LibraryNow { library }, &[]).map(drop)
    }

    /// Has the servers unload it.
    pub(crate) fn unload(&'static self) -> Result<(), Code> {
        registry()
            .libraries
            .remove(&(std::ptr::from_ref(self) as usize));
        let mut state = lock(&self.state);
        state.is_unloaded = true;
        for kernel in &state.kernels {
            registry()
                .handles
                .remove(&(std::ptr::from_ref(*kernel) as usize));
        }
        let library = self.number;
        let mut result = Ok(());
        for (server, loaded) in state.loaded.drain() {
            if loaded.is_ok() {
                let unload = || session::send(&Call::LibraryUnload { library }, &[]);
                result = result.and(at(device_of(server), unload));
            }
        }
        result
    }

    /// Address and bytes of a variable on the current device.
    pub(crate) fn variable(&self, name: &str) -> Result<(u64, u64), Code> {
        self.load_all()?;
        let call = Call::Variable {
            library: self.number,
            name,
        };
        match session::call(&call, &[])? {
            Value::Pair(address, bytes) => {
                memory::add_variable(address, bytes)?;
                Ok((address, bytes))
            }
            _ => Err(Code::UNKNOWN),
        }
    }
}

/// Keeps what the server said of kernels for the current device.
fn note(kernels: &[&'static Kernel], value: Value) -> Result<(), Code> {
    let Value::Kernels(infos) = value else {
        return Err(Code::UNKNOWN);
    };
    if infos.len() != kernels.len() {
        return Err(Code::UNKNOWN);
    }
    for (kernel, info) in kernels.iter().zip(infos) {
        let info = match Code(info.code) {
            Code::SUCCESS => Ok(&*Box::leak(Box::new(info))),
            code => Err(code),
        };
        lock(&kernel.infos).insert(thread::device(), info);
    }
    Ok(())
}

/// # Safety
/// `start` is null or an image of the program.
unsafe fn static_image(start: *const u8) -> Image {
    // SAFETY: null or an image of one of the kinds whose length can be read, as the caller promises.
    match unsafe { image_bytes(start) } {
        Some(bytes) => Image::Static { start, bytes },
        None => Image::Unusable(Code::INVALID_IMAGE),
    }
}

/// How long an image is: a fat binary and an object file say it, text ends with a zero.
///
/// # Safety
/// `start` is null or an image.
unsafe fn image_bytes(start: *const u8) -> Option<usize> {
    if start.is_null() {
        return None;
    }
    // SAFETY: each kind of image has at least a head of its kind, which its first bytes name.
    unsafe {
        if start.cast::<u32>().read_unaligned() == IMAGE_MAGIC {
            let head = start.cast::<ImageHead>().read_unaligned();
            return usize::try_from(head.body_bytes)
                .ok()?
                .checked_add(head.head_bytes.into());
        }
        if std::slice::from_raw_parts(start, 4) == b"\x7fELF" {
            return elf_bytes(start);
        }
        let text = CStr::from_ptr(start.cast());
        text.to_bytes()
            .is_ascii()
            .then(|| text.to_bytes_with_nul().len())
    }
}

/// # Safety
/// `start` is an object file for 64-bit machines.
unsafe fn elf_bytes(start: *const u8) -> Option<usize> {
    // SAFETY: the fields of the head of an ELF file: where the tables of sections and of segments are, and their sizes.
    unsafe {
        let word = |at: usize| start.add(at).cast::<u16>().read_unaligned() as usize;
        let long = |at: usize| start.add(at).cast::<u64>().read_unaligned() as usize;
        let sections = long(40).checked_add(word(58) * word(60))?;
        let segments = long(32).checked_add(word(54) * word(56))?;
        let mut end = sections.max(segments);
        for number in 0..word(60) {
            let section = start.add(long(40) + number * word(58));
            // Sections of a kind without bytes in the file.
            let kind = section.add(4).cast::<u32>().read_unaligned();
            let offset = section.add(24).cast::<u64>().read_unaligned() as usize;
            let bytes = section.add(32).cast::<u64>().read_unaligned() as usize;
            if kind != 8 {
                end = end.max(offset.checked_add(bytes)?);
            }
        }
        Some(end)
    }
}

impl Kernel {
    /// Registers the function of the program that stands for a kernel.
    pub(crate) fn register(library: &'static Library, function: usize, name: &CStr) {
        let kernel = library.kernel(name);
        registry().functions.insert(function, kernel);
    }

    /// The kernel that a function of the program stands for, or that a handle means.
    pub(crate) fn of(function: usize) -> Result<&'static Kernel, Code> {
        let registry = registry();
        if let Some(kernel) = registry.functions.get(&function) {
            return Ok(kernel);
        }
        match registry.handles.contains(&function) {
            // SAFETY: the address of a kernel, which is never given back.
            true => Ok(unsafe { &*(function as *const Kernel) }),
            // The runtime takes a function that is no kernel for a handle.
            false => Err(Code::INVALID_HANDLE),
        }
    }

    pub(crate) fn name(&self) -> &str {
        // A name that is no text is no kernel's.
        self.name.to_str().unwrap_or_default()
    }

    pub(crate) fn c_name(&self) -> &CStr {
        &self.name
    }

    pub(crate) fn id(&self) -> KernelId {
        KernelId {
            library: self.library.number,
            index: self.index,
        }
    }

    /// What the server says of it for the current device; loads its library.
    pub(crate) fn info(&self) -> Result<&'static KernelInfo, Code> {
        let device = thread::device();
        if let Some(known) = lock(&self.infos).get(&device) {
            return *known;
        }
        self.library.load_all()?;
        if let Some(known) = lock(&self.infos).get(&device) {
            return *known;
        }
        // Its library was loaded for another device.
        note(
            std::slice::from_ref(&Kernel::of(std::ptr::from_ref(self) as usize)?),
            session::call(&Call::KernelInfo { kernel: self.id() }, &[])?,
        )?;
        lock(&self.infos)
            .get(&device)
            .copied()
            .ok_or(Code::UNKNOWN)?
    }

    /// Asks again: an attribute was set.
    pub(crate) fn forget_info(&self) {
        lock(&self.infos).clear();
    }
}

/// An attribute of a kernel, or 0 if the driver does not know it.
pub(crate) fn attribute(info: &KernelInfo, number: i32) -> i32 {
    let found = info.attributes.iter().find(|(of, _)| *of == number);
    found.map_or(0, |(_, value)| *value)
}

/// Registers a variable of the program that stands for one on the device.
pub(crate) fn register_variable(library: &'static Library, variable: usize, name: &CStr) {
    let entry = Variable {
        library,
        name: name.to_string_lossy().into_owned(),
        addresses: HashMap::new(),
    };
    registry().variables.insert(variable, entry);
}

/// Notes a managed variable, which was registered under the address of the program's pointer to it.
pub(crate) fn register_managed(library: usize, pointer: usize) {
    registry().managed.push((library, pointer));
}

/// Makes the managed variables of a library memory of this host, too, and tells the program their addresses.
pub(crate) fn ready_managed(library: usize) -> Result<(), Code> {
    let is_of = |entry: &(usize, usize)| entry.0 == library;
    let all: Vec<_> = registry().managed.iter().copied().filter(is_of).collect();
    for (_, pointer) in all {
        let (address, bytes) = variable(pointer)?;
        managed::adopt(address, bytes)?;
        // SAFETY: nvcc's code registered the address of a pointer of its own, which stays as long as the program or library is loaded.
        unsafe { (pointer as *mut u64).write(address) };
    }
    registry().managed.retain(|entry| !is_of(entry));
    Ok(())
}

/// Address and bytes on the current device of a variable of the program.
pub(crate) fn variable(symbol: usize) -> Result<(u64, u64), Code> {
    let device = thread::device();
    let (library, name) = {
        let registry = registry();
        let variable = registry
            .variables
            .get(&symbol)
            .ok_or(Code::INVALID_SYMBOL)?;
        if let Some(place) = variable.addresses.get(&device) {
            return Ok(*place);
        }
        (variable.library, variable.name.clone())
    };
    let place = library.variable(&name)?;
    if let Some(variable) = registry().variables.get_mut(&symbol) {
        variable.addresses.insert(device, place);
    }
    Ok(place)
}

/// Forgets what lay on a device that was reset: it is loaded again.
pub(crate) fn forget_device(device: u16) {
    registry().variables.values_mut().for_each(|variable| {
        variable.addresses.remove(&device);
    });
}
