//! Runs kernels.

use super::alu::{compare, compute, convert, signed, unsigned};
use super::atomic::{changed, exchange};
use super::instruction::{Instruction, Operand, Operation, Space, Special, Type};
use super::parse::Kernel;
use super::warp::{shuffled, voted};
use crate::abi::Code;
use crate::call::global;
use crate::context::Context;
use crate::memory::Memory;
use std::sync::{Arc, RwLockReadGuard};
use std::time::Instant;

const WARP: usize = 32;
/// Instructions until mappings may change again.
const STEP: usize = 4096;
/// Where shared and local memory begin among generic addresses; no host address is so high.
const SHARED: u64 = 0x0100_0000_0000_0000;
const LOCAL: u64 = 0x0200_0000_0000_0000;

/// How many blocks and threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    AtWarp,
    Ended,
}

struct Thread {
    registers: Vec<u64>,
    local: Vec<u8>,
    at: [u32; 3],
    next: usize,
    state: State,
}

/// What all threads of a block share.
struct Block<'a> {
    kernel: &'a Kernel,
    code: &'a [Instruction],
    parameters: &'a [u8],
    variables: &'a [u64],
    geometry: Geometry,
    at: [u32; 3],
    shared: Vec<u8>,
    context: &'a Arc<Context>,
    begun: Instant,
}

/// Runs a launch to its end, or to the first fault.
pub(crate) fn launch(
    context: &Arc<Context>,
    kernel: &Kernel,
    parameters: &[u8],
    variables: &[u64],
    geometry: Geometry,
) -> Result<(), Code> {
    let code = kernel.code.as_ref().map_err(|_| Code::NOT_SUPPORTED)?;
    let [gx, gy, gz] = geometry.grid;
    let begun = Instant::now();
    for number in 0..u64::from(gx) * u64::from(gy) * u64::from(gz) {
        let (x, rest) = (number % u64::from(gx), number / u64::from(gx));
        let at = [
            x as u32,
            (rest % u64::from(gy)) as u32,
            (rest / u64::from(gy)) as u32,
        ];
        let mut block = Block {
            kernel,
            code,
            parameters,
            variables,
            geometry,
            at,
            shared: vec![0; kernel.shared_bytes + geometry.shared_bytes],
            context,
            begun,
        };
        block.run()?;
        if context.lost().is_some() {
            break;
        }
    }
    Ok(())
}

