//! Asking for a NUMA node, and looking whether it was had.

use crate::segment::Numa;
use crate::shared_map::SharedMap;
use libc::c_long;
use std::io;

/// Pages of a segment that are looked at, evenly spread.
const SAMPLES: u64 = 64;
/// Nodes that a node mask has room for, as the kernel's largest configuration.
const MAX_NODES: usize = 1024;

/// Asks the kernel to take the file's pages from `node`. The policy stays with a memfd when the
/// mapping is gone, so it holds for the pages that other processes touch first, too.
///
/// The node is preferred and not bound: with a bound policy a full node calls the OOM killer,
/// while a page from elsewhere is slower, counted and reported.
pub(crate) fn prefer(map: &SharedMap, node: u32) -> Result<(), String> {
    let unknown = || unknown(node);
    let mut mask = [0u64; MAX_NODES / 64];
    *mask.get_mut(node as usize / 64).ok_or_else(unknown)? = 1 << (node % 64);
    // Every argument has a register's width: what is above a narrower one is undefined.
    // SAFETY: mbind reads `maxnode - 1` bits of the mask, which are there, and sets a policy on a
    // range that is mapped as long as `map` lives.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            map.base().as_ptr(),
            map.bytes(),
            libc::MPOL_PREFERRED as c_long,
            mask.as_ptr(),
            MAX_NODES + 1,
            0 as c_long,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EINVAL) => unknown(),
        Some(libc::EPERM) => format!(
            "NUMA node {node} was not asked for: this sandbox forbids mbind \
             (grant CAP_SYS_NICE or allow it in the seccomp profile)"
        ),
        Some(libc::ENOSYS) => {
            format!("NUMA node {node} was not asked for: this kernel has no NUMA support")
        }
        _ => format!("NUMA node {node} was not asked for: mbind failed: {error}"),
    })
}

/// Counts how many of some sampled pages of a mapping are on node `asked`. The pages exist already
/// (`fallocate`): they are touched here, which must not raise SIGBUS.
pub(crate) fn verify(map: &SharedMap, asked: u32, page_bytes: u64) -> (Numa, Option<String>) {
    let pages = map.bytes() / page_bytes;
    let count = pages.min(SAMPLES);
    let addresses: Vec<*mut u8> = (0..count)
        .map(|i| {
            let offset = (i * pages / count) * page_bytes;
            // SAFETY: `offset` is below the mapping's length; the page is allocated.
            let address = unsafe { map.base().as_ptr().add(offset as usize) };
            // SAFETY: the address lies in the mapping, which `map` keeps, and its page is allocated, so this raises no
            // SIGBUS. Only a page that this process has in its page table is found.
            unsafe { std::ptr::read_volatile(address) };
            address
        })
        .collect();
    let mut status = vec![-1i32; addresses.len()];
    // SAFETY: both arrays have `count` entries; without target nodes nothing is moved, the node
    // of each page is written to `status`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0 as c_long,
            count,
            addresses.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0 as c_long,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        let warning = format!(
            "it is unknown whether the memory is on NUMA node {asked}: move_pages failed: {error} \
             (grant CAP_SYS_NICE or allow it in the seccomp profile)"
        );
        return (
            Numa {
                asked,
                sampled: 0,
                on_node: 0,
            },
            Some(warning),
        );
    }
    let sampled = status.iter().filter(|node| **node >= 0).count() as u32;
    let on_node = status.iter().filter(|node| **node == asked as i32).count() as u32;
    let warning = (on_node < sampled || sampled == 0).then(|| {
        format!(
            "{on_node} of {sampled} sampled pages are on NUMA node {asked}: it has too little free \
             memory (numactl --hardware shows it)"
        )
    });
    (
        Numa {
            asked,
            sampled,
            on_node,
        },
        warning,
    )
}

/// That a node does not exist, and which do.
pub(crate) fn unknown(node: u32) -> String {
    format!("NUMA node {node} does not exist here{}", online())
}

fn online() -> String {
    match std::fs::read_to_string("/sys/devices/system/node/online") {
        Ok(nodes) => format!("; online are {}", nodes.trim()),
        Err(_) => String::new(),
    }
}
