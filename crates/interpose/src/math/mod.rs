//! Functions of the libraries above the runtime: cuBLAS, cuRAND, cuFFT, cuDNN.
//!
//! Each symbol of `libcublas.so` and the others, which `tools/gpu-libs.py` makes, passes its number in the table of `rgaps-remoting` to
//! [`rgaps_math_called`], with the registers and the stack of the call. `pack` makes arguments for the server of them, as the table says;
//! `handles` knows the handles that are minted here, and what their pointer modes are. Only copies between host and device (`copies`)
//! have code of their own.
//!
//! No thread waits for a function that gives nothing but a status. If it fails although the table's conditions hold, its status is the
//! result of the next function of the library that is waited for, or an error is the result of the next such call of CUDA.
mod copies;
mod handles;
mod known;
mod pack;

use crate::failures::say;
use crate::servers::{at, number_of};
use crate::{notice, session, thread};
use pack::{Packed, Packing};
use rgaps_remoting::math::{library_of, table, Failure, Function, Gives, ParameterKind, Statuses};
use rgaps_remoting::{Call, CallAnswer, CallValue, Code, MathArgument, SERVERS_MAX};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Libraries that the table may have.
const LIBRARIES_MAX: usize = 8;

/// Called by every forwarded function, with its number in the table.
///
/// # Safety
/// `registers` has the registers in which C passes integers, then those for floats, as the function's caller left them; `stack` has the
/// arguments that the caller put on the stack. Both stay until this returns.
#[no_mangle]
unsafe extern "C" fn rgaps_math_called(
    number: u32,
    registers: *const u64,
    stack: *const u64,
) -> u64 {
    let body = || {
        let function = table().functions.get(number as usize)?;
        // SAFETY: the symbol of `function` in a library of `tools/gpu-libs.py` calls this with the registers that it has saved and the
        // address of its caller's arguments on the stack. Both stay until it returns. The table has the arguments of the function's
        // prototype.
        let words = unsafe { pack::words(function, registers, stack) };
        // The call goes to the server that has its handles.
        let device = device_of(function, &words).unwrap_or_else(thread::device);
        Some(at(device, || call(number as u16, function, &words)))
    };
    let result = catch_unwind(AssertUnwindSafe(body)).ok().flatten();
    result.unwrap_or(Code::UNKNOWN.0 as u64)
}

/// Called in place of each function that is not forwarded.
#[no_mangle]
extern "C" fn rgaps_math_unsupported(name: *const c_char) -> c_int {
    // SAFETY: only the libraries that `tools/gpu-libs.py` makes call this. They pass the function's name, a C string in their own
    // read-only data.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    notice::unsupported(&name);
    library_of(&name).map_or(Code::NOT_SUPPORTED.0, |library| {
        library.statuses.not_supported
    })
}

fn statuses(function: &Function) -> Statuses {
    table().libraries[usize::from(function.library)].statuses
}

/// A GPU of the server that has the first of a call's handles.
fn device_of(function: &Function, words: &[u64]) -> Option<u16> {
    let known = handles::handles();
    let mut arguments = function.kinds.iter().zip(words);
    arguments.find_map(|(kind, word)| {
        handle_of(*kind)?;
        known.get(word).map(|handle| handle.device)
    })
}

/// Whether the current server has a library. Asked once.
fn is_there(number: u8) -> bool {
    static OPENED: [[OnceLock<bool>; LIBRARIES_MAX]; SERVERS_MAX] =
        [const { [const { OnceLock::new() }; LIBRARIES_MAX] }; SERVERS_MAX];
    let opened = &OPENED[number_of(thread::device())];
    *opened[usize::from(number)].get_or_init(|| {
        let library = number;
        let fingerprint = table().fingerprint;
        let opened = session::call(&Call::MathOpen { library, fingerprint }, &[]);
        if opened == Err(Code::NOT_FOUND) {
            let name = table().libraries[usize::from(library)].name;
            notice::once(&format!(
                "the GPU server has no lib{name}.so: its functions fail; install it there, and name its folder in LD_LIBRARY_PATH of 'rgaps gpu serve'"
            ));
        }
        opened.is_ok()
    })
}

