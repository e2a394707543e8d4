//! Calls to the servers. The first call that needs one connects to all. A call goes to the server of the thread's current device.

use crate::servers::{opened, Server, Servers};
use crate::{failures, notice, thread};
use rgaps_remoting::{
    Call, CallAnswer, CallValue, Code, Counters, DeviceInfo, ServerConnection, Waited, INLINE_BYTES,
};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

/// Has every call wait for its answer, so that an error is the result of the call that made it.
const BLOCKING_ENV: &str = "RGAPS_GPU_BLOCKING";
/// How many connections or threads carry the bytes of large copies.
const STRIPES_ENV: &str = "RGAPS_GPU_STRIPES";
const STRIPES_USUAL: usize = 4;
/// Up to which size bytes travel inside the batch.
const INLINE_ENV: &str = "RGAPS_GPU_INLINE";
/// A file that gets lines of JSON: what the session has counted.
const STATISTICS_ENV: &str = "RGAPS_GPU_STATISTICS";

/// This process was forked with the session open: it has the session's memory and none of its threads.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Calls that were answered here.
static LOCAL: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_forked_child() {
    FORKED.store(true, Ordering::Release);
}

fn open() -> Result<Servers, Code> {
    let servers = Servers::open(&program(), stripes(), inline_bytes())?;
    // SAFETY: both are functions of this library. glibc registers them with the library's handle: if the library is unloaded, it forgets
    // the one and runs the other before.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_forked_child));
        libc::atexit(at_exit);
    }
    Ok(servers)
}

/// The number in a variable of the environment.
fn number_of(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Up to which size bytes travel inside the batch.
pub(crate) fn inline_bytes() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| number_of(INLINE_ENV).unwrap_or(INLINE_BYTES))
}

/// How many connections (or threads, where memory is shared) carry the bytes of a large copy: a quarter of the processors, since the
/// server may be on the same ones, unless the user says how many. 0: the first connection does.
pub(crate) fn stripes() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let usual = (processors / 4).min(STRIPES_USUAL);
        let count = number_of(STRIPES_ENV).unwrap_or(usual);
        if count < 2 {
            0
        } else {
            count
        }
    })
}

/// The file name of the program.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The servers, opened if they are not.
fn servers() -> Result<&'static Servers, Code> {
    if FORKED.load(Ordering::Acquire) {
        notice::once("a process that has used the GPU was forked; the child cannot use it: start a program with exec, or fork first");
        return Err(Code::INITIALIZATION);
    }
    opened().get_or_init(open).as_ref().map_err(|code| *code)
}

/// The server of the current device.
fn here() -> Result<(&'static Servers, &'static Server), Code> {
    let servers = servers()?;
    Ok((servers, servers.of(thread::device())?))
}

/// The CUDA version that the drivers of all servers support; 0 without servers.
pub(crate) fn driver_version() -> i32 {
    servers().map_or(0, Servers::driver_version)
}

/// The GPUs of all servers.
pub(crate) fn devices() -> Result<&'static [DeviceInfo], Code> {
    let devices = &servers()?.devices;
    match devices.is_empty() {
        true => Err(Code::NO_DEVICE),
        false => Ok(devices),
    }
}

/// The number that a GPU has on its server, which must be that of the current device.
pub(crate) fn peer(ordinal: i32) -> Result<u16, Code> {
    device(ordinal)?;
    let peer = ordinal as u16;
    match crate::servers::is_here(peer) {
        true => Ok(servers()?.ordinal(peer)),
        false => Err(Code::PEER_ACCESS_UNSUPPORTED),
    }
}

/// The GPU of an ordinal.
pub(crate) fn device(ordinal: i32) -> Result<&'static DeviceInfo, Code> {
    let ordinal = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
    devices()?.get(ordinal).ok_or(Code::INVALID_DEVICE)
}

/// The GPU that is current on this thread.
pub(crate) fn current() -> Result<&'static DeviceInfo, Code> {
    device(thread::device().into())
}

/// An attribute of a GPU; `None` if its driver does not know it.
pub(crate) fn attribute(of: &DeviceInfo, number: i32) -> Option<i32> {
    let found = of
        .attributes
        .binary_search_by_key(&number, |(number, _)| *number);
    found.ok().map(|at| of.attributes[at].1)
}

/// The error that ended the context of the current device.
pub(crate) fn sticky() -> Code {
    match opened().get() {
        Some(Ok(_)) => here().map_or_else(|code| code, |(_, server)| server.sticky()),
        _ => Code::SUCCESS,
    }
}

/// Forgets that error: call when the device was reset.
pub(crate) fn unstick() {
    if let Some(Ok(_)) = opened().get() {
        // If the server is lost, the next call returns the error.
        let _ = here().map(|(_, server)| server.unstick());
    }
}

/// Refuses every call after an error that ended the context.
fn alive() -> Result<(&'static Servers, &'static Server), Code> {
    if thread::is_in_callback() {
        return Err(Code::NOT_PERMITTED);
    }
    let (servers, server) = here()?;
    server.sticky().check()?;
    Ok((servers, server))
}

