//! What all exported functions have in common, and the state behind them.

use crate::abi::Code;
use crate::api::array::Arrays;
use crate::api::pool::Pools;
use crate::config::Config;
use crate::context::{lose_current, Contexts};
use crate::faults::{Failure, Faults};
use crate::graph::Graphs;
use crate::kernel::Modules;
use crate::library::Libraries;
use crate::memory::Memory;
use crate::stream::Streams;
use std::ffi::{c_char, c_int, CStr};
use std::io::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Everything that the library knows.
pub(crate) struct Global {
    config: RwLock<Config>,
    faults: Mutex<Faults>,
    memory: RwLock<Memory>,
    pub(crate) contexts: Contexts,
    pub(crate) streams: Streams,
    pub(crate) graphs: Graphs,
    pub(crate) pools: Mutex<Pools>,
    pub(crate) arrays: Mutex<Arrays>,
    pub(crate) modules: Modules,
    pub(crate) libraries: Libraries,
    initialised: AtomicBool,
    misconfigured: Option<String>,
}

/// The process that first called us. A fork has the memory but none of the threads.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The state; made at the first call.
pub(crate) fn global() -> &'static Global {
    static GLOBAL: OnceLock<Global> = OnceLock::new();
    GLOBAL.get_or_init(|| {
        OWNER.store(std::process::id(), Ordering::Release);
        let (config, misconfigured) = match Config::from_environment() {
            Ok(config) => (config, None),
            Err(reason) => (Config::default(), Some(reason)),
        };
        let mut faults = Faults::default();
        faults.reset(config.seed.unwrap_or(0));
        Global {
            config: RwLock::new(config),
            faults: Mutex::new(faults),
            memory: RwLock::new(Memory::default()),
            contexts: Contexts::default(),
            streams: Streams::default(),
            graphs: Graphs::default(),
            pools: Mutex::default(),
            arrays: Mutex::default(),
            modules: Modules::default(),
            libraries: Libraries::default(),
            initialised: AtomicBool::new(false),
            misconfigured,
        }
    })
}

impl Global {
    pub(crate) fn config(&self) -> RwLockReadGuard<'_, Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while bytes are copied, so that they are not unmapped meanwhile.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn memory_mut(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes settings and counts calls anew.
    pub(crate) fn configure(&self, settings: &str) -> Result<(), String> {
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = config.clone();
        changed.apply(settings)?;
        *config = changed;
        self.faults().reset(config.seed.unwrap_or(0));
        Ok(())
    }

    /// The position among all GPUs of the one with this ordinal.
    pub(crate) fn position(&self, ordinal: c_int) -> Result<usize, Code> {
        let ordinal = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        self.config()
            .visible
            .get(ordinal)
            .copied()
            .ok_or(Code::INVALID_DEVICE)
    }

    /// The ordinal, in this process, of the GPU at this position.
    pub(crate) fn ordinal(&self, position: usize) -> Option<c_int> {
        self.config()
            .visible
            .iter()
            .position(|p| *p == position)
            .map(|ordinal| ordinal as c_int)
    }
}

pub(crate) fn in_forked_child() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner != 0 && owner != std::process::id()
}

/// Runs an exported function: refuses in a forked child (before any lock is touched, as another
/// thread may have held it at the fork) and before `cuInit`, injects failures, contains panics.
pub(crate) fn call(name: &'static str, body: impl FnOnce(&Global) -> Result<(), Code>) -> c_int {
    run(name, true, body)
}

/// As [`call`], for functions that work before `cuInit`.
pub(crate) fn call_early(
    name: &'static str,
    body: impl FnOnce(&Global) -> Result<(), Code>,
) -> c_int {
    run(name, false, body)
}

fn run(
    name: &'static str,
    needs_init: bool,
    body: impl FnOnce(&Global) -> Result<(), Code>,
) -> c_int {
    if in_forked_child() {
        return Code::NOT_INITIALIZED.0;
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let global = global();
        if needs_init && !global.initialised.load(Ordering::Acquire) {
            return Err(Code::NOT_INITIALIZED);
        }
        let rules = global.config().faults.clone();
        let failure = global.faults().on_call(name, &rules);
        match failure {
            Some(Failure::Code(code)) => return Err(code),
            Some(Failure::Lost) => {
                lose_current(Code::ILLEGAL_ADDRESS);
                return Err(Code::ILLEGAL_ADDRESS);
            }
            None => {}
        }
        body(global)
    }));
    match result {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Notes a call of so many bytes in the file that `RGAPS_TEST_DRIVER_TRACE` names, for processes that a test
/// cannot ask.
pub(crate) fn trace(name: &str, bytes: usize) {
    static FILE: OnceLock<Option<std::fs::File>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let path = std::env::var_os("RGAPS_TEST_DRIVER_TRACE")?;
        let mut options = std::fs::OpenOptions::new();
        options.append(true).create(true).open(path).ok()
    });
    if let Some(mut file) = file.as_ref() {
        // One write, so that lines of several processes do not mix.
        let line = format!("{} {name} {bytes}\n", std::process::id());
        if let Err(error) = file.write_all(line.as_bytes()) {
            eprintln!("rgaps test driver: no trace: {error}");
        }
    }
}

/// `cuInit`.
pub(crate) fn initialise(global: &Global) -> Result<(), Code> {
    if let Some(reason) = &global.misconfigured {
        eprintln!("rgaps test driver: {reason}");
        return Err(Code::INVALID_VALUE);
    }
    if global.config().visible.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    global.initialised.store(true, Ordering::Release);
    Ok(())
}

/// Ends the process, after saying why: a test that waits in vain is not to hang.
pub(crate) fn give_up(what: &str) -> ! {
    eprintln!("rgaps test driver: {what}; the process is ended");
    std::process::abort()
}

/// Writes an output argument.
///
/// # Safety
/// `to` is null or valid for a write.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's; unaligned so that no alignment has to be vouched for.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Gives the handle that `find` has for a name.
///
/// # Safety
/// As [`put`]; `name` is null or a C string.
pub(crate) unsafe fn put_named(
    to: *mut usize,
    name: *const c_char,
    find: impl FnOnce(&str) -> Result<usize, Code>,
) -> Result<(), Code> {
    if to.is_null() || name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's: a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let found = find(&name)?;
    // SAFETY: the caller's.
    unsafe { put(to, found) }
}
