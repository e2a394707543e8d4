//! Tests the kernels on the test driver, or, with `RGAPS_TEST_GPU=1`, on a GPU with the driver that `RGAPS_CUDA_LIBRARY`
//! names or the system's.

use rgaps_cuda::{Context, CudaMapping, CudaSource, CudaStream, Driver};
use rgaps_kernels::{pattern, Kernels};
use rgaps_pool::{Access, Mapping, SegmentSource};
use rgaps_test_driver::TestDriver;
use std::os::fd::AsFd;

const BYTES: u64 = 2 << 20;
const WORDS: u64 = 10_000;

struct Set {
    kernels: Kernels,
    stream: CudaStream,
    memory: CudaMapping,
    control: Option<TestDriver>,
}

impl Set {
    fn new() -> Set {
        let (driver, control) = match std::env::var_os("RGAPS_TEST_GPU") {
            Some(_) => (Driver::load(), None),
            None => {
                let control = TestDriver::private();
                (Driver::load_from(control.path()), Some(control))
            }
        };
        let driver = driver.expect("the driver loads");
        let uuid = driver.devices().expect("it has GPUs")[0].uuid;
        let mut source = CudaSource::new(driver.clone(), uuid).expect("memory");
        let memory = CudaMapping::new(driver.clone(), uuid, BYTES, Access::ReadWrite).unwrap();
        let segment = source.create(BYTES).expect("a segment");
        memory.extend(segment.fd.as_fd(), BYTES).expect("mapped");
        let context = Context::retain(driver, uuid).expect("a context");
        Set {
            kernels: Kernels::load(context.clone()).expect("the kernels are compiled"),
            stream: CudaStream::new(context).expect("a stream"),
            memory,
            control,
        }
    }

    fn words(&self, offset: u64, count: u64) -> Vec<u64> {
        self.stream.synchronize().expect("the work succeeds");
        let mut bytes = vec![0; count as usize * 8];
        self.memory.read(offset, &mut bytes).expect("it is mapped");
        let words = bytes.chunks_exact(8);
        words
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect()
    }

    /// How many words differ from a pattern, as the kernel counts them.
    fn mismatches(&self, seed: u64) -> u64 {
        let (stream, base) = (self.stream.handle(), self.memory.base());
        let result = base + BYTES - 8;
        // SAFETY: the ranges are inside `memory`, which this set keeps and only this test uses; `words` waits for the work.
        unsafe {
            self.kernels.scribble(stream, result, 1, 0).unwrap();
            self.kernels
                .check_pattern(stream, base, WORDS, seed, result)
                .unwrap();
        }
        self.words(BYTES - 8, 1)[0]
    }
}

#[test]
fn patterns_are_written_checked_copied_and_overwritten() {
    let set = Set::new();
    let (kernels, stream, base) = (&set.kernels, set.stream.handle(), set.memory.base());
    // SAFETY: the range is inside `set.memory`, which lives until the end and only this test uses; `words` waits for the work.
    unsafe { kernels.fill_pattern(stream, base, WORDS, 7) }.unwrap();
    let expected: Vec<_> = (0..WORDS).map(|word| pattern(7, word)).collect();
    assert_eq!(set.words(0, WORDS), expected);
    assert_eq!(set.words(WORDS * 8, 1), [0], "it wrote behind the end");
    assert_eq!(set.mismatches(7), 0);
    assert_eq!(set.mismatches(8), WORDS, "another seed is another pattern");

    // SAFETY: both ranges are inside `set.memory`, which only this test uses; `mismatches` waits for the work.
    unsafe {
        kernels.scribble(stream, base + 80, 5, u64::MAX).unwrap();
        kernels
            .scribble(stream, base + 8 * (WORDS - 1), 1, 1)
            .unwrap();
    }
    assert_eq!(set.mismatches(7), 6);
    assert_eq!(set.words(72, 3), [expected[9], u64::MAX, u64::MAX]);

    // SAFETY: all ranges are inside `set.memory`, which only this test uses; `mismatches` waits for the work.
    unsafe {
        kernels.spin(stream, 200_000).unwrap();
        kernels.spin_fill(stream, base, WORDS, 9, 200_000).unwrap();
        kernels.copy(stream, base + 1_000_000, base, WORDS).unwrap();
    }
    assert_eq!(set.mismatches(9), 0);
    let expected: Vec<_> = (0..WORDS).map(|word| pattern(9, word)).collect();
    assert_eq!(set.words(1_000_000, WORDS), expected);
}

