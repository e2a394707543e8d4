//! Kernels and variables that the program has registered, and the server's descriptions of them.
//!
//! A program registers the fat binary of each of its files before `main`. Nothing is sent then: an image goes to the server when
//! the first of its kernels or variables is used.

use crate::servers::{at, device_of, number_of};
use crate::{managed, memory, notice, session, thread};
use rgaps_remoting::{
    digest_of, Call, CallValue, Code, KernelId, KernelInfo, IMAGE_KEPT_BYTES_MIN,
};
use rgaps_sync::lock;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_void, CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

const WRAPPER_MAGIC: u32 = 0x466243b1;
const IMAGE_MAGIC: u32 = 0xBA55ED50;
const ELF_MAGIC: u32 = u32::from_ne_bytes(*b"\x7fELF");
/// The length of an image of which only its head tells the length.
const UNKNOWN: usize = usize::MAX;
/// Version of wrappers that point to one image. nvlink makes wrappers of other versions.
const WRAPPER_PLAIN: u32 = 1;

/// `__fatBinC_Wrapper_t`.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    image: *const u8,
    rest: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ImageHead {
    magic: u32,
    version: u16,
    head_bytes: u16,
    body_bytes: u64,
}

/// An image that a program or library contains, or that the program loads.
pub(crate) struct Library {
    number: u64,
    image: Image,
    /// The program or library that contains the image is about to be unloaded, and the image with it.
    is_unregistered: AtomicBool,
    state: Mutex<KernelState>,
}

enum Image {
    /// In memory of the program or library that contains it, for as long as that is loaded.
    Static {
        start: *const u8,
        bytes: usize,
    },
    Owned(Vec<u8>),
    /// An image that cannot be sent, and the error of its uses.
    Unusable(Code),
}

// SAFETY: only `start` of `Image::Static` is not `Send` by itself. It points to data that the program or library that registered it never
// changes (`Library::register`), so any thread may read it. Every other field is `Send`.
unsafe impl Send for Library {}
// SAFETY: only `start` of `Image::Static` is not `Sync` by itself. It points to data that the program or library that registered it never
// changes (`Library::register`), so threads may read it at the same time. The one field that changes, `state`, has a mutex.
unsafe impl Sync for Library {}

