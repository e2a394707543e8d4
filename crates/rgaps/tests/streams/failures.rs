//! Makes every driver call on a message's path fail, one after another. The caller that gets the error can go on, the
//! bytes that arrive are those sent, nothing is leaked, and nobody waits for ever.

use crate::gpu::{gpu, room, small_pool, Gpu, Pinned, MESSAGE, POOL_BLOCKS};
use crate::harness::{alone, until, Setting, SOON};
use rgaps::{Publisher, Sample, Subscriber};
use rgaps_cuda::CudaStream;
use rgaps_testkit::Daemon;
use std::cell::Cell;
use std::time::Duration;

/// The driver functions that joining and passing messages call. `crates/cuda/tests/faults.rs` covers the others.
const CALLS: [&str; 26] = [
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuMemGetAllocationGranularity",
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamIsCapturing",
    "cuStreamGetCtx",
    "cuStreamGetId",
    "cuStreamWriteValue64",
    "cuStreamWaitValue64",
    "cuMemHostRegister",
    "cuMemHostGetDevicePointer",
];
/// For each function, the first to the fourth call fail, one in each run.
const NTH_MAX: u64 = 4;
const SETTINGS: [Setting; 1] = [("RGAPS_TEST_DRIVER_DELAY_US", "100")];

struct Set {
    gpu: Gpu,
    writes: CudaStream,
    reads: CudaStream,
    target: Pinned,
    /// The driver function that fails, at which of its calls (from 1), and whether that call was made.
    fails: Cell<(&'static str, u64, bool)>,
}

/// During which phase the call fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Never,
    Joining,
    Passing,
}

impl Set {
    fn begin(&self, now: bool) {
        let (call, nth, _) = self.fails.get();
        match now {
            true => {
                let fail = format!("fail={call}:{nth}:CUDA_ERROR_OUT_OF_MEMORY");
                self.gpu.configure(&fail);
            }
            false => self.gpu.configure("fail="),
        }
    }

    fn end(&self, now: bool) {
        let (call, nth, met) = self.fails.get();
        let calls = self.gpu.calls(call).unwrap_or(0);
        self.fails.set((call, nth, met || now && calls >= nth));
        self.gpu.configure("fail=");
    }

    /// Publishes a message that one stream fills with `value`, and checks it as the CPU and another stream read it.
    /// False: a call returned an error.
    fn pass(&self, publisher: &Publisher, subscriber: &Subscriber, value: u8, fails: bool) -> bool {
        let Ok(mut loan) = publisher.loan(MESSAGE) else {
            return false;
        };
        self.begin(fails);
        let written = loan.write(0, &[!value; 64]);
        self.end(fails);
        // SAFETY: we hold the loan, so nobody else uses its bytes; `publish_on` or `discard_on` orders others behind this work.
        unsafe {
            let filled = self.writes.fill(loan.address(), value, loan.len());
            filled.unwrap();
        }
        self.begin(fails);
        if let Err(unpublished) = loan.publish_on(self.writes.handle()) {
            self.end(fails);
            // The loan came back, and the stream may still write its bytes.
            if let Some(loan) = unpublished.loan {
                loan.discard_on(self.writes.handle());
            }
            return false;
        }
        let mut told = false;
        let sample = loop {
            match subscriber.recv_timeout(SOON) {
                Ok(sample) => break sample,
                Err(error) => {
                    assert!(!told, "it is told twice: {error}");
                    told = true;
                }
            }
        };
        let mut seen = [value; 64];
        let read = sample.read(MESSAGE - 64, &mut seen);
        let waited = sample.wait_on(self.reads.handle()).is_ok();
        self.end(fails);
        if waited {
            self.target.take(&self.reads, &sample);
        }
        self.let_go(sample, fails);
        until("what was read is there", || self.reads.is_idle().unwrap());
        if waited {
            assert_eq!(self.target.value(MESSAGE as usize), Some(value));
        }
        assert_eq!(seen, [value; 64]);
        written.is_ok() && read.is_ok() && waited && !told
    }

    fn let_go(&self, sample: Sample, fails: bool) {
        self.begin(fails);
        sample.release_on(self.reads.handle());
        self.end(fails);
    }

    /// Joins, passes three messages, and leaves. Returns how many messages passed: 3 unless a call fails.
    fn live(&self, daemon: &Daemon, when: When) -> u32 {
        self.begin(when == When::Joining);
        let node = daemon.node("test");
        let subscriber = node.subscriber("t").create();
        let publisher = node
            .publisher("t")
            .domain(self.gpu.domain)
            .keep_last(1)
            .loan_timeout(Duration::ZERO)
            .create();
        self.end(when == When::Joining);
        let (Ok(subscriber), Ok(publisher)) = (subscriber, publisher) else {
            return 0;
        };
        let mut passed = 0;
        for value in 1..=3 {
            let fails = when == When::Passing;
            passed += u32::from(self.pass(&publisher, &subscriber, value, fails));
        }
        // The history may keep one message.
        until("nothing is leaked", || room(&publisher) >= POOL_BLOCKS - 1);
        passed
    }
}

fn fail_each(calls: &'static [&'static str]) {
    let gpu = gpu();
    if gpu.control.is_none() {
        return println!("calls of a real GPU do not fail when told to");
    }
    let (writes, reads) = (gpu.stream(), gpu.stream());
    let target = Pinned::new(&gpu, MESSAGE as usize);
    let set = Set {
        gpu,
        writes,
        reads,
        target,
        fails: Cell::new(("", 0, false)),
    };
    let daemon = small_pool();
    assert_eq!(set.live(&daemon, When::Never), 3);
    for call in calls {
        let mut met = false;
        for when in [When::Joining, When::Passing] {
            for nth in 1..=NTH_MAX {
                set.fails.set((call, nth, false));
                set.live(&daemon, when);
                if !set.fails.get().2 {
                    break;
                }
                met = true;
                let passed = set.live(&daemon, When::Never);
                assert_eq!(passed, 3, "after call {nth} of {call} failed");
            }
        }
        assert!(met, "{call} is never called: the list is out of date");
    }
}

#[test]
fn any_call_about_a_gpu_may_fail() {
    alone(&SETTINGS, || fail_each(&CALLS[..8]));
}

#[test]
fn any_call_about_memory_may_fail() {
    alone(&SETTINGS, || fail_each(&CALLS[8..16]));
}

#[test]
fn any_call_about_streams_may_fail() {
    alone(&SETTINGS, || fail_each(&CALLS[16..]));
}
