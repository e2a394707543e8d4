//! The library of jobs: `tests/rdma/jobs.h`, compiled for the host or for GPUs.

use anyhow::{bail, Context, Result};
use rgaps_gpu_verbs::{Buffer, QueuePairView, ZeroedMemory};
use rgaps_layout::DeviceTopicView;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::{offset_of, size_of};

const SLOTS_MAX: usize = 64;

/// `jobs::Task`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Task {
    #[default]
    Send = 0,
    Receive = 1,
    Fail = 2,
    Fill = 3,
    Naive = 4,
    Prepared = 5,
    Pipelined = 6,
    Shared = 7,
    Enqueue = 8,
    TopicPublish = 9,
    TopicReceive = 10,
    Egress = 11,
    Ingress = 12,
}

/// `jobs::Job`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Job {
    pub pair: QueuePairView,
    pub local: Buffer,
    pub remote: Buffer,
    pub board: u64,
    pub messages: u64,
    pub ticks_max: u64,
    pub slots: u32,
    pub slot_bytes: u32,
    pub ring_every: u32,
    pub task: Task,
    pub fault: u32,
    pub syndrome: u32,
    pub topic: DeviceTopicView,
    pub seat: u32,
    pub padding: u32,
}

/// `jobs::Board`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Board {
    pub is_running: u64,
    pub is_done: u64,
    pub failed_step: u64,
    pub failed_status: i64,
    pub messages: u64,
    pub corrupt: u64,
    pub back_pressured: u64,
    pub ticks: u64,
    pub nanoseconds: u64,
    pub may_go_on: u64,
    pub ends: [u64; SLOTS_MAX],
}

impl Board {
    /// Copies the board as it is now.
    pub fn read(memory: &ZeroedMemory) -> Board {
        let mut bytes = [0u8; size_of::<Board>()];
        memory.read(0, &mut bytes);
        // SAFETY: `bytes` has the size of a board, and a board consists of integers only, so all bytes are valid values.
        unsafe { bytes.as_ptr().cast::<Board>().read_unaligned() }
    }
}

const _: () = assert!(
    offset_of!(Job, local) == 88 && offset_of!(Job, board) == 120 && size_of::<Job>() == 240
);
const _: () = assert!(size_of::<Board>() == 80 + 8 * SLOTS_MAX);

type Run = unsafe extern "C" fn(*const Job, u32, u32) -> c_int;

/// The library, which stays loaded.
#[derive(Clone, Copy)]
pub struct Jobs {
    run: Run,
    pub is_cuda: bool,
}

impl Jobs {
    /// Loads the library.
    pub fn load(path: &str) -> Result<Jobs> {
        let name = CString::new(path)?;
        // SAFETY: `name` is a C string. The library is built from tests/rdma/jobs.cu, whose initialisers are those of C++.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlopen failed just now in this thread, so dlerror returns a C string, which is valid until the next dl call.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            bail!("{}", why.to_string_lossy());
        }
        let symbol = |name: &CStr| -> Result<*mut c_void> {
            // SAFETY: dlopen returned the handle above, and nobody closes it.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!found.is_null())
                .then_some(found)
                .with_context(|| format!("{path} has no {name:?}"))
        };
        let run = symbol(c"rgaps_rdma_jobs_run")?;
        let kind = symbol(c"rgaps_rdma_jobs_kind")?;
        // SAFETY: tests/rdma/jobs.cu defines these functions with these signatures. `kind` returns a string literal.
        unsafe {
            let kind =
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(kind);
            Ok(Jobs {
                run: std::mem::transmute::<*mut c_void, Run>(run),
                is_cuda: CStr::from_ptr(kind()) == c"cuda",
            })
        }
    }

    /// Runs jobs at the same time, each by one thread or warp, and returns when all have ended.
    pub fn run(&self, jobs: &[Job], warps_per_block: u32) -> Result<()> {
        // SAFETY: the slice is valid for its length. The callers keep the memory that the jobs name until this returns.
        let failed = unsafe { (self.run)(jobs.as_ptr(), jobs.len() as u32, warps_per_block) };
        match failed {
            0 => Ok(()),
            _ => bail!("the jobs could not be run"),
        }
    }
}