impl Block<'_> {
    fn run(&mut self) -> Result<(), Code> {
        let [bx, by, bz] = self.geometry.block;
        let mut threads = Vec::new();
        for z in 0..bz {
            for y in 0..by {
                for x in 0..bx {
                    threads.push(Thread {
                        registers: vec![0; self.kernel.registers],
                        local: vec![0; self.kernel.local_bytes],
                        at: [x, y, z],
                        next: 0,
                        state: State::Ready,
                    });
                }
            }
        }
        loop {
            for (number, thread) in threads.iter_mut().enumerate() {
                if thread.state == State::Ready {
                    self.run_thread(thread, number)?;
                }
            }
            let mut moved = false;
            for (number, warp) in threads.chunks_mut(WARP).enumerate() {
                moved |= self.meet(warp, number)?;
            }
            if moved {
                continue;
            }
            if threads.iter().all(|thread| thread.state == State::Ended)
                || self.context.lost().is_some()
            {
                return Ok(());
            }
            // Everyone who is left waits at a barrier, or somebody waits in vain.
            if threads.iter().any(|thread| thread.state == State::AtWarp) {
                return Err(Code::LAUNCH_FAILED);
            }
            for thread in threads
                .iter_mut()
                .filter(|thread| thread.state == State::AtBarrier)
            {
                thread.state = State::Ready;
            }
        }
    }

    /// Runs a thread until it waits or ends.
    fn run_thread(&mut self, thread: &mut Thread, number: usize) -> Result<(), Code> {
        while thread.state == State::Ready && self.context.lost().is_none() {
            // Held for some steps, so that nothing is unmapped under us.
            let memory = global().memory();
            for _ in 0..STEP {
                if thread.state != State::Ready {
                    break;
                }
                self.step(thread, number, &memory)?;
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        thread: &mut Thread,
        number: usize,
        memory: &RwLockReadGuard<'_, Memory>,
    ) -> Result<(), Code> {
        let code = self.code;
        let Some(of) = code.get(thread.next) else {
            thread.state = State::Ended;
            return Ok(());
        };
        thread.next += 1;
        if of
            .guard
            .is_some_and(|(predicate, negated)| (thread.registers[predicate] & 1 != 0) == negated)
        {
            return Ok(());
        }
        let value = |thread: &Thread, at: usize| {
            of.operands
                .get(at)
                .map_or(0, |operand| self.value(thread, number, operand))
        };
        match of.operation {
            Operation::Nothing => {}
            Operation::Branch(target) => thread.next = target,
            Operation::Exit => thread.state = State::Ended,
            Operation::Barrier => thread.state = State::AtBarrier,
            Operation::Shuffle | Operation::Vote => {
                thread.next -= 1;
                thread.state = State::AtWarp;
            }
            Operation::Trap => return Err(Code::LAUNCH_FAILED),
            Operation::Load(space) => self.load(thread, number, of, space, memory)?,
            Operation::Store(space) => self.store(thread, number, of, space, memory)?,
            Operation::Atomic(space) => self.atomic(thread, number, of, space, memory)?,
            Operation::ToSpace(space) => {
                let result = value(thread, 1).wrapping_sub(base(space));
                set(thread, &of.operands[0], result);
            }
            Operation::FromSpace(space) => {
                let result = value(thread, 1).wrapping_add(base(space));
                set(thread, &of.operands[0], result);
            }
            Operation::Move => self.shift_around(thread, number, of),
            Operation::Compare => {
                let holds =
                    compare(of, value(thread, 1), value(thread, 2)).ok_or(Code::NOT_SUPPORTED)?;
                let third = of.operands.get(3).map(|_| value(thread, 3) & 1 != 0);
                let combine = |holds: bool| match third {
                    Some(third) if of.has("and") => holds && third,
                    Some(third) if of.has("or") => holds || third,
                    Some(third) => holds ^ third,
                    None => holds,
                };
                let (first, second) = (combine(holds), combine(!holds));
                match &of.operands[0] {
                    Operand::Several(both) => {
                        set(thread, &both[0], first.into());
                        set(thread, &both[1], second.into());
                    }
                    one => set(thread, one, first.into()),
                }
            }
            Operation::Select => {
                let chosen = if value(thread, 3) & 1 != 0 { 1 } else { 2 };
                let result = value(thread, chosen);
                set(thread, &of.operands[0], result);
            }
            Operation::Convert => {
                let result = convert(of, value(thread, 1));
                set(thread, &of.operands[0], result);
            }
            Operation::Alu => {
                let values = [1, 2, 3, 4].map(|at| value(thread, at));
                let result = compute(of, &values).ok_or(Code::NOT_SUPPORTED)?;
                set(thread, &of.operands[0], result);
            }
        }
        Ok(())
    }

    /// `mov`, which also packs and unpacks.
    fn shift_around(&self, thread: &mut Thread, number: usize, of: &Instruction) {
        let (to, from) = (&of.operands[0], &of.operands[1]);
        match (to, from) {
            (Operand::Several(parts), from) => {
                let value = self.value(thread, number, from);
                let width = of.kind.bytes / parts.len();
                for (at, part) in parts.iter().enumerate() {
                    set(thread, part, unsigned(value >> (at * width * 8), width));
                }
            }
            (to, Operand::Several(parts)) => {
                let width = of.kind.bytes / parts.len();
                let joined = parts.iter().enumerate().fold(0, |joined, (at, part)| {
                    joined | unsigned(self.value(thread, number, part), width) << (at * width * 8)
                });
                set(thread, to, joined);
            }
            (to, from) => {
                let value = self.value(thread, number, from);
                set(thread, to, value);
            }
        }
    }

    fn value(&self, thread: &Thread, number: usize, operand: &Operand) -> u64 {
        match operand {
            Operand::Register(register) => thread.registers[*register],
            Operand::Immediate(value) => *value,
            Operand::Global(variable) => self.variables[*variable],
            Operand::Special(special) => match special {
                Special::Thread(axis) => thread.at[*axis].into(),
                Special::Threads(axis) => self.geometry.block[*axis].into(),
                Special::Block(axis) => self.at[*axis].into(),
                Special::Blocks(axis) => self.geometry.grid[*axis].into(),
                Special::Lane => (number % WARP) as u64,
                Special::WarpSize => WARP as u64,
                Special::Clock => self.begun.elapsed().as_nanos() as u64,
                Special::DynamicSharedBytes => self.geometry.shared_bytes as u64,
            },
            Operand::Memory(address, offset) => self
                .value(thread, number, address)
                .wrapping_add(*offset as u64),
            Operand::Several(_) | Operand::Nothing => 0,
        }
    }

    fn load(
        &mut self,
        thread: &mut Thread,
        number: usize,
        of: &Instruction,
        space: Space,
        memory: &Memory,
    ) -> Result<(), Code> {
        let address = self.value(thread, number, &of.operands[1]);
        let targets = parts(&of.operands[0]);
        for (at, target) in targets.iter().enumerate() {
            let address = address.wrapping_add((at * of.kind.bytes) as u64);
            let raw = self.read(thread, space, address, of.kind.bytes, memory)?;
            set(thread, target, extended(raw, of.kind));
        }
        Ok(())
    }

    fn store(
        &mut self,
        thread: &mut Thread,
        number: usize,
        of: &Instruction,
        space: Space,
        memory: &Memory,
    ) -> Result<(), Code> {
        let address = self.value(thread, number, &of.operands[0]);
        for (at, source) in parts(&of.operands[1]).iter().enumerate() {
            let value = self.value(thread, number, source);
            let address = address.wrapping_add((at * of.kind.bytes) as u64);
            self.write(thread, space, address, of.kind.bytes, value, memory)?;
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        thread: &mut Thread,
        number: usize,
        of: &Instruction,
        space: Space,
        memory: &Memory,
    ) -> Result<(), Code> {
        let has_result = of.name[0] == "atom";
        let (result, rest) = match has_result {
            true => (Some(&of.operands[0]), &of.operands[1..]),
            false => (None, &of.operands[..]),
        };
        let address = self.value(thread, number, &rest[0]);
        let values = [1, 2].map(|at| rest.get(at).map_or(0, |o| self.value(thread, number, o)));
        let bytes = of.kind.bytes;
        let change = |old: u64| changed(of, old, values);
        let old = match resolve(space, address) {
            (Space::Global, address) => {
                check(memory, self.context, address, bytes, true)?;
                // SAFETY: memory of the GPU, aligned, as was just checked; others use it by atomic operations or not at all.
                unsafe { exchange(address, bytes, change) }
            }
            _ => {
                let old = self.read(thread, space, address, bytes, memory)?;
                self.write(thread, space, address, bytes, change(old), memory)?;
                old
            }
        };
        if let Some(result) = result {
            set(thread, result, extended(old, of.kind));
        }
        Ok(())
    }

    fn read(
        &self,
        thread: &Thread,
        space: Space,
        address: u64,
        bytes: usize,
        memory: &Memory,
    ) -> Result<u64, Code> {
        let copied = |from: &[u8], at: u64| {
            let at = at as usize;
            let slice = from
                .get(at..at.saturating_add(bytes))
                .ok_or(Code::ILLEGAL_ADDRESS)?;
            let mut eight = [0; 8];
            eight[..bytes].copy_from_slice(slice);
            Ok(u64::from_le_bytes(eight))
        };
        match resolve(space, address) {
            (Space::Parameter, at) => copied(self.parameters, at),
            (Space::Shared, at) => copied(&self.shared, at),
            (Space::Local, at) => copied(&thread.local, at),
            (_, address) => {
                check(memory, self.context, address, bytes, false)?;
                let mut eight = [0u8; 8];
                // SAFETY: readable memory of the GPU, as was just checked; it stays mapped while `memory` is held.
                unsafe {
                    std::ptr::copy_nonoverlapping(address as *const u8, eight.as_mut_ptr(), bytes)
                };
                Ok(u64::from_le_bytes(eight))
            }
        }
    }

    fn write(
        &mut self,
        thread: &mut Thread,
        space: Space,
        address: u64,
        bytes: usize,
        value: u64,
        memory: &Memory,
    ) -> Result<(), Code> {
        let value = value.to_le_bytes();
        let target = match resolve(space, address) {
            (Space::Shared, at) => (&mut self.shared, at),
            (Space::Local, at) => (&mut thread.local, at),
            (Space::Parameter, _) => return Err(Code::ILLEGAL_ADDRESS),
            (_, address) => {
                check(memory, self.context, address, bytes, true)?;
                // SAFETY: writable memory of the GPU, as was just checked; it stays mapped while `memory` is held.
                unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), address as *mut u8, bytes) };
                return Ok(());
            }
        };
        let at = target.1 as usize;
        let slice = target
            .0
            .get_mut(at..at.saturating_add(bytes))
            .ok_or(Code::ILLEGAL_ADDRESS)?;
        slice.copy_from_slice(&value[..bytes]);
        Ok(())
    }

    /// Does what the threads of a warp do together, once all that have not ended have come.
    fn meet(&self, warp: &mut [Thread], number: usize) -> Result<bool, Code> {
        let waits: Vec<usize> = (0..warp.len())
            .filter(|at| warp[*at].state == State::AtWarp)
            .collect();
        let Some(first) = waits.first() else {
            return Ok(false);
        };
        let next = warp[*first].next;
        let live = warp
            .iter()
            .filter(|thread| thread.state != State::Ended)
            .count();
        if waits.len() < live || waits.iter().any(|at| warp[*at].next != next) {
            return Ok(false);
        }
        let of = &self.code[next];
        let lane = |at: usize| number * WARP + at;
        let values: Vec<u64> = (0..warp.len())
            .map(|at| self.value(&warp[at], lane(at), &of.operands[1]))
            .collect();
        for at in &waits {
            let thread = &warp[*at];
            let operand = |position: usize| {
                of.operands
                    .get(position)
                    .map_or(0, |operand| self.value(thread, lane(*at), operand))
            };
            let (result, holds) = match of.operation {
                Operation::Shuffle => shuffled(of, *at, &values, operand(2), operand(3)),
                _ => (voted(of, &values, &waits)?, true),
            };
            let thread = &mut warp[*at];
            match &of.operands[0] {
                Operand::Several(both) => {
                    set(thread, &both[0], result);
                    set(thread, &both[1], holds.into());
                }
                one => set(thread, one, result),
            }
            thread.next += 1;
            thread.state = State::Ready;
        }
        Ok(true)
    }
}

