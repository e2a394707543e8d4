//! Modules and the kernels in them. A kernel is known by its name: the stand-in does in host
//! memory, on the stream's thread, what the kernel of that name in `crates/kernels` does.

use crate::abi::Code;
use crate::call::global;
use crate::context::Context;
use crate::stream::Stream;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Words that are worked on before mappings may change again.
const STEP_WORDS: u64 = 8192;

/// Most threads of a block.
pub(crate) const MAX_THREADS: u32 = 1024;

/// A kernel that can be done here: its name, and what it does with its parameters.
struct Known {
    name: &'static str,
    parameters: usize,
    run: fn(&Launch, &[u64]) -> Result<(), Code>,
}

const KNOWN: [Known; 7] = [
    Known {
        name: "rgaps_fill_pattern",
        parameters: 3,
        run: |launch, p| fill_pattern(launch, p[0], p[1], p[2]),
    },
    Known {
        name: "rgaps_check_pattern",
        parameters: 4,
        run: check_pattern,
    },
    Known {
        name: "rgaps_spin",
        parameters: 1,
        run: |launch, p| {
            spin(launch, p[0]);
            Ok(())
        },
    },
    Known {
        name: "rgaps_spin_fill",
        parameters: 4,
        run: |launch, p| {
            spin(launch, p[3]);
            fill_pattern(launch, p[0], p[1], p[2])
        },
    },
    Known {
        name: "rgaps_copy",
        parameters: 3,
        run: |launch, p| {
            launch.each(p[2], &[(p[0], true), (p[1], false)], |_, at| {
                // SAFETY: `each` checked both words.
                unsafe { write(at[0], read(at[1])) }
            })
        },
    },
    Known {
        name: "rgaps_scribble",
        parameters: 3,
        run: |launch, p| {
            launch.each(p[1], &[(p[0], true)], |_, at| {
                // SAFETY: `each` checked the word.
                unsafe { write(at[0], p[2]) }
            })
        },
    },
    Known {
        name: "rgaps_stamp",
        parameters: 1,
        run: |launch, p| {
            launch.each(1, &[(p[0], true)], |_, at| {
                // SAFETY: `each` checked the word.
                unsafe { write(at[0], clock_ns()) }
            })
        },
    },
];

/// A module: the kernels that its text declares, with their numbers of parameters.
pub(crate) struct Module {
    context: Weak<Context>,
    entries: Vec<(String, usize)>,
}

/// A kernel of a module.
pub(crate) struct Function {
    context: Weak<Context>,
    known: &'static Known,
}

impl Module {
    /// Reads PTX text.
    pub(crate) fn parse(text: &str, context: Weak<Context>) -> Result<Module, Code> {
        if !text.contains(".version") || !text.contains(".target") {
            return Err(Code::INVALID_PTX);
        }
        let mut entries = Vec::new();
        for part in text.split(".entry").skip(1) {
            let (name, rest) = part.split_once('(').ok_or(Code::INVALID_PTX)?;
            let (list, _) = rest.split_once(')').ok_or(Code::INVALID_PTX)?;
            let wide = list
                .split(',')
                .filter(|parameter| parameter.trim().starts_with(".param .u64"))
                .count();
            if wide != list.split(',').count() {
                return Err(Code::NOT_SUPPORTED);
            }
            entries.push((name.trim().to_owned(), wide));
        }
        Ok(Module { context, entries })
    }

    /// Whether there is none of those in it that are done here.
    pub(crate) fn is_strange(&self) -> bool {
        let is_known = |name: &str| KNOWN.iter().any(|known| known.name == name);
        !self.entries.is_empty() && !self.entries.iter().any(|(name, _)| is_known(name))
    }

