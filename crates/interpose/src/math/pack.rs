//! Packs the arguments of a call: takes them from registers and the stack, and makes the arguments that cross the connection.

use super::handles::{handles, is_short, made, mint, Handle};
use super::{handle_of, statuses};
use crate::{memory, notice, thread};
use rgaps_remoting::math::{
    attribute_bytes, table, Function, ParameterKind, Size, FLOAT_REGISTERS, INT_REGISTERS,
    POINTER_ENTRY_BYTES, SCALAR_BYTES_MAX,
};
use rgaps_remoting::MathArgument;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Memory up to the end of a page can be read if its beginning can.
const PAGE_BYTES: u64 = 4096;
/// Attributes of cuDNN that are addresses, by `cudnnBackendAttributeType_t`, and those that are handles.
const ATTRIBUTE_POINTER: u64 = 6;
const ATTRIBUTE_HANDLES: [u64; 2] = [0, 15];
/// Most bytes that one call carries.
const BYTES_MAX: usize = 8 << 20;

/// The arguments as words, numbers of four bytes with their signs.
///
/// # Safety
/// `registers` has the registers in which C passes integers, then those for floats; `stack` has the other arguments of `function`. Both
/// stay until this returns.
pub(super) unsafe fn words(
    function: &Function,
    registers: *const u64,
    stack: *const u64,
) -> Vec<u64> {
    let (mut int, mut float, mut on_stack) = (0, 0, 0);
    let mut next = |is_float: bool| {
        let (taken, all, first) = match is_float {
            true => (&mut float, FLOAT_REGISTERS, INT_REGISTERS),
            false => (&mut int, INT_REGISTERS, 0),
        };
        let (from, at) = match *taken < all {
            true => (registers, first + *taken),
            false => (stack, on_stack),
        };
        match *taken < all {
            true => *taken += 1,
            false => on_stack += 1,
        }
        // SAFETY: `at` is below the number of registers that `registers` has of this kind, or counts the arguments on the stack. Our caller
        // promises all registers, and as many words at `stack` as `function` has arguments there; they stay until this returns.
        unsafe { from.add(at).read() }
    };
    let kinds = function.kinds.iter();
    kinds
        .map(|kind| match *kind {
            ParameterKind::Float => next(true) & u64::from(u32::MAX),
            ParameterKind::Double => next(true),
            ParameterKind::Int { .. } => next(false) as i32 as u64,
            kind if handle_of(kind).is_some_and(is_short) => next(false) & u64::from(u32::MAX),
            _ => next(false),
        })
        .collect()
}

pub(super) enum Packed {
    Word(u64),
    /// Memory of the program: address and bytes.
    Memory(u64, usize),
    Bytes(Vec<u8>),
    /// Room for so many bytes that come back.
    Room(u32),
}

impl Packed {
    pub(super) fn argument(&self) -> MathArgument<'_> {
        match self {
            Packed::Word(word) => MathArgument::Word(*word),
            Packed::Memory(start, bytes) => {
                // SAFETY: `pack` made this of a parameter that the table describes as the address of `bytes` bytes, or of fewer that end
                // with a page. By the function's contract the program passes them and keeps them as they are until the call returns. We
                // borrow them from a value inside that call.
                MathArgument::Bytes(unsafe {
                    std::slice::from_raw_parts(*start as *const u8, *bytes)
                })
            }
            Packed::Bytes(bytes) => MathArgument::Bytes(bytes),
            Packed::Room(bytes) => MathArgument::Room(*bytes),
        }
    }
}

/// Memory of the program for bytes that come back.
pub(super) struct Output {
    to: u64,
    bytes: usize,
    /// Bytes of an element, if the library may give fewer elements than there is room for. The output before this one is their number.
    element_bytes: Option<usize>,
}

/// A call that is being packed, and what is to be done when it has been made.
pub(super) struct Packing<'a> {
    function: &'static Function,
    words: &'a [u64],
    pub(super) packed: Vec<Packed>,
    /// Where bytes that come back are written, in their order.
    pub(super) outputs: Vec<Output>,
    /// Handles that the call makes: where the program wants the number, the number, the handle.
    made: Vec<(u64, u64, Handle)>,
    /// This process has answered the call; nothing is sent.
    pub(super) is_answered: bool,
}

