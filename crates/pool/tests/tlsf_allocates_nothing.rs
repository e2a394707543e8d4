//! `Tlsf` allocates no private memory when it allocates and frees blocks of messages.

use rgaps_pool::Tlsf;
use rgaps_testkit::{allocations, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const BLOCKS: usize = 4096;

#[test]
fn no_allocation_within_the_blocks_it_was_made_for() {
    let mut tlsf = Tlsf::with_blocks(BLOCKS as u32);
    tlsf.add_region(0, 1 << 30).unwrap();
    let mut used = Vec::with_capacity(BLOCKS);
    let before = allocations::of_this_thread();
    assert!(before > 0, "allocations are counted");
    for round in 0..8u64 {
        // Large alignments leave gaps, and so as many free blocks as possible.
        while used.len() < BLOCKS {
            let i = used.len() as u64;
            used.push(
                tlsf.allocate(i * 37 % 9_000, 256 << ((i + round) % 5))
                    .unwrap()
                    .handle,
            );
        }
        let mut kept = 0;
        used.retain(|handle| {
            kept += 1;
            kept % 3 == 0 || tlsf.free(*handle).is_err()
        });
    }
    assert_eq!(allocations::of_this_thread() - before, 0);
}