    fn function(&self, name: &str) -> Result<Function, Code> {
        let found = self.entries.iter().find(|(entry, _)| entry == name);
        let (_, parameters) = found.ok_or(Code::NOT_FOUND)?;
        let known = KNOWN.iter().find(|known| known.name == name);
        let known = known
            .filter(|known| known.parameters == *parameters)
            .ok_or(Code::NOT_SUPPORTED)?;
        Ok(Function {
            context: self.context.clone(),
            known,
        })
    }
}

impl Function {
    pub(crate) fn parameters(&self) -> usize {
        self.known.parameters
    }

    /// Whether it belongs to a context.
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        std::ptr::eq(self.context.as_ptr(), Arc::as_ptr(context))
    }

    /// What running it does.
    pub(crate) fn run(&self, stream: Weak<Stream>, parameters: &[u64]) {
        let (Some(context), Some(stream)) = (self.context.upgrade(), stream.upgrade()) else {
            return;
        };
        let launch = Launch { context, stream };
        if let Err(code) = (self.known.run)(&launch, parameters) {
            launch.context.lose(code);
        }
    }
}

/// A kernel that runs.
struct Launch {
    context: Arc<Context>,
    stream: Arc<Stream>,
}

impl Launch {
    /// Does something with each of `words` words, of which each of `ranges` gives an address and
    /// whether it is written.
    fn each(
        &self,
        words: u64,
        ranges: &[(u64, bool)],
        mut act: impl FnMut(u64, &[u64]),
    ) -> Result<(), Code> {
        if ranges.iter().any(|(address, _)| address % 8 != 0) {
            return Err(Code::MISALIGNED_ADDRESS);
        }
        let mut at: Vec<u64> = ranges.iter().map(|(address, _)| *address).collect();
        let mut done = 0;
        while done < words && self.context.lost().is_none() {
            let count = (words - done).min(STEP_WORDS);
            // Held for a step, so that nothing is unmapped under us.
            let memory = global().memory();
            let position = self.context.position;
            let permitted = |address: u64, write: bool| {
                memory.is_for_kernels(address)
                    && memory.permits(address, count * 8, position, write)
            };
            if !ranges
                .iter()
                .all(|(address, write)| permitted(address + done * 8, *write))
            {
                return Err(Code::ILLEGAL_ADDRESS);
            }
            for word in done..done + count {
                for (at, (address, _)) in at.iter_mut().zip(ranges) {
                    *at = address + word * 8;
                }
                act(word, &at);
            }
            done += count;
        }
        Ok(())
    }
}

/// # Safety
/// The word is aligned and readable. Others may write it meanwhile, as with a GPU.
unsafe fn read(address: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { (address as *const u64).read_volatile() }
}

/// # Safety
/// The word is aligned and writable. Others may read it meanwhile, as with a GPU.
unsafe fn write(address: u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { (address as *mut u64).write_volatile(value) }
}

