//! A call of a library's function: arguments in registers and on the stack, as C passes them.

use super::math_libraries::{lock, Handles};
use crate::call::CallValue;
use crate::codes::Code;
use crate::limits::BODY_BYTES_MAX;
use crate::math::{Failure, Gives, FLOAT_REGISTERS, INT_REGISTERS};
use std::ffi::{c_char, CStr};
use std::sync::{Arc, Mutex};

/// Words on the stack; a function that takes fewer does not look at the rest.
const STACK_WORDS: usize = 32;
/// Zeros behind each buffer: the end of a text, and room for a library that reads a value of a larger type than was sent.
const PADDING_WORDS: usize = 1;

/// An argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// An integer or an address.
    Int(u64),
    /// The bits of a float or a double.
    Float(u64),
}

/// Memory for those arguments of one call that are addresses of the host.
#[derive(Default)]
pub(super) struct Buffers {
    /// As 16-byte words, so that every type is aligned.
    memory: Vec<Vec<u128>>,
    bytes: usize,
    /// Buffers whose bytes go back to the client: position in `memory`, and how many bytes.
    back: Vec<(usize, usize)>,
    /// Buffers to which the library writes new handles: the client's number, the type, position in `memory`.
    handles: Vec<(u64, u8, usize)>,
}

impl Buffers {
    /// Copies bytes to a buffer of at least `room` bytes, of which `back` go back to the client; gives its address. `None` if the call
    /// has too many.
    pub(super) fn add(&mut self, bytes: &[u8], room: usize, back: usize) -> Option<u64> {
        let room = room.max(bytes.len());
        self.bytes = self.bytes.checked_add(room)?;
        if self.bytes > BODY_BYTES_MAX {
            return None;
        }
        let mut memory = vec![0u128; room.div_ceil(16) + PADDING_WORDS];
        for (word, bytes) in memory.iter_mut().zip(bytes.chunks(16)) {
            let mut whole = [0; 16];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u128::from_ne_bytes(whole);
        }
        let address = memory.as_ptr() as u64;
        if back > 0 {
            self.back.push((self.memory.len(), back));
        }
        self.memory.push(memory);
        Some(address)
    }

    /// Makes a buffer for a new handle; gives its address.
    pub(super) fn add_handle(&mut self, number: u64, kind: u8) -> u64 {
        let memory = vec![0; 1];
        let address = memory.as_ptr() as u64;
        self.handles.push((number, kind, self.memory.len()));
        self.memory.push(memory);
        address
    }

    fn bytes(&self, buffer: usize) -> impl Iterator<Item = u8> + '_ {
        self.memory[buffer]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
    }
}

/// A call that can be made.
pub(crate) struct Prepared {
    pub(super) number: u16,
    pub(super) gives: Gives,
    pub(super) address: usize,
    pub(super) slots: Vec<Slot>,
    pub(super) buffers: Buffers,
    pub(super) handles: Arc<Mutex<Handles>>,
}

impl Prepared {
    /// Makes the call, and notes the handles that it made.
    fn make(&self) -> u64 {
        // SAFETY: `Math::address` found the address under the function's name in its library, which stays loaded. `math` has made the
        // arguments as the table says, which is made from the function's prototype; the buffers to which they point live in `self`. What
        // the library does with the values of a client, it does in a process that has nothing of other clients.
        let result = unsafe { invoke(self.address, &self.slots) };
        if result as i32 == 0 {
            let mut handles = lock(&self.handles);
            for (number, kind, buffer) in &self.buffers.handles {
                let bytes: Vec<u8> = self.buffers.bytes(*buffer).take(8).collect();
                let raw = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
                handles.add(*number, *kind, raw);
            }
        }
        result
    }

    /// Makes the call for a client that waits; gives its result.
    pub(super) fn call(&self) -> CallValue {
        let result = self.make();
        let bytes = match self.gives {
            // SAFETY: a function that gives a text gives null, which the guard excludes, or a C string that its library keeps while it is
            // loaded, and it stays loaded.
            Gives::Text if result != 0 => unsafe { CStr::from_ptr(result as *const c_char) }
                .to_bytes()
                .to_vec(),
            _ => {
                let back = self.buffers.back.iter();
                back.flat_map(|(buffer, bytes)| self.buffers.bytes(*buffer).take(*bytes))
                    .collect()
            }
        };
        CallValue::Math { result, bytes }
    }

    /// Makes the call for a client that does not wait; a later answer has its error.
    pub(super) fn call_quietly(&self) -> Result<(), Code> {
        match (self.gives, self.make() as i32) {
            (Gives::Status | Gives::Waits { .. }, status) if status != 0 => Err(Code(
                Failure {
                    function: self.number,
                    status,
                }
                .code(),
            )),
            _ => Ok(()),
        }
    }
}

