//! An allocator that counts, for tests of code that must not allocate.
//!
//! ```
//! use rgaps_testkit::{allocations, CountingAllocator};
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator::new();
//!
//! let before = allocations::of_this_thread();
//! drop(Box::new(5));
//! assert_eq!(allocations::of_this_thread() - before, 1);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static ALL_THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THIS_THREAD: Cell<u64> = const { Cell::new(0) };
    /// While a thread asks for its name, which allocates.
    static ASKS_FOR_NAME: Cell<bool> = const { Cell::new(false) };
}

/// Allocations of the calling thread since it began. The threads of the test harness allocate whenever they like; they do
/// not count here.
pub fn of_this_thread() -> u64 {
    THIS_THREAD.get()
}

/// Allocations of all threads that the allocator counts.
pub fn of_all_threads() -> u64 {
    ALL_THREADS.load(Relaxed)
}

/// The system's allocator, and counters.
pub struct CountingAllocator {
    not_counted: Option<&'static CStr>,
}

impl CountingAllocator {
    /// Counts in all threads.
    #[allow(clippy::new_without_default, reason = "a static needs a const fn")]
    pub const fn new() -> CountingAllocator {
        CountingAllocator { not_counted: None }
    }

    /// Leaves out threads of this name in [`of_all_threads`].
    pub const fn without_threads_named(name: &'static CStr) -> CountingAllocator {
        CountingAllocator {
            not_counted: Some(name),
        }
    }

    fn count(&self) {
        if ASKS_FOR_NAME.get() {
            return;
        }
        THIS_THREAD.set(THIS_THREAD.get() + 1);
        if !self.not_counted.is_some_and(is_name_of_this_thread) {
            ALL_THREADS.fetch_add(1, Relaxed);
        }
    }
}

fn is_name_of_this_thread(name: &CStr) -> bool {
    ASKS_FOR_NAME.set(true);
    let is_name = rustix::thread::name().is_ok_and(|own| own.as_c_str() == name);
    ASKS_FOR_NAME.set(false);
    is_name
}

// SAFETY: every call goes to the system's allocator unchanged. Counting does not unwind, and does not call this allocator
// again: thread-locals that are made in const and have no destructor take no memory, and while a thread asks for its name
// it does not count.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: our caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: our caller keeps the contract of `dealloc`; the memory came from `System.alloc` with this layout.
        unsafe { System.dealloc(address, layout) }
    }
}
