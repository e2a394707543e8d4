//! The conformance suite on host memory of each provider, and tests of what only host memory has: seals, huge pages, NUMA.

use crate::conformance::{run_all, Fixture};
use crate::memfd::{create_memfd, HUGE_BYTES};
use crate::segment::{Access, Mapping, PageSize, PoolError, Provider, Segment, SegmentSource};
use crate::{
    create_sealed_memfd, verify_memfd, HostConfig, HostMapping, HostSource, HugePages, SharedMap,
};
use rgaps_layout::{GRANULE_BYTES, SEGMENT_UNIT_BYTES};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};

fn host(config: HostConfig) -> Fixture {
    Fixture {
        source: Box::new(HostSource::new(config)),
        mapping: Box::new(|cap, access| Ok(Box::new(HostMapping::new(cap, access)?) as _)),
        foreign: foreign_memfds(SEGMENT_UNIT_BYTES),
    }
}

fn sealed_with(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = create_memfd("rgaps-test", bytes, MemfdFlags::empty()).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// memfds that each differ from a segment of `bytes` bytes in one property.
fn foreign_memfds(bytes: u64) -> Vec<(&'static str, OwnedFd)> {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let shrunk = create_memfd("rgaps-test", bytes, MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&shrunk, bytes / 2).unwrap();
    let unlinked = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let tmpfs = rustix::fs::open("/dev/shm", unlinked, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::fs::ftruncate(&tmpfs, bytes).unwrap();
    vec![
        (
            "an unsealed memfd",
            create_memfd("rgaps-test", bytes, MemfdFlags::empty()).unwrap(),
        ),
        (
            "a memfd that can shrink",
            sealed_with(bytes, SealFlags::GROW | SealFlags::SEAL),
        ),
        (
            "a memfd that can grow",
            sealed_with(bytes, SealFlags::SHRINK | SealFlags::SEAL),
        ),
        (
            "a memfd that can be sealed",
            sealed_with(bytes, SealFlags::SHRINK | SealFlags::GROW),
        ),
        (
            "a memfd nobody can write",
            sealed_with(bytes, all | SealFlags::WRITE),
        ),
        ("a shrunk memfd", shrunk),
        (
            "a memfd shrunk before it was sealed",
            sealed_with(bytes / 2, all),
        ),
        (
            "a memfd that is too large",
            sealed_with(bytes + SEGMENT_UNIT_BYTES, all),
        ),
        ("a file in a tmpfs", tmpfs),
    ]
}

#[test]
fn host_memory_conforms() {
    run_all(&mut || host(HostConfig::default()));
}

#[test]
fn prefaulted_memory_conforms() {
    run_all(&mut || {
        host(HostConfig {
            prefault: true,
            ..HostConfig::default()
        })
    });
}

#[test]
fn huge_pages_or_their_fallback_conform() {
    run_all(&mut || {
        host(HostConfig {
            huge_pages: HugePages::Try,
            ..HostConfig::default()
        })
    });
}

#[test]
fn memory_on_a_node_conforms() {
    run_all(&mut || {
        host(HostConfig {
            numa_node: Some(0),
            ..HostConfig::default()
        })
    });
}

/// A configuration with this provider. None: this machine lacks it; then prints why the test is skipped.
fn provided(provider: Provider) -> Option<HostConfig> {
    let config = HostConfig {
        provider,
        ..HostConfig::default()
    };
    match HostSource::new(config).create(SEGMENT_UNIT_BYTES) {
        Ok(_) => Some(config),
        Err(error) => {
            println!("left out: {}: {error}", provider.name());
            None
        }
    }
}

fn provider_conforms(provider: Provider) {
    let Some(config) = provided(provider) else {
        return;
    };
    run_all(&mut || host(config));
    run_all(&mut || {
        host(HostConfig {
            numa_node: Some(0),
            huge_pages: HugePages::Try,
            ..config
        })
    });
    let mut source = HostSource::new(config);
    let segment = source.create(2 * SEGMENT_UNIT_BYTES).unwrap();
    assert_eq!(segment.placement.provider, Some(provider));
    assert!(segment.inode != 0);
    // Neither truncating nor punching a hole can remove pages.
    assert!(rustix::fs::ftruncate(&segment.fd, SEGMENT_UNIT_BYTES).is_err());
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&segment.fd, punch, 0, SEGMENT_UNIT_BYTES).is_err());
    write_everywhere(&segment);
    source.discard(&segment, 0, SEGMENT_UNIT_BYTES);
    let mapping = HostMapping::new(segment.bytes, Access::ReadOnly).unwrap();
    mapping.extend(segment.fd.as_fd(), segment.bytes).unwrap();
    let mut found = vec![0; segment.bytes as usize];
    mapping.read(0, &mut found).unwrap();
    assert!(
        found.iter().all(|byte| *byte == 0xa5),
        "pages of a dma-buf stay"
    );

    // A daemon configured with another provider adopts the segment, and reports the segment's own provider.
    let mut successor = HostSource::new(HostConfig::default());
    let adopted = successor
        .adopt(
            segment.fd.try_clone().unwrap(),
            segment.bytes,
            segment.inode,
        )
        .unwrap();
    assert_eq!(adopted.placement.provider, Some(provider));
    successor.discard(&adopted, 0, SEGMENT_UNIT_BYTES);
    mapping.read(0, &mut found).unwrap();
    assert!(
        found.iter().all(|byte| *byte == 0xa5),
        "pages of a dma-buf stay"
    );
    let file = HostSource::new(HostConfig::default())
        .create(SEGMENT_UNIT_BYTES)
        .unwrap();
    let adopted = source.adopt(file.fd, file.bytes, file.inode).unwrap();
    assert_eq!(adopted.placement.provider, Some(Provider::Memfd));
}