/// Whether the context is usable; a function that does nothing else may still have to fail.
pub(crate) fn check_alive() -> Result<(), Code> {
    sticky().check()?;
    current().map(drop)
}

/// Whether every call waits for its answer ([`BLOCKING_ENV`]).
pub(crate) fn is_blocking() -> bool {
    static IS_BLOCKING: OnceLock<bool> = OnceLock::new();
    *IS_BLOCKING.get_or_init(|| std::env::var_os(BLOCKING_ENV).is_some_and(|value| value != "0"))
}

/// Makes a call that nobody waits for. A later call that waits returns its error.
pub(crate) fn send(call: &Call<'_>, bulk: &[u8]) -> Result<(), Code> {
    match is_blocking() {
        false => {
            let (servers, server) = alive()?;
            let sent = server.connection.send(servers.caller(), call, bulk);
            sent.map_err(|_| server.lost())
        }
        true => self::call(call, bulk).map(drop),
    }
}

/// Makes a copy of shared memory that nobody waits for.
pub(crate) fn send_shared(call: &Call<'_>) -> Result<(), Code> {
    count_shared(&alive()?.1.connection, call);
    send(call, &[])
}

/// Makes a copy of shared memory that nobody waits for; its call is written to the connection when this returns.
pub(crate) fn send_shared_now(call: &Call<'_>) -> Result<(), Code> {
    if is_blocking() {
        return send_shared(call);
    }
    let (servers, server) = alive()?;
    count_shared(&server.connection, call);
    let sent = server.connection.send_now(servers.caller(), call);
    sent.map_err(|_| server.lost())
}

/// Begins a copy of shared memory, which [`finish`] waits for.
pub(crate) fn start_shared(call: &Call<'_>) -> Result<Waited, Code> {
    let (servers, server) = alive()?;
    count_shared(&server.connection, call);
    let started = server.connection.start(servers.caller(), call);
    started.map_err(|_| server.lost())
}

fn count_shared(connection: &ServerConnection, call: &Call<'_>) {
    if let Call::CopyShared { extent, .. } = call {
        let bytes = extent.bytes().unwrap_or(0);
        connection
            .counters
            .bytes_shared
            .fetch_add(bytes, Ordering::Relaxed);
    }
}

pub(crate) fn finish(waited: Waited) -> Result<(), Code> {
    let (_, server) = here()?;
    let finished = server.connection.finish(waited);
    value(finished.map_err(|_| server.lost())?.0).map(drop)
}

/// Whether the server can share memory with this process.
pub(crate) fn can_share() -> Result<bool, Code> {
    Ok(alive()?.1.connection.is_local())
}

/// Makes a call that gives bytes, which nobody waits for.
///
/// # Safety
/// `bytes` bytes at `to` may be written, by any thread, until [`wait_for_async_copies`] has returned for them.
pub(crate) unsafe fn call_out_async(call: &Call<'_>, to: u64, bytes: u64) -> Result<(), Code> {
    let (servers, server) = alive()?;
    let connection = &server.connection;
    // SAFETY: our caller promises that `bytes` bytes at `to` may be written, by any thread, until `wait_for_async_copies` has returned
    // for them, which asks this connection, too.
    let begun =
        unsafe { connection.call_out_async(servers.caller(), call, to as *mut u8, bytes as usize) };
    begun.map_err(|_| server.lost())
}

/// Waits until no bytes are expected for a range. Fails only if the server of the current device is lost: calls to another lost server
/// fail by themselves.
pub(crate) fn wait_for_async_copies(start: u64, bytes: u64) -> Result<(), Code> {
    let (servers, current) = here()?;
    for server in &servers.all {
        let waited = server
            .connection
            .wait_for_async_copies(start as usize, bytes as usize);
        if waited.is_err() && std::ptr::eq(server, current) {
            return Err(server.lost());
        }
    }
    Ok(())
}

/// Makes a region of the server's memory; its number, and its descriptor if the server is on this host. `None` if the server refuses.
pub(crate) fn make_region(bytes: u64) -> Result<Option<(u64, Option<OwnedFd>)>, Code> {
    let (servers, server) = alive()?;
    let connection = &server.connection;
    let bytes = bytes
        .checked_next_multiple_of(4096)
        .ok_or(Code::OUT_OF_MEMORY)?;
    let region = mint();
    let waited = connection
        .start(servers.caller(), &Call::Share { region, bytes })
        .map_err(|_| server.lost())?;
    let (answer, memory) = connection.finish(waited).map_err(|_| server.lost())?;
    let is_refused = answer.code != 0;
    // An error of an earlier call is not lost.
    value(CallAnswer { code: 0, ..answer })?;
    Ok((!is_refused).then_some((region, memory)))
}

/// Maps memory that this process and the backend share; gives its number and its address. `None` if the server cannot share memory.
pub(crate) fn share(bytes: u64) -> Result<Option<(u64, u64)>, Code> {
    if !can_share()? {
        return Ok(None);
    }
    let Some((region, Some(memory))) = make_region(bytes)? else {
        return Ok(None);
    };
    match map(&memory, bytes) {
        Some(start) => Ok(Some((region, start))),
        None => {
            send(&Call::Unshare { region }, &[])?;
            Ok(None)
        }
    }
}