#[test]
fn kernels_are_queued_and_not_waited_for() {
    let set = Set::new();
    let Some(control) = &set.control else {
        return; // only the test driver can hold a stream
    };
    let (stream, base) = (set.stream.handle(), set.memory.base());
    let held = control.hold(stream.0);
    // SAFETY: the range is inside `set.memory`, which only this test uses; `words` waits for the work.
    unsafe { set.kernels.fill_pattern(stream, base, WORDS, 1) }.unwrap();
    assert!(!set.stream.is_idle().unwrap());
    let mut word = [1; 8];
    set.memory.read(0, &mut word).unwrap();
    assert_eq!(word, [0; 8], "a held kernel ran");
    drop(held);
    assert_eq!(set.words(0, 1), [pattern(1, 0)]);
}

/// Runs on the test driver only: on a GPU it would end the context of the whole process.
#[test]
fn an_address_that_is_none_ends_the_context() {
    let host = vec![0u64; 16];
    type Choice<'a> = &'a dyn Fn(u64) -> (u64, u64);
    let wrong: [(&str, Choice<'_>); 4] = [
        ("behind what is mapped", &|base| (base + BYTES, 1)),
        ("over its end", &|base| (base + BYTES - 8, 2)),
        ("not aligned", &|base| (base + 4, 1)),
        ("the host's", &|_| (host.as_ptr() as u64, 16)),
    ];
    for (what, choose) in wrong {
        let set = Set::new();
        if set.control.is_none() {
            return;
        }
        let (address, words) = choose(set.memory.base());
        let stream = set.stream.handle();
        // SAFETY: the address is wrong on purpose. This runs on the test driver only, which checks addresses before it writes.
        unsafe { set.kernels.scribble(stream, address, words, 1) }.unwrap();
        let error = set.stream.synchronize().unwrap_err();
        assert!(error.is_lost(), "{what}: {error}");
    }
    assert_eq!(host, [0; 16]);
}

/// The test driver refuses a text with other entries than it knows. This test lists them, so that it fails when either
/// changes.
#[test]
fn the_text_declares_what_the_test_driver_does() {
    let text = rgaps_kernels::PTX.to_str().expect("PTX is text");
    let entries: Vec<(String, usize)> = text
        .split(".entry ")
        .skip(1)
        .map(|entry| {
            let (name, rest) = entry.split_once('(').expect("a list of parameters");
            let (list, _) = rest.split_once(')').expect("and its end");
            (name.to_owned(), list.matches(".param .u64").count())
        })
        .collect();
    let expected = [
        ("rgaps_fill_pattern", 3),
        ("rgaps_check_pattern", 4),
        ("rgaps_spin", 1),
        ("rgaps_spin_fill", 4),
        ("rgaps_copy", 3),
        ("rgaps_scribble", 3),
        ("rgaps_stamp", 1),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(entries, expected);
    assert!(text.contains(".target sm_70") && text.contains(".version 6.3"));
    assert!(!text.contains('\0'));
}

#[test]
fn stamps_tell_the_time_in_order() {
    let set = Set::new();
    let (stream, base) = (set.stream.handle(), set.memory.base());
    // SAFETY: both words are inside `set.memory`, which only this test uses; `words` waits for the work.
    unsafe {
        set.kernels.stamp(stream, base).unwrap();
        set.kernels.spin(stream, 2_000_000).unwrap();
        set.kernels.stamp(stream, base + 8).unwrap();
    }
    let stamps = set.words(0, 2);
    assert!(
        stamps[0] > 0 && stamps[1] >= stamps[0] + 2_000_000,
        "{stamps:?}"
    );
}
