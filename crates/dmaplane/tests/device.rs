//! Calls on the real devices, where the module is loaded (`make test-providers`). Elsewhere each test prints why it is left
//! out.

use rgaps_dmaplane::{
    Access, BufferKind, Device, Error, LoopbackParams, NumaBenchParams, Realm, RingEntry,
    SubmitParams, SustainedParams, SweepParams, Wanted,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd};

const MIB: u64 = 1 << 20;

/// The opened device; `None` if it cannot be opened. Other errors fail the test.
fn present<T>(opened: Result<T, Error>) -> Option<T> {
    match opened {
        Ok(opened) => Some(opened),
        Err(Error::Open { source, hint, .. }) => {
            assert!(hint.contains("docs/how-to/dmaplane.md"), "{hint}");
            println!("left out: {source}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn errno<T: std::fmt::Debug>(refused: Result<T, Error>) -> Errno {
    Errno::from_raw_os_error(refused.unwrap_err().errno().expect("a call's error"))
}

/// Writes a word at the beginning of a dma-buf and returns what was there.
fn exchange(dma_buf: BorrowedFd<'_>, bytes: u64, word: u64) -> u64 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is given, so no mapping is replaced. The range is mapped until `munmap`, begins at a page, and is
    // not revoked meanwhile: this test has the only realm.
    unsafe {
        let at = rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            access,
            MapFlags::SHARED,
            dma_buf,
            0,
        )
        .expect("a dma-buf can be mapped");
        let found = at.cast::<u64>().read_volatile();
        at.cast::<u64>().write_volatile(word);
        rustix::mm::munmap(at, bytes as usize).unwrap();
        found
    }
}

#[test]
fn a_channel_adds_one() {
    let Some(device) = present(Device::open()) else {
        return;
    };
    device.create_channel().unwrap();
    assert_eq!(errno(device.create_channel()), Errno::BUSY);
    let entry = RingEntry {
        payload: 41,
        ..RingEntry::default()
    };
    device.submit(SubmitParams { entry }).unwrap();
    assert_eq!(
        device.complete(Default::default()).unwrap().entry.payload,
        42
    );
    assert_eq!(device.stats().unwrap().total_completions, 1);
}

#[test]
fn a_dma_buf_outlives_its_buffer_and_file() {
    let Some(device) = present(Device::open()) else {
        return;
    };
    let buffer = device.buffer(BufferKind::Pages, MIB, Some(0)).unwrap();
    assert_eq!(buffer.actual_numa_node, 0);
    let dma_buf = device.export_dmabuf(buffer.buf_id).unwrap();
    assert_eq!(errno(device.destroy_buffer(buffer.buf_id)), Errno::BUSY);
    let coherent = device.buffer(BufferKind::Coherent, 4096, None).unwrap();
    assert_eq!(errno(device.export_dmabuf(coherent.buf_id)), Errno::INVAL);
    device.destroy_buffer(coherent.buf_id).unwrap();
    assert_eq!(errno(device.destroy_buffer(coherent.buf_id)), Errno::NOENT);
    drop(device);
    assert_eq!(exchange(dma_buf.as_fd(), MIB, 7), 0);
    assert_eq!(exchange(dma_buf.as_fd(), MIB, 8), 7);
}

#[test]
fn every_pair_of_nodes_is_measured() {
    let Some(device) = present(Device::open()) else {
        return;
    };
    let topology = device.numa_topology().unwrap();
    let measured = device
        .numa_bench(NumaBenchParams {
            buffer_size: MIB,
            iterations: 2,
            ..NumaBenchParams::default()
        })
        .unwrap();
    assert_eq!(measured.nr_nodes, topology.nr_nodes);
    assert!(measured.bw_mbps[0][0] > 0 && measured.lat_ns[0][0] > 0);
}

#[test]
fn streams_run_on_an_rdma_device() {
    let Some(device) = present(Device::open()) else {
        return;
    };
    assert_eq!(
        errno(device.loopback(LoopbackParams::default())),
        Errno::NOTCONN
    );
    assert!(device.connect("none", 1, 0, 0).is_err());
    let Err(absent) = device.connect("rxe0", 1, 64, 32) else {
        return stream(&device);
    };
    println!("left out: {absent}");
}

fn stream(device: &Device) {
    let buffer = device.buffer(BufferKind::Pages, MIB, None).unwrap();
    let access = Access {
        local_write: true,
        ..Access::default()
    };
    let region = device.register(buffer.buf_id, access).unwrap();
    let found = device
        .sustained_stream(SustainedParams {
            mr_id: region.mr_id,
            msg_size: 4096,
            queue_depth: 8,
            duration_secs: 1,
            ..SustainedParams::default()
        })
        .unwrap();
    assert_eq!(found.total_bytes, 4096 * found.total_ops);
    assert!(found.total_ops > 0 && found.cq_overflow_count == 0);
    let found = device
        .qdepth_sweep(SweepParams {
            mr_id: region.mr_id,
            msg_size: 4096,
            iterations: 50,
            min_qdepth: 1,
            max_qdepth: 16,
            step: 5,
            ..SweepParams::default()
        })
        .unwrap();
    assert_eq!(found.nr_points, 4);
    assert!((1..=16).contains(&found.saturation_qdepth));
    device.teardown_rdma().unwrap();
    assert_eq!(errno(device.teardown_rdma()), Errno::NOTCONN);
}

#[test]
fn a_realm_keeps_its_quota() {
    let Some(realm) = present(Realm::open()) else {
        return;
    };
    let wanted = Wanted {
        bytes: 2 * MIB,
        node: Some(0),
        ..Wanted::default()
    };
    assert_eq!(errno(realm.alloc(&wanted)), Errno::DQUOT);
    realm.set_quota(4 * MIB).unwrap();
    let first = realm.alloc(&wanted).unwrap();
    assert_eq!((first.actual_node, first.nodes), (Some(0), 1));
    let second = realm.alloc(&wanted).unwrap();
    assert_eq!(errno(realm.alloc(&wanted)), Errno::DQUOT);
    let usage = realm.usage().unwrap();
    assert_eq!(usage.used_bytes, 4 * MIB);
    assert_eq!((usage.quota_bytes, usage.buffers), (4 * MIB, 2));
    drop(second);
    assert_eq!(realm.usage().unwrap().used_bytes, 2 * MIB);
    let refused = realm.alloc(&Wanted {
        node: Some(u32::MAX),
        ..wanted
    });
    assert_eq!(errno(refused), Errno::INVAL);
    let info = realm.info(first.dma_buf.as_fd()).unwrap();
    assert_eq!(
        (info.bytes, info.is_mine, info.is_revoked),
        (2 * MIB, true, false)
    );
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(errno(realm.info(null.as_fd())), Errno::INVAL);
}

#[test]
fn memory_is_adopted_with_its_bytes_and_taken_back() {
    let Some(realm) = present(Realm::open()) else {
        return;
    };
    realm.set_quota(2 * MIB).unwrap();
    let wanted = Wanted {
        bytes: 2 * MIB,
        huge: true,
        ..Wanted::default()
    };
    let made = realm.alloc(&wanted).unwrap();
    assert_eq!(made.block_bytes, 2 * MIB);
    exchange(made.dma_buf.as_fd(), 2 * MIB, 9);
    let successor = Realm::open().unwrap();
    successor.set_quota(2 * MIB).unwrap();
    assert_eq!(errno(successor.adopt(made.dma_buf.as_fd())), Errno::BUSY);
    drop(realm);
    successor.adopt(made.dma_buf.as_fd()).unwrap();
    assert_eq!(successor.usage().unwrap().used_bytes, 2 * MIB);
    assert_eq!(exchange(made.dma_buf.as_fd(), 2 * MIB, 0), 9);
    // SAFETY: `exchange` has unmapped it, so nobody in this process accesses the memory.
    let importers = unsafe { successor.revoke(made.dma_buf.as_fd()) };
    assert_eq!(importers.unwrap(), 0);
    let info = successor.info(made.dma_buf.as_fd()).unwrap();
    assert!(info.is_revoked && info.is_freed);
    assert_eq!(successor.usage().unwrap().used_bytes, 0);
}