#[derive(Default)]
struct KernelState {
    kernels: Vec<&'static Kernel>,
    /// How many of `kernels` each server knows, or why it has not loaded the image.
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
    /// Managed variables that the program has not used yet: the library's handle, and the address of the program's pointer to the variable.
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
            is_unregistered: AtomicBool::new(false),
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
            // SAFETY: `libraries` has only addresses of libraries that `add` has leaked. So this one lives as long as the process, and
            // nobody has a `&mut` to it.
            true => Ok(unsafe { &*(handle as *const Library) }),
            false => Err(Code::INVALID_HANDLE),
        }
    }

    /// Registers a program's fat binary.
    ///
    /// # Safety
    /// `wrapper` is a `__fatBinC_Wrapper_t` of nvcc. It and the image that it points to stay as they are while the program or library
    /// that contains them is loaded.
    pub(crate) unsafe fn register(wrapper: *const c_void) -> &'static Library {
        // SAFETY: our caller promises that `wrapper` points to a structure of nvcc's with the layout of `Wrapper`, and this to an image
        // (or null) that is a whole one, if the version is plain. nvcc puts both into data of the program, which stays while it is
        // loaded.
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

    /// Call before the program or library that contains the image is unloaded: its image is not read any more. Tells the servers nothing
    /// and waits for nothing, since it runs at the end of programs, also of forked ones, which have the locks of other threads.
    pub(crate) fn unregister(&self) {
        self.is_unregistered.store(true, Ordering::Release);
    }

    /// Loads an image that the program has in memory: a fat binary, an object file, or PTX.
    ///
    /// # Safety
    /// `image` is null or a whole image of one of these kinds, which stays as it is until this returns.
    pub(crate) unsafe fn load(image: *const u8) -> Result<&'static Library, Code> {
        // SAFETY: our caller promises that `image` is null or a whole fat binary, ELF file or text that ends with a zero, and stays so
        // until we return.
        let bytes = unsafe { image_bytes(image, UNKNOWN) }.ok_or(Code::INVALID_IMAGE)?;
        // SAFETY: `image_bytes` has read the image's length, `bytes`, from its head or up to the 0 byte that ends it. Our caller promises
        // such an image, which the program keeps during its call; the bytes are copied here.
        let copy = unsafe { std::slice::from_raw_parts(image, bytes) }.to_vec();
        Ok(Library::add(Image::Owned(copy)))
    }

    /// Loads an image that is a file of one of these kinds. Refuses a file that has fewer bytes than its head promises.
    pub(crate) fn load_file(mut file: Vec<u8>) -> Result<&'static Library, Code> {
        let length = file.len();
        // PTX in memory ends with a zero.
        file.push(0);
        // SAFETY: the vector has `length` bytes and a zero behind them. It is this function's, so nobody else changes it.
        let bytes = unsafe { image_bytes(file.as_ptr(), length) }.ok_or(Code::INVALID_IMAGE)?;
        file.truncate(bytes);
        Ok(Library::add(Image::Owned(file)))
    }

    /// Finds a kernel by its name, or adds one. The server learns the name with the image, or later (`load_more`).
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
                // Kernels were added after the image was sent.
                Ok(known) => self.load_more(&mut state, known),
                Err(code) => Err(code),
            };
        }
        let result = self.send(&state.kernels);
        // An error is kept, too: each later use of the library gives it again.
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
            Image::Static { .. } if self.is_unregistered.load(Ordering::Acquire) => {
                return Err(Code::INVALID_HANDLE)
            }
            // SAFETY: `static_image` has read the length of the image at `start`, `bytes`. `register`'s caller promised that it stays as
            // it is while the program or library that contains it is loaded. That is so: nvcc's code calls `unregister` first. A program
            // that uses a library's kernels while another of its threads unloads that library breaks the contract of `dlclose`.
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
                CallValue::Nothing => {}
                known => return note(kernels, known),
            }
        }
        let call = Call::LibraryLoad {
            library,
            kernels: names,
        };
        note(kernels, session::call(&call, image)?)
    }

    /// Has the server's driver load the code at once, where it would load it at the first use.
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
            CallValue::Pair(address, bytes) => {
                memory::add_variable(address, bytes)?;
                Ok((address, bytes))
            }
            _ => Err(Code::UNKNOWN),
        }
    }
}