/// Maps the first `bytes` bytes of a region; `None` if it has fewer.
fn map(memory: &OwnedFd, bytes: u64) -> Option<u64> {
    // SAFETY: `stat` is a structure of integers, for which zeros are values.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a `stat` to `found`, a variable of this function. `memory` keeps the descriptor open.
    let failed = unsafe { libc::fstat(memory.as_raw_fd(), &mut found) } != 0;
    if failed || (found.st_size as u64) < bytes {
        return None;
    }
    // SAFETY: a new mapping. The kernel chooses a free address, so it replaces nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            // The backend has the pages already; to fault them in one by one takes longer than a copy.
            libc::MAP_SHARED | libc::MAP_POPULATE,
            memory.as_raw_fd(),
            0,
        )
    };
    (start != libc::MAP_FAILED).then_some(start as u64)
}

/// The value of an answer, or its error: first that of an earlier call that nobody waited for. Keeps an error that ends the context.
pub(crate) fn value(answer: CallAnswer) -> Result<CallValue, Code> {
    let (code, deferred) = (Code(answer.code), Code(answer.deferred));
    let first = if deferred == Code::SUCCESS {
        code
    } else {
        deferred
    };
    let first = failures::as_code(first);
    if first.is_sticky() {
        return Err(here()?.1.stick(first));
    }
    first.check().map(|()| answer.value)
}

/// Makes a call and waits for its value.
pub(crate) fn call(call: &Call<'_>, bulk: &[u8]) -> Result<CallValue, Code> {
    let (servers, server) = alive()?;
    let answer = server.connection.call(servers.caller(), call, bulk);
    value(answer.map_err(|_| server.lost())?)
}

/// Makes a call and waits for its answer, which the caller reads.
pub(crate) fn ask(call: &Call<'_>) -> Result<CallAnswer, Code> {
    let (servers, server) = alive()?;
    let answer = server.connection.call(servers.caller(), call, &[]);
    answer.map_err(|_| server.lost())
}

/// Makes a call that gives a number.
pub(crate) fn number(of: &Call<'_>) -> Result<u64, Code> {
    match call(of, &[])? {
        CallValue::Number(number) => Ok(number),
        _ => Err(Code::UNKNOWN),
    }
}

/// Makes a call that gives bytes.
///
/// # Safety
/// `bytes` bytes at `to` may be written, by any thread, until this returns.
pub(crate) unsafe fn call_out(call: &Call<'_>, to: *mut u8, bytes: usize) -> Result<(), Code> {
    let (servers, server) = alive()?;
    // SAFETY: our caller promises that any thread may write `bytes` bytes at `to` until we return. `ServerConnection::call_out` writes no
    // more than these, and none after it has returned.
    let answer = unsafe {
        let connection = &server.connection;
        connection.call_out(servers.caller(), call, to, bytes)
    };
    value(answer.map_err(|_| server.lost())?).map(drop)
}

/// Counts a call that was answered here.
pub(crate) fn answered_locally() {
    LOCAL.fetch_add(1, Ordering::Relaxed);
}

/// A number that no other handle of the process has; it looks like an address, as the driver's do.
pub(crate) fn mint() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5247_0000_0010);
    NEXT.fetch_add(16, Ordering::Relaxed)
}

extern "C" fn at_exit() {
    write_statistics("exit");
}

/// Appends what was counted until now to the user's file: at the end of the program, and where it starts and stops the profiler.
pub(crate) fn write_statistics(at: &str) {
    let Some(Ok(servers)) = opened().get() else {
        return;
    };
    if FORKED.load(Ordering::Acquire) {
        return;
    }
    let Some(path) = std::env::var_os(STATISTICS_ENV) else {
        return;
    };
    let all = || servers.all.iter().map(|server| &server.connection);
    let sum = |of: fn(&Counters) -> &AtomicU64| -> u64 {
        all()
            .map(|connection| of(&connection.counters).load(Ordering::Relaxed))
            .sum()
    };
    let line = format!(
        "{{\"program\":\"{}\",\"at\":\"{at}\",\"calls\":{},\"local\":{},\"round_trips\":{},\"writes\":{},\"reads\":{},\"bytes_out\":{},\"bytes_in\":{},\"bytes_shared\":{},\"lost\":{}}}\n",
        program().replace(['"', '\\'], "_"),
        sum(|counters| &counters.calls),
        LOCAL.load(Ordering::Relaxed),
        sum(|counters| &counters.round_trips),
        sum(|counters| &counters.writes),
        sum(|counters| &counters.reads),
        sum(|counters| &counters.bytes_out),
        sum(|counters| &counters.bytes_in),
        sum(|counters| &counters.bytes_shared),
        all().any(|connection| connection.is_lost()),
    );
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    // A program does not fail because its statistics cannot be written.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