#[test]
fn udmabuf_conforms() {
    provider_conforms(Provider::Udmabuf);
}

#[test]
fn dmaplane_conforms() {
    provider_conforms(Provider::Dmaplane);
}

#[test]
fn the_kernel_keeps_the_quota_of_a_pool_also_after_it_was_adopted() {
    let Some(config) = provided(Provider::Dmaplane) else {
        return;
    };
    let config = HostConfig {
        quota_bytes: Some(2 * SEGMENT_UNIT_BYTES),
        huge_pages: HugePages::Try,
        ..config
    };
    let mut source = HostSource::new(config);
    let segment = source.create(2 * SEGMENT_UNIT_BYTES).unwrap();
    let refused = source.create(SEGMENT_UNIT_BYTES).unwrap_err().to_string();
    assert!(
        refused.contains("ALLOC") && refused.contains("limit"),
        "{refused}"
    );
    let pages = segment.placement.pages;
    drop(source);
    let mut successor = HostSource::new(config);
    let adopted = successor
        .adopt(segment.fd, segment.bytes, segment.inode)
        .unwrap();
    assert_eq!(adopted.placement.pages, pages);
    assert!(successor.create(SEGMENT_UNIT_BYTES).is_err());
    drop(adopted);
    successor.create(SEGMENT_UNIT_BYTES).unwrap();
}

#[test]
fn memory_of_the_module_is_on_the_node_that_was_asked_for() {
    let Some(config) = provided(Provider::Dmaplane) else {
        return;
    };
    let on = |node| {
        let config = HostConfig {
            numa_node: Some(node),
            ..config
        };
        let segment = HostSource::new(config).create(SEGMENT_UNIT_BYTES).unwrap();
        segment.placement
    };
    let there = on(0);
    let numa = there.numa.unwrap();
    assert!(
        numa.sampled > 0 && numa.on_node == numa.sampled,
        "{there:?}"
    );
    let absent = on(999);
    assert_eq!(absent.numa.unwrap().on_node, 0);
    assert!(
        absent.warnings.iter().any(|w| w.contains("999")),
        "{absent:?}"
    );
}

#[test]
fn huge_pages_that_a_provider_does_not_map_are_refused_or_told() {
    let Some(config) = provided(Provider::Udmabuf) else {
        return;
    };
    let with = |huge_pages| {
        HostSource::new(HostConfig {
            huge_pages,
            ..config
        })
        .create(SEGMENT_UNIT_BYTES)
    };
    let refused = with(HugePages::Require).unwrap_err().to_string();
    assert!(refused.contains("pool.host.hugepages"), "{refused}");
    let warnings = with(HugePages::Try).unwrap().placement.warnings;
    assert!(warnings[0].contains("udmabuf"), "{warnings:?}");
}

