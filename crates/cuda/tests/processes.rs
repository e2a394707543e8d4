//! One segment shared by several processes.
mod support;

use rgaps_cuda::{CudaMapping, CudaSource, Driver, LIBRARY_ENV};
use rgaps_pool::{Access, Mapping, SegmentSource};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use support::{cuda_code, read, Gpu, UNIT};

const FD_ENV: &str = "RGAPS_TEST_SEGMENT_FD";

/// Runs the ignored test `name` of this program in a process that inherits the descriptor. The process
/// loads its own driver, in which the GPU has another ordinal.
fn child(name: &str, segment: BorrowedFd<'_>) -> (ExitStatus, String) {
    // The copy has no close-on-exec flag, unlike the original.
    let inherited = rustix::io::dup(segment).expect("a descriptor can be duplicated");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(LIBRARY_ENV, rgaps_test_driver::library())
        .env("RGAPS_TEST_DRIVER_DEVICES", "2")
        .env("CUDA_VISIBLE_DEVICES", "1,0")
        .env(FD_ENV, inherited.as_raw_fd().to_string())
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (
        output.status,
        text + &String::from_utf8_lossy(&output.stderr),
    )
}

/// In the child: its driver, the GPU of the segment, and the inherited descriptor.
fn inherited() -> (std::sync::Arc<Driver>, rgaps_layout::GpuUuid, OwnedFd) {
    let number = std::env::var(FD_ENV).unwrap().parse().unwrap();
    // SAFETY: this process inherited the descriptor from its parent, and nothing else here uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    let driver = Driver::load().unwrap();
    let device = driver.devices().unwrap().remove(1);
    assert_eq!(device.uuid.0[15], 0, "GPU 0 of the parent is GPU 1 here");
    (driver, device.uuid, fd)
}

#[test]
fn a_segment_is_the_same_memory_in_two_processes() {
    let gpu = Gpu::new("");
    let (mapping, segment) = gpu.pool(Access::ReadWrite);
    mapping.write(UNIT - 1000, &[5; 1000]).unwrap();
    let (status, text) = child("child_reads_and_answers", segment.fd.as_fd());
    assert!(status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(
        read(&mapping, 0, 1000),
        [6; 1000],
        "the child's answer is not there"
    );
}

#[test]
#[ignore = "run by a_segment_is_the_same_memory_in_two_processes"]
fn child_reads_and_answers() {
    let (driver, uuid, fd) = inherited();
    let mapping = CudaMapping::new(driver.clone(), uuid, UNIT, Access::ReadWrite).unwrap();
    mapping.extend(fd.as_fd(), UNIT).unwrap();
    assert_eq!(read(&mapping, UNIT - 1000, 1000), [5; 1000]);
    mapping.write(0, &[6; 1000]).unwrap();
    // Adopts the segment, as a daemon does after an earlier one died.
    let mut source = CudaSource::new(driver, uuid).unwrap();
    source.adopt(fd, UNIT, 0).unwrap();
}

#[test]
fn a_write_through_a_read_only_mapping_faults() {
    let gpu = Gpu::new("");
    let (mapping, segment) = gpu.pool(Access::ReadWrite);
    mapping.write(0, &[5; 100]).unwrap();
    let (status, text) = child("child_writes_where_it_may_not", segment.fd.as_fd());
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{text}");
    assert!(text.contains("about to write"), "{text}");
    assert_eq!(read(&mapping, 0, 100), [5; 100]);
}

#[test]
#[ignore = "run by a_write_through_a_read_only_mapping_faults"]
fn child_writes_where_it_may_not() {
    let (driver, uuid, fd) = inherited();
    let mapping = CudaMapping::new(driver, uuid, UNIT, Access::ReadOnly).unwrap();
    mapping.extend(fd.as_fd(), UNIT).unwrap();
    // The fault is intended, so it should leave no core file.
    // SAFETY: setrlimit reads one valid structure.
    unsafe {
        libc::setrlimit(
            libc::RLIMIT_CORE,
            &libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            },
        )
    };
    let byte = mapping.base() as *mut u8;
    // SAFETY: the byte is mapped readable.
    assert_eq!(unsafe { byte.read_volatile() }, 5);
    println!("about to write");
    // SAFETY: none: the byte is mapped read-only, and this write is meant to end the process.
    unsafe { byte.write_volatile(0) };
}

#[test]
fn a_forked_child_gets_errors() {
    let gpu = Gpu::new("");
    let (mapping, _segment) = gpu.pool(Access::ReadWrite);
    // SAFETY: the child only makes the calls under test, which take no lock that another thread could
    // hold, and exits without running destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let codes = [
            cuda_code(mapping.write(0, &[1])).1,
            cuda_code(mapping.read(0, &mut [0])).1,
            cuda_code(mapping.synchronize(rgaps_pool::Stream(0))).1,
        ];
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(if codes == [3, 3, 3] { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child, with an output of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(
        status, 0,
        "the child did not get CUDA_ERROR_NOT_INITIALIZED"
    );
    mapping.write(0, &[2]).expect("the parent is not disturbed");
}