/// Calls a function by a type that has all registers for arguments and many words of the stack. A function ignores those for which it has
/// no parameters.
macro_rules! call {
    ($address:expr, $ints:ident [$($int:literal)*], $floats:ident [$($float:literal)*], $stack:ident [$($word:literal)*]) => {{
        type Function = unsafe extern "C" fn($(call!(@int $int),)* $(call!(@float $float),)* $(call!(@int $word),)*) -> u64;
        let function = std::mem::transmute::<usize, Function>($address);
        function($($ints[$int],)* $(f64::from_bits($floats[$float]),)* $($stack[$word],)*)
    }};
    (@int $at:literal) => { u64 };
    (@float $at:literal) => { f64 };
}

/// Calls a function.
///
/// # Safety
/// The address is that of a function that takes these arguments, all integers, addresses, floats or doubles.
unsafe fn invoke(address: usize, slots: &[Slot]) -> u64 {
    let (mut ints, mut floats, mut stack) =
        ([0; INT_REGISTERS], [0; FLOAT_REGISTERS], [0; STACK_WORDS]);
    let (mut int, mut float, mut word) = (0, 0, 0);
    for slot in slots {
        match *slot {
            Slot::Int(value) if int < INT_REGISTERS => {
                ints[int] = value;
                int += 1;
            }
            Slot::Float(bits) if float < FLOAT_REGISTERS => {
                floats[float] = bits;
                float += 1;
            }
            Slot::Int(value) | Slot::Float(value) => {
                stack[word] = value;
                word += 1;
            }
        }
    }
    // SAFETY: our caller promises a function that takes these arguments. The C convention passes the first integers and the first floats
    // in registers of their own and the rest on the stack, in order, as the loop above has laid them out. A function does not look at
    // registers and words that it has no arguments for.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        return call!(address, ints [0 1 2 3 4 5], floats [0 1 2 3 4 5 6 7],
            stack [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]);
        #[cfg(target_arch = "aarch64")]
        return call!(address, ints [0 1 2 3 4 5 6 7], floats [0 1 2 3 4 5 6 7],
            stack [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::table;

    extern "C" fn mixed(
        a: i32,
        b: f32,
        c: u64,
        d: f64,
        e: i64,
        f: u64,
        g: u64,
        h: u64,
        i: i32,
        j: f32,
        k: u64,
    ) -> f64 {
        f64::from(a)
            + f64::from(b)
            + c as f64
            + d
            + e as f64
            + f as f64
            + g as f64
            + h as f64
            + f64::from(i)
            + f64::from(j)
            + k as f64
    }

    extern "C" fn sum(
        a: i32,
        b: f32,
        c: u64,
        d: f64,
        e: i64,
        f: u64,
        g: u64,
        h: u64,
        i: i32,
        j: f32,
        k: u64,
    ) -> u64 {
        mixed(a, b, c, d, e, f, g, h, i, j, k).to_bits()
    }

    #[test]
    fn arguments_reach_their_registers_and_the_stack() {
        let float = |value: f32| Slot::Float(u64::from(value.to_bits()));
        let slots = [
            Slot::Int(-5i64 as u64),
            float(0.25),
            Slot::Int(10),
            Slot::Float(0.5f64.to_bits()),
            Slot::Int(100),
            Slot::Int(1000),
            Slot::Int(10_000),
            Slot::Int(100_000),
            Slot::Int(-7i64 as u64),
            float(2.0),
            Slot::Int(1_000_000),
        ];
        // SAFETY: `sum` takes arguments of these types in this order.
        let result = unsafe { invoke(sum as *const () as usize, &slots) };
        assert_eq!(f64::from_bits(result), 1_111_110.0 - 12.0 + 2.75);
    }

    #[test]
    fn every_function_has_room_on_the_stack() {
        for function in &table().functions {
            assert!(
                function.kinds.len() <= INT_REGISTERS + STACK_WORDS,
                "{}",
                function.name
            );
        }
    }

    #[test]
    fn buffers_are_aligned_and_end_with_zeros() {
        let mut buffers = Buffers::default();
        let address = buffers.add(b"abc", 0, 2).unwrap();
        assert_eq!(address % 16, 0);
        // SAFETY: `buffers` keeps the buffer, which ends with zeros.
        assert_eq!(unsafe { CStr::from_ptr(address as *const c_char) }, c"abc");
        assert_eq!(buffers.back, [(0, 2)]);
        assert_eq!(buffers.add(&[], BODY_BYTES_MAX, 0), None);
    }
}
