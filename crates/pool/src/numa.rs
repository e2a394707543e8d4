//! Asks the kernel for memory on a NUMA node, and verifies on which node the pages are.

use crate::segment::Numa;
use crate::shared_map::SharedMap;
use libc::c_long;
use std::io;

/// The most pages of a segment that are sampled, evenly spread.
const SAMPLES: u64 = 64;
/// The bits of a node mask: the most nodes that a kernel can be configured for.
const MAX_NODES: usize = 1024;

/// Asks the kernel to allocate the file's pages on `node`. A memfd keeps the policy after the mapping
/// ends, so it also holds for pages that other processes touch first.
///
/// The node is preferred (`MPOL_PREFERRED`), not bound: with a bound policy, a full node starts the OOM
/// killer. A page on another node is only slower, and [`verify`] reports it.
pub(crate) fn prefer(map: &SharedMap, node: u32) -> Result<(), String> {
    let unknown = || unknown(node);
    let mut mask = [0u64; MAX_NODES / 64];
    *mask.get_mut(node as usize / 64).ok_or_else(unknown)? = 1 << (node % 64);
    // Every argument has a register's width: the upper bits of a narrower one would be undefined.
    // SAFETY: mbind reads `maxnode - 1` bits, which is the length of the mask, and sets a policy on a
    // range that stays mapped while `map` lives.
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

/// Samples pages of a mapping and counts those on node `asked`. Returns a warning if some are not. The
/// caller has allocated the pages (`fallocate`), so reading them here raises no SIGBUS.
pub(crate) fn verify(map: &SharedMap, asked: u32, page_bytes: u64) -> (Numa, Option<String>) {
    let pages = map.bytes() / page_bytes;
    let count = pages.min(SAMPLES);
    let addresses: Vec<*mut u8> = (0..count)
        .map(|i| {
            let offset = (i * pages / count) * page_bytes;
            // SAFETY: `offset` is below the mapping's length.
            let address = unsafe { map.base().as_ptr().add(offset as usize) };
            // move_pages only finds pages in this process's page table, so each is read first.
            // SAFETY: the address lies in the mapping, which `map` keeps, and the caller has allocated its page, so the
            // read raises no SIGBUS.
            unsafe { std::ptr::read_volatile(address) };
            address
        })
        .collect();
    let mut status = vec![-1i32; addresses.len()];
    // SAFETY: both arrays have `count` entries; without target nodes the call moves nothing and writes the
    // node of each page to `status`.
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

/// A warning that a node does not exist, with the nodes that do.
pub(crate) fn unknown(node: u32) -> String {
    format!("NUMA node {node} does not exist here{}", online())
}

fn online() -> String {
    match std::fs::read_to_string("/sys/devices/system/node/online") {
        Ok(nodes) => format!("; online are {}", nodes.trim()),
        Err(_) => String::new(),
    }
}