/// The kernel itself refuses it with EINVAL, without a reason.
#[test]
fn a_dma_buf_above_the_kernels_limit_is_refused_with_the_limit() {
    let Some(config) = provided(Provider::Udmabuf) else {
        return;
    };
    let refused = HostSource::new(config)
        .create(1 << 40)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("size_limit_mb"), "{refused}");
}

fn write_everywhere(segment: &Segment) {
    let mapping = HostMapping::new(segment.bytes, Access::ReadWrite).unwrap();
    mapping.extend(segment.fd.as_fd(), segment.bytes).unwrap();
    let bytes = vec![0xa5; segment.bytes as usize];
    mapping.write(0, &bytes).unwrap();
    let mut found = vec![0; segment.bytes as usize];
    mapping.read(0, &mut found).unwrap();
    assert!(bytes == found);
}

fn allocated_bytes(segment: &Segment) -> u64 {
    rustix::fs::fstat(&segment.fd).unwrap().st_blocks as u64 * 512
}

#[test]
fn tried_huge_pages_are_had_or_explained() {
    let config = HostConfig {
        huge_pages: HugePages::Try,
        ..HostConfig::default()
    };
    let segment = HostSource::new(config)
        .create(2 * SEGMENT_UNIT_BYTES)
        .unwrap();
    match segment.placement.pages {
        PageSize::Huge(bytes) => {
            assert_eq!(bytes, HUGE_BYTES);
            assert_eq!(segment.placement.warnings, Vec::<String>::new());
            assert_eq!(
                allocated_bytes(&segment),
                segment.bytes,
                "huge pages are not there yet"
            );
        }
        PageSize::Base => {
            let warnings = &segment.placement.warnings;
            assert!(
                warnings.iter().any(|w| w.contains("vm.nr_hugepages")),
                "{warnings:?}"
            );
        }
        PageSize::Device => panic!("host memory is no device memory"),
    }
    write_everywhere(&segment);
}

fn huge_pages_in_system() -> u64 {
    let read = |name: &str| -> u64 {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
        std::fs::read_to_string(path)
            .ok()
            .and_then(|t| t.trim().parse().ok())
            .unwrap_or(0)
    };
    read("nr_hugepages") + read("nr_overcommit_hugepages")
}

#[test]
fn more_huge_pages_than_there_are_is_an_error_or_a_fallback() {
    // More by a margin, since another test may change the number meanwhile.
    let bytes = (huge_pages_in_system() + 64) * HUGE_BYTES;
    let config = HostConfig {
        huge_pages: HugePages::Require,
        ..HostConfig::default()
    };
    let refused = HostSource::new(config)
        .create(bytes)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("vm.nr_hugepages"), "{refused}");

    let config = HostConfig {
        huge_pages: HugePages::Try,
        ..HostConfig::default()
    };
    let segment = HostSource::new(config).create(bytes).unwrap();
    assert_eq!(segment.placement.pages, PageSize::Base);
    assert_eq!(segment.placement.warnings.len(), 1);
    assert_eq!(
        allocated_bytes(&segment),
        0,
        "the fallback takes memory that nobody touched"
    );
}

#[test]
fn a_node_that_exists_is_verified() {
    let config = HostConfig {
        numa_node: Some(0),
        ..HostConfig::default()
    };
    let segment = HostSource::new(config)
        .create(4 * SEGMENT_UNIT_BYTES)
        .unwrap();
    assert_eq!(
        allocated_bytes(&segment),
        segment.bytes,
        "only memory that is there can be checked"
    );
    let numa = segment.placement.numa.expect("a node was asked for");
    assert_eq!(numa.asked, 0);
    // If the kernel or the sandbox does not support NUMA, there is a warning instead.
    if segment.placement.warnings.is_empty() {
        assert!(numa.sampled > 0 && numa.on_node == numa.sampled, "{numa:?}");
    }
}