impl<'a> Packing<'a> {
    /// Packs a call, or gives the library's status if an argument is wrong.
    pub(super) fn new(function: &'static Function, words: &'a [u64]) -> Result<Packing<'a>, i32> {
        let mut packing = Packing {
            function,
            words,
            packed: Vec::with_capacity(words.len()),
            outputs: Vec::new(),
            made: Vec::new(),
            is_answered: false,
        };
        let mut known = handles();
        for (at, kind) in function.kinds.iter().enumerate() {
            let packed = packing.pack(&known, at, *kind)?;
            packing.packed.push(packed);
        }
        for (kind, word) in function.kinds.iter().zip(words) {
            if let ParameterKind::Old(_) = kind {
                known.remove(word);
            }
        }
        Ok(packing)
    }

    fn size(&self, size: Size) -> Result<usize, i32> {
        let invalid = statuses(self.function).invalid;
        let bytes = size.bytes(|at| self.words[at]).ok_or(invalid)?;
        if bytes > BYTES_MAX {
            notice::once(&format!(
                "{} with {bytes} bytes of the host is not forwarded; it fails",
                self.function.name
            ));
            return Err(statuses(self.function).not_supported);
        }
        Ok(bytes)
    }

    /// Whether a slot of the first handle has this value.
    pub(super) fn is_kept(&self, slot: u8, value: u64) -> bool {
        let known = handles();
        let handle = self.words.first().and_then(|number| known.get(number));
        handle.is_some_and(|handle| handle.slots[usize::from(slot)] == value)
    }

    /// Whether the scalars of a call are the host's: slot 0 of handle `of`, its pointer mode, is 0 or `also`.
    fn is_of_host(&self, known: &HashMap<u64, Handle>, of: usize, also: u64) -> bool {
        let handle = self.words.get(of).and_then(|number| known.get(number));
        handle.is_none_or(|handle| handle.slots[0] == 0 || handle.slots[0] == also)
    }

    fn pack(
        &mut self,
        known: &HashMap<u64, Handle>,
        at: usize,
        kind: ParameterKind,
    ) -> Result<Packed, i32> {
        let word = self.words[at];
        Ok(match kind {
            ParameterKind::Int { .. }
            | ParameterKind::Word { .. }
            | ParameterKind::Float
            | ParameterKind::Double
            | ParameterKind::Stream { .. } => Packed::Word(word),
            ParameterKind::Handle(kind) | ParameterKind::Old(kind) => {
                self.handle(known, kind, word)?
            }
            ParameterKind::New { handle, mode } => {
                if word == 0 {
                    return Err(statuses(self.function).invalid);
                }
                let number = mint(handle);
                self.made.push((word, number, made(handle, mode)));
                Packed::Word(number)
            }
            ParameterKind::Kept { slot, bytes } => {
                let handle = known.get(&self.words[0]).copied();
                let value = handle.map_or(0, |handle| handle.slots[usize::from(slot)]);
                bring(word, &value.to_le_bytes()[..bytes]);
                self.is_answered = true;
                Packed::Word(0)
            }
            ParameterKind::Device => self.device(word)?,
            _ if word == 0 => self.null(kind)?,
            ParameterKind::Scalar {
                bytes,
                is_bounded,
                of,
                also,
            } => match self.is_of_host(known, of, also) {
                true if is_bounded => Packed::Memory(word, bounded(word, bytes)),
                true => Packed::Memory(word, bytes),
                false => Packed::Word(word),
            },
            ParameterKind::Result(size) => match self.is_of_host(known, 0, 0) {
                true => self.room(word, size)?,
                false => Packed::Word(word),
            },
            ParameterKind::Both(bytes) => match self.is_of_host(known, 0, 0) {
                true => self.both(word, bytes),
                false => Packed::Word(word),
            },
            ParameterKind::InOut(bytes) => self.both(word, bytes),
            ParameterKind::In(size) => Packed::Memory(word, self.size(size)?),
            ParameterKind::Out(size) => self.room(word, size)?,
            ParameterKind::Value(bytes) => Packed::Memory(word, bounded(word, bytes)),
            ParameterKind::Text => {
                // SAFETY: by the function's contract the program passes null, which an arm above has handled, or a C string, which it
                // keeps as it is until its call returns.
                let bytes = unsafe { libc::strlen(word as *const libc::c_char) };
                Packed::Memory(word, bytes)
            }
            ParameterKind::Attribute => self.attribute(at, word)?,
        })
    }

    fn is_main(&self, kind: u8) -> bool {
        table().libraries[usize::from(self.function.library)].handle == kind
    }

    fn handle(&self, known: &HashMap<u64, Handle>, kind: u8, number: u64) -> Result<Packed, i32> {
        let statuses = statuses(self.function);
        let is_main = self.is_main(kind);
        match known.get(&number) {
            Some(handle) if handle.kind == kind => Ok(Packed::Word(number)),
            // A descriptor may be left out; the library knows where.
            None if number == 0 && !is_main => Ok(Packed::Word(0)),
            _ if is_main => Err(statuses.no_handle),
            _ => Err(statuses.invalid),
        }
    }

    fn device(&self, address: u64) -> Result<Packed, i32> {
        if address != 0 && memory::host_at(address).is_some() {
            notice::once(&format!(
                "{} was given memory of the host, which the GPU of another host cannot read; it fails",
                self.function.name
            ));
            return Err(statuses(self.function).not_supported);
        }
        Ok(Packed::Word(address))
    }

    /// Packs a null address. Refuses it where the function needs a value.
    fn null(&self, kind: ParameterKind) -> Result<Packed, i32> {
        match kind {
            ParameterKind::Scalar {
                is_bounded: false, ..
            }
            | ParameterKind::Both(_)
            | ParameterKind::Result(_) => Err(statuses(self.function).invalid),
            _ => Ok(Packed::Word(0)),
        }
    }

    fn room(&mut self, output: u64, size: Size) -> Result<Packed, i32> {
        let bytes = self.size(size)?;
        self.expect(output, bytes);
        Ok(Packed::Room(bytes as u32))
    }

    fn both(&mut self, output: u64, bytes: usize) -> Packed {
        self.expect(output, bytes);
        Packed::Memory(output, bytes)
    }

    fn expect(&mut self, to: u64, bytes: usize) {
        self.outputs.push(Output {
            to,
            bytes,
            element_bytes: None,
        });
    }

    fn attribute(&mut self, at: usize, address: u64) -> Result<Packed, i32> {
        let (kind, count) = self.function.attribute_words(at);
        let kind = self.words[kind];
        let size = Size::Each(attribute_bytes(kind), count);
        let is_given = count + 1 < at;
        match kind {
            kind if ATTRIBUTE_HANDLES.contains(&kind) => {
                Ok(Packed::Memory(address, self.size(size)?))
            }
            _ if is_given => {
                let room = self.room(address, size)?;
                let is_counted = self.words[at - 1] != 0;
                if let Some(output) = self.outputs.last_mut().filter(|_| is_counted) {
                    output.element_bytes = Some(attribute_bytes(kind));
                }
                Ok(room)
            }
            ATTRIBUTE_POINTER => {
                let bytes = self.size(size)?;
                Ok(Packed::Bytes(pointers(address, bytes / 8)))
            }
            _ => Ok(Packed::Memory(address, self.size(size)?)),
        }
    }

    /// Identifies the call: the function and the contents of its arguments. Handles count with their own contents; main handles count as
    /// 0, and new handles not at all.
    fn content(&self, known: &HashMap<u64, Handle>) -> Vec<u8> {
        let mut content = self.function.name.as_bytes().to_vec();
        for (kind, packed) in self.function.kinds.iter().zip(&self.packed) {
            let word = match (kind, packed) {
                (ParameterKind::New { .. }, _) => continue,
                (ParameterKind::Handle(_), Packed::Word(number)) => {
                    known.get(number).map_or(0, |handle| handle.content)
                }
                (_, Packed::Word(word)) => *word,
                (_, Packed::Room(bytes)) => u64::from(*bytes),
                (_, Packed::Memory(..) | Packed::Bytes(_)) => {
                    if let MathArgument::Bytes(bytes) = packed.argument() {
                        content.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                        content.extend_from_slice(bytes);
                    }
                    continue;
                }
            };
            content.extend_from_slice(&word.to_le_bytes());
        }
        content
    }

    /// The key of a pure function's results in the cache (`known`).
    pub(super) fn key(&self) -> Vec<u8> {
        let mut key = self.content(&handles());
        key.extend_from_slice(&thread::device().to_le_bytes());
        key
    }

    /// Writes the bytes that came back to the program's memory, but of elements only as many as the library found. Programs rely on that:
    /// cuDNN's own front end asks for more elements than it has room for.
    pub(super) fn bring(&self, mut bytes: &[u8]) {
        let mut before = &[][..];
        for output in &self.outputs {
            let (own, rest) = bytes.split_at(output.bytes.min(bytes.len()));
            let found = output.element_bytes.map_or(own.len(), |bytes| {
                count_in(before).saturating_mul(bytes).min(own.len())
            });
            bring(output.to, &own[..found]);
            (before, bytes) = (own, rest);
        }
    }

    /// Call when the call was made or sent: gives the program its new handles, and keeps in the first handle the arguments that the table
    /// names.
    pub(super) fn finish(self) {
        let mut known = handles();
        for (output, number, handle) in &self.made {
            let width = if is_short(handle.kind) { 4 } else { 8 };
            bring(*output, &number.to_le_bytes()[..width]);
            known.insert(*number, *handle);
        }
        let first = self.made.first().map(|(_, number, _)| number);
        let Some(first) = first.or(self.words.first()) else {
            return;
        };
        let content = match known.get(first) {
            Some(handle) if !self.is_main(handle.kind) => {
                let mut hasher = DefaultHasher::new();
                self.content(&known).hash(&mut hasher);
                hasher.finish()
            }
            _ => 0,
        };
        let Some(handle) = known.get_mut(first) else {
            return;
        };
        handle.content = content;
        for (kind, word) in self.function.kinds.iter().zip(self.words) {
            if let ParameterKind::Int { keep: Some(slot) }
            | ParameterKind::Word { keep: Some(slot) }
            | ParameterKind::Stream { keep: Some(slot) } = kind
            {
                handle.slots[usize::from(*slot)] = *word;
            }
        }
        for attribute in &self.function.attributes {
            if self.words[attribute.parameter] == attribute.value {
                if let Packed::Memory(start, 4..) = self.packed[attribute.bytes] {
                    // SAFETY: `pack` made this of a parameter that the table describes as the address of at least 4 bytes, as the pattern
                    // says. By the function's contract the program keeps them as they are until its call returns, and we are inside that
                    // call.
                    let value = unsafe { (start as *const u32).read_unaligned() };
                    handle.slots[usize::from(attribute.slot)] = value.into();
                }
            }
        }
    }
}

