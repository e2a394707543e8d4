//! Functions of libraries above the runtime, called as the table of `math` says.
//!
//! Checks what a client sends against the table: kinds of arguments, handles and their types, lengths of what the library reads and
//! writes on this host. It does not check addresses on the device, as it does not check those that kernels get.

use super::jobs::Job;
use super::math_call::{Buffers, Prepared, Slot};
use super::math_libraries::{lock, Handles};
use super::session::{done, Outcome, Session};
use crate::call::{Call, MathArgument};
use crate::codes::Code;
use crate::frame::FrameHeader;
use crate::math::{
    table, Failure, Function, ParameterKind, Size, ATTRIBUTE_BYTES_MAX, POINTER_ENTRY_BYTES,
    SCALAR_BYTES_MAX,
};
use std::sync::MutexGuard;

/// Attributes of cuDNN that are not copied as they are, by `cudnnBackendAttributeType_t`.
const ATTRIBUTE_HANDLE: u64 = 0;
const ATTRIBUTE_POINTER: u64 = 6;
const ATTRIBUTE_DESCRIPTOR: u64 = 15;

/// Makes the library's arguments of a client's, one after the other.
struct Unpacking<'a> {
    function: &'static Function,
    arguments: &'a [MathArgument<'a>],
    buffers: Buffers,
    handles: MutexGuard<'a, Handles>,
}