/// What stands at a word of a pattern.
fn pattern(seed: u64, word: u64) -> u64 {
    let mixed =
        (seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 31
}

fn fill_pattern(launch: &Launch, address: u64, words: u64, seed: u64) -> Result<(), Code> {
    launch.each(words, &[(address, true)], |word, at| {
        // SAFETY: `each` checked the word.
        unsafe { write(at[0], pattern(seed, word)) }
    })
}

fn check_pattern(launch: &Launch, parameters: &[u64]) -> Result<(), Code> {
    let (address, words, seed, result) =
        (parameters[0], parameters[1], parameters[2], parameters[3]);
    let mut mismatches = 0;
    launch.each(words, &[(address, false)], |word, at| {
        // SAFETY: `each` checked the word.
        mismatches += u64::from(unsafe { read(at[0]) } != pattern(seed, word));
    })?;
    if mismatches == 0 {
        return Ok(());
    }
    launch.each(1, &[(result, true)], |_, at| {
        // SAFETY: `each` checked the word.
        let sum = unsafe { std::sync::atomic::AtomicU64::from_ptr(at[0] as *mut u64) };
        sum.fetch_add(mismatches, std::sync::atomic::Ordering::Relaxed);
    })
}

/// The clock of all GPUs here, which all processes share.
fn clock_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the out pointer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn spin(launch: &Launch, nanoseconds: u64) {
    let end = Instant::now() + Duration::from_nanos(nanoseconds);
    launch
        .stream
        .wait_until("in a kernel that spins", || Instant::now() >= end);
}

/// Modules and functions, by handle.
#[derive(Default)]
pub(crate) struct Modules {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    last: usize,
    modules: HashMap<usize, Module>,
    functions: HashMap<usize, (usize, Arc<Function>)>,
}

impl Modules {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, module: Module) -> usize {
        let mut tables = self.tables();
        let handle = tables.next();
        tables.modules.insert(handle, module);
        handle
    }

    pub(crate) fn remove(&self, module: usize) -> Result<(), Code> {
        let mut tables = self.tables();
        tables.functions.retain(|_, (of, _)| *of != module);
        let removed = tables.modules.remove(&module);
        removed.map(drop).ok_or(Code::INVALID_HANDLE)
    }

    /// A handle of the kernel `name` of a module.
    pub(crate) fn function(&self, module: usize, name: &str) -> Result<usize, Code> {
        let mut tables = self.tables();
        let function = match tables.modules.get(&module) {
            Some(module) => module.function(name)?,
            None => return Err(Code::INVALID_HANDLE),
        };
        let handle = tables.next();
        tables
            .functions
            .insert(handle, (module, Arc::new(function)));
        Ok(handle)
    }

    pub(crate) fn get(&self, function: usize) -> Result<Arc<Function>, Code> {
        let tables = self.tables();
        let found = tables.functions.get(&function);
        found
            .map(|(_, function)| function.clone())
            .ok_or(Code::INVALID_HANDLE)
    }

    /// Forgets what was loaded into a context that is gone.
    pub(crate) fn remove_of(&self, context: &Arc<Context>) {
        let mut tables = self.tables();
        let gone = |of: &Weak<Context>| std::ptr::eq(of.as_ptr(), Arc::as_ptr(context));
        tables.modules.retain(|_, module| !gone(&module.context));
        tables
            .functions
            .retain(|_, (_, function)| !gone(&function.context));
    }

    pub(crate) fn live(&self) -> u64 {
        self.tables().modules.len() as u64
    }
}

impl Tables {
    fn next(&mut self) -> usize {
        self.last += 1;
        0x7e57_1000_0000 + self.last * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        ".version 6.3\n.target sm_70\n.visible .entry rgaps_spin(\n.param .u64 a\n)\n{}
        .visible .entry rgaps_copy(.param .u64 a, .param .u64 b) {} .entry other(.param .u64 a) {}";

    #[test]
    fn kernels_are_found_by_name_and_parameters() {
        let module = Module::parse(TEXT, Weak::new()).unwrap();
        let code = |name| module.function(name).map(|f| f.parameters());
        assert_eq!(code("rgaps_spin"), Ok(1));
        assert_eq!(code("rgaps_copy"), Err(Code::NOT_SUPPORTED));
        assert_eq!(code("other"), Err(Code::NOT_SUPPORTED));
        assert_eq!(code("rgaps_fill_pattern"), Err(Code::NOT_FOUND));
    }

    #[test]
    fn what_is_no_ptx_is_refused() {
        for wrong in ["", "int main() {}", &TEXT.replace("a\n)", "a\n")[..60]] {
            assert!(Module::parse(wrong, Weak::new()).is_err(), "{wrong}");
        }
        let narrow = TEXT.replace(".u64 a\n", ".u32 a\n");
        assert!(Module::parse(&narrow, Weak::new()).is_err());
    }

    #[test]
    fn patterns_differ_by_place_and_seed() {
        let mut seen: Vec<_> = (0..100)
            .flat_map(|seed| (0..100).map(move |word| pattern(seed, word)))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 10_000);
    }
}