/// Makes a call; gives its result as C returns it.
fn call(number: u16, function: &'static Function, words: &[u64]) -> u64 {
    let statuses = statuses(function);
    let failed = |status: i32| match function.gives {
        Gives::Status | Gives::Waits { .. } | Gives::Pure => u64::from(status as u32),
        Gives::Text => c"unknown".as_ptr() as u64,
        Gives::Word | Gives::Nothing => 0,
    };
    if !is_there(function.library) {
        return failed(statuses.not_initialised);
    }
    let packing = match Packing::new(function, words) {
        Ok(packing) => packing,
        Err(status) => return failed(status),
    };
    if !function
        .conditions
        .iter()
        .all(|condition| condition.holds(|at| words[at]))
    {
        return failed(statuses.invalid);
    }
    if packing.is_answered {
        session::answered_locally();
        return 0;
    }
    let key = (function.gives == Gives::Pure).then(|| packing.key());
    if let Some(bytes) = key.as_deref().and_then(known::find) {
        session::answered_locally();
        packing.bring(&bytes);
        return 0;
    }
    match make(number, function, packing, key) {
        Ok((_, Some(bytes))) if function.gives == Gives::Text => text(number, words, &bytes),
        Ok((status, _)) => status,
        Err(status) => failed(status),
    }
}

/// Makes a call on the server: its result, with the bytes of a text; or a status that stands for a failure.
fn make(
    number: u16,
    function: &'static Function,
    packing: Packing<'_>,
    key: Option<Vec<u8>>,
) -> Result<(u64, Option<Vec<u8>>), i32> {
    let lost = |code| lost(statuses(function), code);
    let arguments: Vec<MathArgument<'_>> = packing.packed.iter().map(Packed::argument).collect();
    let call = Call::Math {
        function: number,
        arguments,
    };
    let is_quiet = match function.gives {
        Gives::Status => packing.outputs.is_empty(),
        Gives::Waits {
            unless: Some((slot, value)),
        } => packing.is_kept(slot, value),
        _ => false,
    };
    if is_quiet && !session::is_blocking() {
        session::send(&call, &[]).map_err(lost)?;
        packing.finish();
        return Ok((0, None));
    }
    let (status, bytes) = result(function, session::ask(&call).map_err(lost)?)?;
    if status != 0 && function.gives == Gives::Text {
        return Ok((status, Some(bytes)));
    }
    packing.bring(&bytes);
    match key.filter(|_| status == 0) {
        Some(key) => known::keep(key, bytes),
        None if status == 0 => packing.finish(),
        None => {}
    }
    Ok((status, None))
}

/// Notes an error of CUDA for `cudaGetLastError`; gives the library's status for it.
fn lost(statuses: Statuses, code: Code) -> i32 {
    thread::note(code);
    match code {
        Code::NO_DEVICE | Code::DEVICES_UNAVAILABLE | Code::INITIALIZATION => {
            statuses.not_initialised
        }
        _ => statuses.failed,
    }
}

/// The function's result and the bytes that came back; or the status to return instead, if this call or an earlier one failed.
fn result(function: &Function, answer: CallAnswer) -> Result<(u64, Vec<u8>), i32> {
    let statuses = statuses(function);
    for code in [answer.deferred, answer.code] {
        if let Some(failure) = Failure::of(code) {
            let is_own = failure
                .function()
                .is_some_and(|failed| failed.library == function.library);
            if code == answer.deferred || !is_own {
                say(failure);
            }
            return Err(if is_own {
                failure.status
            } else {
                statuses.failed
            });
        }
    }
    // `value` also keeps an error of CUDA that ends the context.
    match session::value(answer) {
        Ok(CallValue::Math { result, bytes }) => Ok((result, bytes)),
        Ok(_) => Err(statuses.failed),
        Err(Code::INVALID_VALUE) => Err(statuses.invalid),
        Err(code) => Err(lost(statuses, code)),
    }
}

/// A text of the server's library. It is never freed, like the texts of the library itself; there are few.
fn text(number: u16, words: &[u64], bytes: &[u8]) -> u64 {
    type Texts = HashMap<(u16, Vec<u64>), CString>;
    static TEXTS: Mutex<Option<Texts>> = Mutex::new(None);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = texts
        .get_or_insert_with(HashMap::new)
        .entry((number, words.to_vec()))
        .or_insert_with(|| CString::new(bytes).unwrap_or_default());
    text.as_ptr() as u64
}

/// The handle type of a parameter that is a handle to use or to destroy.
fn handle_of(kind: ParameterKind) -> Option<u8> {
    match kind {
        ParameterKind::Handle(kind) | ParameterKind::Old(kind) => Some(kind),
        _ => None,
    }
}