#[test]
fn a_node_that_does_not_exist_is_a_warning() {
    for node in [999, 1_000_000] {
        let config = HostConfig {
            numa_node: Some(node),
            ..HostConfig::default()
        };
        let segment = HostSource::new(config).create(SEGMENT_UNIT_BYTES).unwrap();
        let warnings = &segment.placement.warnings;
        assert!(
            warnings.iter().any(|w| w.contains(&node.to_string())),
            "{warnings:?}"
        );
        assert_eq!(segment.placement.numa.unwrap().on_node, 0);
        write_everywhere(&segment);
    }
}

#[test]
fn without_numa_calls_there_are_warnings_and_memory() {
    let segment = in_sandbox(
        &[(libc::SYS_mbind, None), (libc::SYS_move_pages, None)],
        || {
            let config = HostConfig {
                numa_node: Some(0),
                ..HostConfig::default()
            };
            HostSource::new(config).create(SEGMENT_UNIT_BYTES).unwrap()
        },
    );
    let warnings = segment.placement.warnings.join("\n");
    assert!(
        warnings.contains("mbind") && warnings.contains("move_pages"),
        "{warnings}"
    );
    assert_eq!(segment.placement.numa.unwrap().sampled, 0);
    write_everywhere(&segment);
}

#[test]
fn a_kernel_without_noexec_seals_will_do() {
    const MFD_NOEXEC_SEAL: u32 = 8;
    let fd = in_sandbox(&[(libc::SYS_memfd_create, Some(MFD_NOEXEC_SEAL))], || {
        create_sealed_memfd("rgaps-test", SEGMENT_UNIT_BYTES).unwrap()
    });
    verify_memfd(fd.as_fd(), SEGMENT_UNIT_BYTES).unwrap();
}

