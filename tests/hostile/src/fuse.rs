//! A file of a file system in user space (FUSE) that never answers others: whoever reads, stats or closes it waits. Only this
//! process may open and close it.
//!
//! It speaks the three requests of FUSE's protocol that opening and closing a file take (`linux/fuse.h`).

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::mount::{mount, unmount, MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::Arc;
use std::thread::JoinHandle;

const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
/// Length of a request's header, which ends with the thread and 4 bytes of padding.
const HEADER: usize = 40;
/// Longest request: the kernel wants room for one.
const REQUEST_BYTES: usize = 1 << 17;
/// How often the thread looks whether it is to end.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The file system: one file. Dropped, all who wait for it go on.
pub struct Fuse {
    _folder: tempfile::TempDir,
    path: PathBuf,
    stop: Arc<AtomicBool>,
    waiting: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Fuse {
    /// Mounts it. The error says why this machine does not let us.
    pub fn mount() -> Result<Fuse, String> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("opening /dev/fuse failed: {error}"))?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = folder.path().join("file");
        std::fs::write(&path, "").map_err(|error| error.to_string())?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=100666,user_id=0,group_id=0,allow_other");
        let options = CString::new(options).expect("no zero byte");
        mount(
            "rgaps-test",
            &path,
            "fuse",
            MountFlags::empty(),
            Some(&*options),
        )
        .map_err(|error| format!("mounting a FUSE file system failed: {error}"))?;
        let (stop, waiting) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU32::new(0)),
        );
        let (stopped, waits) = (stop.clone(), waiting.clone());
        let thread = std::thread::spawn(move || serve(device, &stopped, &waits));
        Ok(Fuse {
            _folder: folder,
            path,
            stop,
            waiting,
            thread: Some(thread),
        })
    }

    /// A descriptor of the file.
    pub fn open(&self) -> File {
        let file = File::options().read(true).write(true).open(&self.path);
        file.expect("a file of our own file system")
    }

    /// Requests of other processes, which wait for an answer.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(SeqCst)
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        // With the device closed, what waits gets an error.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

fn serve(mut device: File, stop: &AtomicBool, waiting: &AtomicU32) {
    let mut request = vec![0u8; REQUEST_BYTES];
    while !stop.load(SeqCst) {
        let mut fds = [PollFd::new(&device, PollFlags::IN)];
        if poll(&mut fds, Some(&LOOK)) != Ok(1) {
            continue;
        }
        let Ok(length) = device.read(&mut request) else {
            return;
        };
        assert!(length >= HEADER);
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("4 bytes"));
        let (code, thread) = (word(4), word(32));
        let body = match code {
            INIT => init(),
            // The file's number and flags: none.
            OPEN if is_ours(thread) => vec![0; 16],
            FLUSH if is_ours(thread) => vec![],
            _ => {
                waiting.fetch_add(1, SeqCst);
                continue;
            }
        };
        let mut answer = (16 + body.len() as u32).to_ne_bytes().to_vec();
        answer.extend(0i32.to_ne_bytes());
        answer.extend(&request[8..16]);
        answer.extend(body);
        // The one who asked may be gone.
        let _ = device.write(&answer);
    }
}

/// Whether this process has such a thread.
fn is_ours(thread: u32) -> bool {
    Path::new("/proc/self/task")
        .join(thread.to_string())
        .exists()
}

/// Version 7.31, no features, and 4 KiB of a write.
fn init() -> Vec<u8> {
    let words = [7u32, 31, 0, 0, 0, 4096, 1];
    let mut body: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    body.resize(64, 0);
    body
}