/// Keeps the server's descriptions of kernels for the current device.
fn note(kernels: &[&'static Kernel], value: CallValue) -> Result<(), Code> {
    let CallValue::Kernels(infos) = value else {
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
/// `start` is null or a whole image, which stays as it is while the program or library that contains it is loaded.
unsafe fn static_image(start: *const u8) -> Image {
    // SAFETY: our caller promises that `start` is null or a whole image that stays as it is for longer than this call.
    match unsafe { image_bytes(start, UNKNOWN) } {
        Some(bytes) => Image::Static { start, bytes },
        None => Image::Unusable(Code::INVALID_IMAGE),
    }
}

/// Bytes of an image: the heads of a fat binary and of an ELF file give them, text (PTX) ends with a zero. `None` for null, for other
/// text, and for an image that would have more than `length` bytes.
///
/// # Safety
/// `start` is null or a whole image of one of these kinds, and `length` is [`UNKNOWN`]. Or `length` bytes at `start` and a zero behind
/// them may be read. They stay as they are until this returns.
unsafe fn image_bytes(start: *const u8, length: usize) -> Option<usize> {
    if start.is_null() {
        return None;
    }
    // SAFETY: our caller promises a whole image or `length` bytes, which is what `field` and `elf_bytes` need. What begins as neither
    // binary kind is text of a whole image, which ends with a zero, or has the zero behind its `length` bytes.
    unsafe {
        match field::<u32>(start, length, 0)? {
            IMAGE_MAGIC => {
                let head = field::<ImageHead>(start, length, 0)?;
                let body = usize::try_from(head.body_bytes).ok()?;
                let bytes = body.checked_add(head.head_bytes.into())?;
                (bytes <= length).then_some(bytes)
            }
            ELF_MAGIC => elf_bytes(start, length),
            _ => {
                let text = CStr::from_ptr(start.cast());
                text.to_bytes()
                    .is_ascii()
                    .then(|| text.to_bytes_with_nul().len())
            }
        }
    }
}

/// # Safety
/// `start` is a whole ELF file for 64-bit machines, and `length` is [`UNKNOWN`]. Or `length` bytes at `start` may be read. They stay as
/// they are until this returns.
unsafe fn elf_bytes(start: *const u8, length: usize) -> Option<usize> {
    // SAFETY: our caller promises a whole file or `length` bytes. Of a whole file `field` reads only the head of 64 bytes and the table
    // of sections, whose offset, entry size and number of entries the head has.
    unsafe {
        let word = |at: usize| field::<u16>(start, length, at).map(usize::from);
        let long = |at: usize| usize::try_from(field::<u64>(start, length, at)?).ok();
        let (table, entry_bytes, count) = (long(40)?, word(58)?, word(60)?);
        let sections = table.checked_add(entry_bytes * count)?;
        let segments = long(32)?.checked_add(word(54)? * word(56)?)?;
        let mut end = sections.max(segments);
        if end > length {
            return None;
        }
        for number in 0..count {
            let section = table + number * entry_bytes;
            let kind = field::<u32>(start, length, section.checked_add(4)?)?;
            let offset = long(section.checked_add(24)?)?;
            let bytes = long(section.checked_add(32)?)?;
            // Sections of kind 8 (SHT_NOBITS) have no bytes in the file.
            if kind != 8 {
                end = end.max(offset.checked_add(bytes)?);
            }
        }
        (end <= length).then_some(end)
    }
}

/// A field of an image; `None` if it is not inside the image's `length` bytes.
///
/// # Safety
/// `T` is an integer or consists of integers. `length` bytes at `start` may be read; or `length` is [`UNKNOWN`], and the field may be
/// read.
unsafe fn field<T: Copy>(start: *const u8, length: usize, at: usize) -> Option<T> {
    let is_inside = at.checked_add(size_of::<T>())? <= length;
    // SAFETY: the field is inside the `length` bytes, or `length` is `UNKNOWN`; our caller promises that it may be read in both cases, and
    // that any bytes are a `T`.
    is_inside.then(|| unsafe { start.add(at).cast::<T>().read_unaligned() })
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
            // SAFETY: `handles` has only addresses of kernels that `Library::kernel` has leaked. So this one lives as long as the
            // process, and nobody has a `&mut` to it.
            true => Ok(unsafe { &*(function as *const Kernel) }),
            // The runtime takes a function that is no kernel for a handle.
            false => Err(Code::INVALID_HANDLE),
        }
    }

    pub(crate) fn name(&self) -> &str {
        // No kernel has a name that is not UTF-8.
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

    /// The server's description of the kernel for the current device; loads its library first.
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

    /// Call when an attribute was set: the next use asks the server again.
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

/// Gives the managed variables of a library memory on this host, too, and writes their addresses to the program's pointers.
pub(crate) fn ready_managed(library: usize) -> Result<(), Code> {
    let is_of = |entry: &(usize, usize)| entry.0 == library;
    let all: Vec<_> = registry().managed.iter().copied().filter(is_of).collect();
    for (_, pointer) in all {
        let (address, bytes) = variable(pointer)?;
        managed::adopt(address, bytes)?;
        // SAFETY: nvcc's code registered `pointer`: the address of a pointer in data of the program or library, which stays while that is
        // loaded. By nvcc's contract the program reads it only after `__cudaInitModule` has returned, which calls this.
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
        if let Some(range) = variable.addresses.get(&device) {
            return Ok(*range);
        }
        (variable.library, variable.name.clone())
    };
    let range = library.variable(&name)?;
    if let Some(variable) = registry().variables.get_mut(&symbol) {
        variable.addresses.insert(device, range);
    }
    Ok(range)
}

/// Forgets the addresses of variables on a device that was reset; the next use of each asks the server.
pub(crate) fn forget_device(device: u16) {
    registry().variables.values_mut().for_each(|variable| {
        variable.addresses.remove(&device);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(image: &mut [u8], at: usize, field: &[u8]) {
        image[at..at + field.len()].copy_from_slice(field);
    }

    /// An ELF file: the head, a table with two sections, and the bytes of the first. The second has none in the file.
    fn elf() -> Vec<u8> {
        let mut file = vec![0; 64 + 2 * 64 + 10];
        put(&mut file, 0, b"\x7fELF");
        put(&mut file, 40, &64u64.to_ne_bytes());
        put(&mut file, 58, &[64, 0, 2, 0]);
        put(&mut file, 64 + 4, &1u32.to_ne_bytes());
        put(&mut file, 64 + 24, &192u64.to_ne_bytes());
        put(&mut file, 64 + 32, &10u64.to_ne_bytes());
        put(&mut file, 128 + 4, &8u32.to_ne_bytes());
        put(&mut file, 128 + 32, &(1u64 << 40).to_ne_bytes());
        file
    }

    fn fat_binary() -> Vec<u8> {
        let mut file = vec![0; 16 + 8];
        put(&mut file, 0, &IMAGE_MAGIC.to_ne_bytes());
        put(&mut file, 6, &[16, 0, 8]);
        file
    }

    fn refused(file: &[u8]) -> bool {
        matches!(Library::load_file(file.to_vec()), Err(Code::INVALID_IMAGE))
    }

    #[test]
    fn a_file_that_is_shorter_than_its_head_says_is_refused() {
        for whole in [elf(), fat_binary()] {
            for length in 0..whole.len() {
                assert!(refused(&whole[..length]), "{length}");
            }
            let longer = [&whole[..], b"more"].concat();
            for file in [&whole, &longer] {
                let library = Library::load_file(file.clone()).ok().unwrap();
                assert!(matches!(&library.image, Image::Owned(image) if *image == whole));
            }
        }
        let library = Library::load_file(b".version 8.0".to_vec()).ok().unwrap();
        assert!(matches!(&library.image, Image::Owned(image) if image == b".version 8.0\0"));
    }

    #[test]
    fn a_file_with_a_forged_head_is_refused() {
        for (at, bytes) in [
            (32, 8),
            (40, 8),
            (54, 4),
            (58, 4),
            (64 + 24, 8),
            (64 + 32, 8),
        ] {
            let mut forged = elf();
            put(&mut forged, at, &vec![0xff; bytes]);
            assert!(refused(&forged), "{at}");
        }
        let mut forged = fat_binary();
        put(&mut forged, 8, &[0xff; 8]);
        assert!(refused(&forged));
    }

    #[test]
    fn the_image_of_an_unloaded_library_is_not_read() {
        let image = fat_binary();
        let wrapper = Wrapper {
            magic: WRAPPER_MAGIC,
            version: WRAPPER_PLAIN,
            image: image.as_ptr(),
            rest: std::ptr::null(),
        };
        // SAFETY: wrapper and image are of this function, and stay until `unregister`.
        let library = unsafe { Library::register(std::ptr::from_ref(&wrapper).cast()) };
        library.unregister();
        drop(image);
        assert_eq!(library.load_all(), Err(Code::INVALID_HANDLE));
    }
}