#[test]
fn prefault_beyond_the_memory_is_refused_before_it_is_taken() {
    let config = HostConfig {
        prefault: true,
        ..HostConfig::default()
    };
    let refused = HostSource::new(config).create(1 << 40).unwrap_err();
    match refused {
        PoolError::System {
            call: "fallocate",
            source,
            ..
        } => {
            assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn discarded_memory_goes_back_to_the_system() {
    let mut source = HostSource::new(HostConfig::default());
    let segment = source.create(4 * SEGMENT_UNIT_BYTES).unwrap();
    assert_eq!(
        allocated_bytes(&segment),
        0,
        "a segment takes memory before it is touched"
    );
    write_everywhere(&segment);
    assert_eq!(allocated_bytes(&segment), segment.bytes);
    source.discard(&segment, GRANULE_BYTES, 2 * GRANULE_BYTES);
    assert_eq!(
        allocated_bytes(&segment),
        4 * SEGMENT_UNIT_BYTES - 2 * GRANULE_BYTES
    );
}

#[test]
fn prefaulted_memory_is_not_given_back() {
    let mut source = HostSource::new(HostConfig {
        prefault: true,
        ..HostConfig::default()
    });
    let segment = source.create(2 * SEGMENT_UNIT_BYTES).unwrap();
    assert_eq!(allocated_bytes(&segment), segment.bytes);
    source.discard(&segment, 0, SEGMENT_UNIT_BYTES);
    assert_eq!(allocated_bytes(&segment), segment.bytes);
}

#[test]
fn a_sealed_memfd_cannot_be_resized_or_sealed() {
    let fd = create_sealed_memfd("rgaps-test", 16 << 30).unwrap();
    let inode = verify_memfd(fd.as_fd(), 16 << 30).unwrap();
    assert_eq!(
        verify_memfd(fd.try_clone().unwrap().as_fd(), 16 << 30).unwrap(),
        inode
    );
    assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
    assert!(rustix::fs::ftruncate(&fd, 32 << 30).is_err());
    assert!(rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).is_err());
    for (what, foreign) in foreign_memfds(SEGMENT_UNIT_BYTES) {
        let refused = verify_memfd(foreign.as_fd(), SEGMENT_UNIT_BYTES);
        assert!(
            matches!(refused, Err(PoolError::Untrusted(_))),
            "{what}: {refused:?}"
        );
    }
}

#[test]
fn shared_maps_see_each_other_in_sixteen_sparse_gibibytes() {
    let bytes = 16 << 30;
    let fd = create_sealed_memfd("rgaps-test", bytes).unwrap();
    let writer = SharedMap::new(fd.as_fd(), bytes, Access::ReadWrite).unwrap();
    let reader = SharedMap::new(fd.as_fd(), bytes, Access::ReadOnly).unwrap();
    assert_eq!((writer.bytes(), reader.access()), (bytes, Access::ReadOnly));
    assert_ne!(writer.base(), reader.base());
    let last = bytes as usize - 8;
    // SAFETY: both offsets are inside both maps and aligned; nobody else has the memfd.
    unsafe {
        writer
            .base()
            .as_ptr()
            .add(last)
            .cast::<u64>()
            .write_volatile(0x1234_5678);
        assert_eq!(
            reader
                .base()
                .as_ptr()
                .add(last)
                .cast::<u64>()
                .read_volatile(),
            0x1234_5678
        );
    }
    drop(writer);
    drop(reader);
    assert!(SharedMap::new(fd.as_fd(), bytes - 4096, Access::ReadOnly).is_err());
}

/// Whether the mapping that starts at `base` has the flag `flag` in `/proc/self/smaps`.
fn has_flag(base: u64, flag: &str) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{base:x}-");
    let entry = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = entry
        .into_iter()
        .find(|line| line.starts_with("VmFlags:"))
        .expect("a mapping");
    flags.split_whitespace().any(|word| word == flag)
}

#[test]
fn children_and_core_dumps_get_no_mapping() {
    let segment = HostSource::new(HostConfig::default())
        .create(SEGMENT_UNIT_BYTES)
        .unwrap();
    let mapping = HostMapping::new(4 * SEGMENT_UNIT_BYTES, Access::ReadWrite).unwrap();
    assert!(has_flag(mapping.base(), "dc") && has_flag(mapping.base(), "dd"));
    mapping
        .extend(segment.fd.as_fd(), SEGMENT_UNIT_BYTES)
        .unwrap();
    let behind = mapping.base() + SEGMENT_UNIT_BYTES;
    assert!(has_flag(mapping.base(), "dc") && has_flag(mapping.base(), "dd"));
    assert!(has_flag(behind, "dc") && has_flag(behind, "dd"));
    let map = SharedMap::new(segment.fd.as_fd(), SEGMENT_UNIT_BYTES, Access::ReadOnly).unwrap();
    let base = map.base().as_ptr().addr() as u64;
    assert!(has_flag(base, "dc") && has_flag(base, "dd"));
}

#[test]
fn a_large_pool_is_aligned_for_giant_pages_and_dropped_whole() {
    let mapping = HostMapping::new(1 << 40, Access::ReadOnly).unwrap();
    let base = mapping.base();
    assert_eq!(base % (1 << 30), 0);
    assert_eq!(mapping.cap(), 1 << 40);
    drop(mapping);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(
        !maps
            .lines()
            .any(|line| line.starts_with(&format!("{base:x}-"))),
        "still reserved"
    );
    assert_eq!(
        HostMapping::new(1, Access::ReadOnly).unwrap().cap(),
        SEGMENT_UNIT_BYTES
    );
}

/// Runs `work` on a thread with a seccomp filter under which the `denied` system calls fail: with EPERM, or,
/// if flags are given, with EINVAL when the second argument contains one of the flags.
fn in_sandbox<T: Send>(denied: &[(i64, Option<u32>)], work: impl FnOnce() -> T + Send) -> T {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Offset of the low word of the second argument in `seccomp_data`, on little-endian machines.
    const SECOND_ARGUMENT: u32 = 24;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let fail = |errno: i32| op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32);
    let mut program = Vec::new();
    for (call, flags) in denied {
        program.push(op(LOAD, 0, 0, 0));
        match flags {
            None => {
                program.push(op(EQUAL, 0, 1, *call as u32));
                program.push(fail(libc::EPERM));
            }
            Some(flags) => {
                program.push(op(EQUAL, 0, 3, *call as u32));
                program.push(op(LOAD, 0, 0, SECOND_ARGUMENT));
                program.push(op(ANY, 0, 1, *flags));
                program.push(fail(libc::EINVAL));
            }
        }
    }
    program.push(op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let install = move || {
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: the filter and its program are live during the calls, and bind this thread only.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER;
            assert_eq!(
                libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter, 0, 0),
                0
            );
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            install();
            work()
        });
        thread.join().expect("the sandboxed thread finishes")
    })
}