impl Session {
    pub(super) fn math_call(&mut self, of: &FrameHeader, call: &Call<'_>) -> Result<Outcome, Code> {
        match call {
            Call::MathOpen {
                library,
                fingerprint,
            } => done(self.math.open(*library, *fingerprint)),
            Call::Math {
                function,
                arguments,
            } => {
                let prepared = self.prepare(of, *function, arguments)?;
                match of.is_quiet() {
                    true => done(prepared.call_quietly()),
                    false => Ok(Outcome::Later(Job::Math(prepared))),
                }
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Finds the function, and makes the library's arguments of the client's.
    fn prepare(
        &mut self,
        of: &FrameHeader,
        number: u16,
        arguments: &[MathArgument<'_>],
    ) -> Result<Prepared, Code> {
        let table = table();
        let function = table
            .functions
            .get(usize::from(number))
            .ok_or(Code::INVALID_VALUE)?;
        let statuses = table.libraries[usize::from(function.library)].statuses;
        let fail = |status| {
            Code(
                Failure {
                    function: number,
                    status,
                }
                .code(),
            )
        };
        if function.kinds.len() != arguments.len() {
            return Err(Code::INVALID_VALUE);
        }
        let address = self.math.address(number, function);
        let address = address.ok_or(fail(statuses.not_supported))?;
        let handles = self.math.handles.clone();
        let mut unpacking = Unpacking {
            function,
            arguments,
            buffers: Buffers::default(),
            handles: lock(&handles),
        };
        let mut slots = Vec::with_capacity(arguments.len());
        for (at, (kind, argument)) in function.kinds.iter().zip(arguments).enumerate() {
            let slot = match (kind, argument) {
                (ParameterKind::Stream { .. }, MathArgument::Word(stream)) => {
                    Slot::Int(self.stream(of, *stream)? as u64)
                }
                _ => unpacking
                    .slot(at, *kind, *argument)
                    .map_err(|refusal| match refusal {
                        Refusal::Handle => fail(statuses.no_handle),
                        Refusal::Violation => Code::INVALID_VALUE,
                    })?,
            };
            slots.push(slot);
        }
        let buffers = unpacking.buffers;
        Ok(Prepared {
            number,
            gives: function.gives,
            address,
            slots,
            buffers,
            handles: self.math.handles.clone(),
        })
    }
}

/// Why a call is not made.
enum Refusal {
    /// It names an unknown handle; perhaps the call that makes the handle failed.
    Handle,
    /// Its arguments are not those of the table.
    Violation,
}

impl Unpacking<'_> {
    fn word(&self, at: usize) -> u64 {
        match self.arguments.get(at) {
            Some(MathArgument::Word(word)) => *word,
            _ => 0,
        }
    }

    fn size(&self, size: Size) -> Result<usize, Refusal> {
        size.bytes(|at| self.word(at)).ok_or(Refusal::Violation)
    }

    fn slot(
        &mut self,
        at: usize,
        kind: ParameterKind,
        argument: MathArgument<'_>,
    ) -> Result<Slot, Refusal> {
        match argument {
            MathArgument::Word(word) => self.word_slot(kind, word),
            MathArgument::Bytes(bytes) => {
                let room = match kind {
                    ParameterKind::Attribute => return self.attribute(at, bytes).map(Slot::Int),
                    ParameterKind::Scalar { bytes, .. } => bytes,
                    ParameterKind::In(size) => self.size(size)?,
                    ParameterKind::Value(bytes)
                    | ParameterKind::Both(bytes)
                    | ParameterKind::InOut(bytes) => bytes,
                    ParameterKind::Text => 0,
                    _ => return Err(Refusal::Violation),
                };
                let comes_back = matches!(kind, ParameterKind::Both(_) | ParameterKind::InOut(_));
                self.buffer(bytes, room, if comes_back { bytes.len() } else { 0 })
            }
            MathArgument::Room(bytes) => {
                let room = match kind {
                    ParameterKind::Result(size) | ParameterKind::Out(size) => self.size(size)?,
                    ParameterKind::Attribute => self.attribute_room(at)?,
                    _ => return Err(Refusal::Violation),
                };
                self.buffer(&[], room.max(bytes as usize), bytes as usize)
            }
        }
    }

    fn word_slot(&mut self, kind: ParameterKind, word: u64) -> Result<Slot, Refusal> {
        Ok(match kind {
            ParameterKind::Float | ParameterKind::Double => Slot::Float(word),
            ParameterKind::Int { .. } | ParameterKind::Word { .. } | ParameterKind::Device => {
                Slot::Int(word)
            }
            // An address on the device, by the handle's pointer mode; the library reads or writes there.
            ParameterKind::Scalar { .. } | ParameterKind::Result(_) | ParameterKind::Both(_) => {
                Slot::Int(word)
            }
            ParameterKind::Handle(_) if word == 0 => Slot::Int(0),
            ParameterKind::Handle(kind) => {
                Slot::Int(self.handles.find(word, kind).ok_or(Refusal::Handle)?)
            }
            ParameterKind::Old(kind) => {
                Slot::Int(self.handles.take(word, kind).ok_or(Refusal::Handle)?)
            }
            ParameterKind::New { handle, .. } => {
                if !self.handles.is_free(word) {
                    return Err(Refusal::Violation);
                }
                Slot::Int(self.buffers.add_handle(word, handle))
            }
            _ if word == 0 => Slot::Int(0),
            _ => return Err(Refusal::Violation),
        })
    }

    fn buffer(&mut self, bytes: &[u8], room: usize, back: usize) -> Result<Slot, Refusal> {
        let address = self.buffers.add(bytes, room, back);
        address.map(Slot::Int).ok_or(Refusal::Violation)
    }

    /// Bytes that elements of an attribute may have, at most.
    fn attribute_room(&self, at: usize) -> Result<usize, Refusal> {
        let (_, count) = self.function.attribute_words(at);
        self.size(Size::Each(ATTRIBUTE_BYTES_MAX, count))
    }

    /// Elements of an attribute: numbers of handles become the library's handles, addresses of the client's host those of copies.
    fn attribute(&mut self, at: usize, bytes: &[u8]) -> Result<u64, Refusal> {
        let (kind, _) = self.function.attribute_words(at);
        let main = table().libraries[usize::from(self.function.library)].handle;
        let elements = match self.word(kind) {
            ATTRIBUTE_POINTER => self.pointers(bytes)?,
            ATTRIBUTE_HANDLE => self.handles_of(bytes, main)?,
            ATTRIBUTE_DESCRIPTOR => {
                let Some(ParameterKind::Handle(descriptor)) = self.function.kinds.first() else {
                    return Err(Refusal::Violation);
                };
                self.handles_of(bytes, *descriptor)?
            }
            _ => bytes.to_vec(),
        };
        let room = self.attribute_room(at)?;
        self.buffers
            .add(&elements, room, 0)
            .ok_or(Refusal::Violation)
    }

    fn handles_of(&self, bytes: &[u8], kind: u8) -> Result<Vec<u8>, Refusal> {
        let mut elements = Vec::with_capacity(bytes.len());
        for number in bytes.chunks_exact(8) {
            let number = u64::from_le_bytes(number.try_into().map_err(|_| Refusal::Violation)?);
            let raw = match number {
                0 => 0,
                number => self.handles.find(number, kind).ok_or(Refusal::Handle)?,
            };
            elements.extend_from_slice(&raw.to_le_bytes());
        }
        Ok(elements)
    }

    fn pointers(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (descriptor, attribute) = (self.word(0), self.word(1));
        let mut values = vec![0u128; bytes.len() / POINTER_ENTRY_BYTES];
        let mut elements = Vec::with_capacity(values.len() * 8);
        for (entry, kept) in bytes.chunks_exact(POINTER_ENTRY_BYTES).zip(&mut values) {
            let (address, value) = entry.split_at(8);
            if value[0] == 0 {
                elements.extend_from_slice(address);
                continue;
            }
            let mut copy = [0; SCALAR_BYTES_MAX];
            copy.copy_from_slice(&value[1..]);
            *kept = u128::from_ne_bytes(copy);
            elements.extend_from_slice(&(std::ptr::from_ref(kept) as u64).to_le_bytes());
        }
        // The handle keeps the values for as long as the descriptor's attribute points to them.
        let kept = self.handles.keep(descriptor, attribute, values);
        kept.ok_or(Refusal::Handle)?;
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn refused(name: &str, at: usize, kind: ParameterKind, arguments: &[MathArgument<'_>]) -> bool {
        let mut all = table().functions.iter();
        let function = all.find(|function| function.name == name).unwrap();
        assert_eq!(function.kinds[at], kind);
        let handles = Mutex::default();
        let mut unpacking = Unpacking {
            function,
            arguments,
            buffers: Buffers::default(),
            handles: lock(&handles),
        };
        unpacking.slot(at, kind, arguments[at]).is_err()
    }

    #[test]
    fn what_does_not_keep_to_the_table_is_refused() {
        let word = MathArgument::Word;
        let cublas = table().handle("cublas").unwrap();
        let plan = |count, sizes| [word(0), word(count), sizes, word(0), word(1), word(1)];
        let sizes = ParameterKind::In(Size::Each(4, 1));
        let is_plan_refused =
            |count, given| refused("cufftPlanMany", 2, sizes, &plan(count, given));
        assert!(!is_plan_refused(2, MathArgument::Bytes(&[0; 8])));
        // The library would read more than was sent: it reads zeros.
        assert!(!is_plan_refused(2, MathArgument::Bytes(&[0; 4])));
        assert!(is_plan_refused(1 << 40, MathArgument::Bytes(&[0; 8])));
        assert!(is_plan_refused(u64::MAX / 2, MathArgument::Bytes(&[0; 8])));
        assert!(is_plan_refused(2, word(0x1000)));
        assert!(is_plan_refused(2, MathArgument::Room(8)));
        // An unknown handle, room instead of a handle, and a null handle, which the library refuses.
        let handle = ParameterKind::Handle(cublas);
        for (argument, is_refused) in [
            (word(7), true),
            (MathArgument::Room(8), true),
            (word(0), false),
        ] {
            let arguments = [argument, word(0)];
            assert_eq!(
                refused("cublasSetPointerMode_v2", 0, handle, &arguments),
                is_refused
            );
        }
        assert!(refused(
            "cublasGetVersion_v2",
            1,
            ParameterKind::Out(Size::Fixed(4)),
            &[word(0), MathArgument::Room(u32::MAX)]
        ));
    }
}