fn base(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        _ => 0,
    }
}

/// Which memory an address is in, and where there.
fn resolve(space: Space, address: u64) -> (Space, u64) {
    match space {
        Space::Generic if address >= LOCAL => (Space::Local, address - LOCAL),
        Space::Generic if address >= SHARED => (Space::Shared, address - SHARED),
        Space::Generic => (Space::Global, address),
        space => (space, address),
    }
}

fn check(
    memory: &Memory,
    context: &Context,
    address: u64,
    bytes: usize,
    write: bool,
) -> Result<(), Code> {
    if address % bytes as u64 != 0 {
        return Err(Code::MISALIGNED_ADDRESS);
    }
    let permitted = memory.is_for_kernels(address)
        && memory.permits(address, bytes as u64, context.position, write);
    match permitted {
        true => Ok(()),
        false => Err(Code::ILLEGAL_ADDRESS),
    }
}

fn parts(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Several(parts) => parts,
        one => std::slice::from_ref(one),
    }
}

fn set(thread: &mut Thread, to: &Operand, value: u64) {
    if let Operand::Register(register) = to {
        thread.registers[*register] = value;
    }
}

/// As a register holds what was loaded.
fn extended(raw: u64, kind: Type) -> u64 {
    match kind.is_signed() {
        true => signed(raw, kind.bytes) as u64,
        false => raw,
    }
}