/// `bytes`, or as many as there are to the end of the page of `start`.
fn bounded(start: u64, bytes: usize) -> usize {
    bytes.min((PAGE_BYTES - start % PAGE_BYTES) as usize)
}

/// The count that a library has written.
fn count_in(bytes: &[u8]) -> usize {
    let count = bytes
        .first_chunk()
        .map_or(0, |count| i64::from_le_bytes(*count));
    usize::try_from(count).unwrap_or(0)
}

fn bring(output: u64, bytes: &[u8]) {
    if output != 0 {
        // SAFETY: `output` is a parameter that the table describes as room for at least `bytes.len()` bytes. By the function's contract
        // the program passes such memory, and leaves it to the function until the call returns.
        unsafe { (output as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Encodes addresses for the server: an address of the host together with the bytes there.
fn pointers(start: u64, count: usize) -> Vec<u8> {
    let mut entries = Vec::with_capacity(count * POINTER_ENTRY_BYTES);
    for at in 0..count {
        // SAFETY: `start` is the parameter of `cudnnBackendSetAttribute` that by its contract has `count` addresses, which the program
        // keeps as they are until its call returns.
        let address = unsafe { (start as *const u64).add(at).read_unaligned() };
        let value = match memory::device_at(address) {
            None if address != 0 => value_at(address),
            _ => None,
        };
        entries.extend_from_slice(&address.to_le_bytes());
        entries.push(value.is_some().into());
        entries.extend_from_slice(&value.unwrap_or_default());
    }
    entries
}

/// The bytes at an address of the host. `None` if they cannot be read, as at an address on a device that this process does not know.
fn value_at(address: u64) -> Option<[u8; SCALAR_BYTES_MAX]> {
    let mut value = [0; SCALAR_BYTES_MAX];
    let bytes = bounded(address, SCALAR_BYTES_MAX);
    let to = libc::iovec {
        iov_base: value.as_mut_ptr().cast(),
        iov_len: bytes,
    };
    let from = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: bytes,
    };
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, which has no fewer and lives until the call returns. It checks
    // `address` itself, and fails where nothing can be read.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    (read == bytes as isize).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_from_registers_and_the_stack() {
        let named = |name: &str| {
            table()
                .functions
                .iter()
                .find(|one| one.name == name)
                .unwrap()
        };
        let registers: Vec<u64> = (100..100 + INT_REGISTERS as u64 + 8).collect();
        let stack: Vec<u64> = (200..240).collect();
        let words = |name| {
            // SAFETY: both arrays have more words than any function takes.
            unsafe { words(named(name), registers.as_ptr(), stack.as_ptr()) }
        };
        let gemm = words("cublasSgemm_v2");
        assert_eq!((gemm[0], gemm[5]), (100, 105));
        assert_eq!(gemm[13], 200 + 13 - INT_REGISTERS as u64);
        // handle, address, count, two floats.
        let normal = words("curandGenerateNormal");
        assert_eq!(
            normal[3..],
            [100 + INT_REGISTERS as u64, 101 + INT_REGISTERS as u64]
        );
    }

    #[test]
    fn a_value_is_read_up_to_the_end_of_its_page() {
        assert_eq!(bounded(8192 - 4, 16), 4);
        assert_eq!(bounded(8192, 16), 16);
        assert!(value_at(16).is_none());
        let here = 7u128;
        assert_eq!(
            value_at(std::ptr::from_ref(&here) as u64),
            Some(here.to_ne_bytes())
        );
    }
}
