//! The allocator against a model that is too simple to be wrong: a map of intervals.

use super::*;
use crate::tlsf::headers::MAX_HEADERS;
use proptest::prelude::*;
use rgaps_layout::MAX_POOL_BYTES;
use std::ops::Range;

/// The most accesses to headers that one `allocate` or `free` may make in any state: the list
/// operations of four blocks, and the probes.
const LOOKS_MAX: u64 = 60;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Asserts the invariants of the internal state. Returns the free blocks.
fn check(tlsf: &Tlsf) -> Vec<Range<u64>> {
    let mut free = Vec::new();
    let (mut headers, mut used, mut last_end) = (0, 0, None);
    for (start, span) in &tlsf.spans {
        assert_ne!(last_end, Some(*start), "two spans that touch are not one");
        let (front, back) = span.edges();
        let (mut at, mut index, mut behind_free) = (*start, tlsf.headers[front].behind, false);
        assert_eq!(tlsf.headers[index].before, front);
        while index != back {
            let header = tlsf.headers[index];
            assert_eq!(
                u64::from(header.offset),
                at,
                "blocks leave a gap or overlap"
            );
            assert!(header.units > 0);
            assert_eq!(tlsf.headers[header.behind].before, index);
            match header.kind {
                Kind::Free => {
                    assert!(!behind_free, "two free neighbours were not merged");
                    free.push(at * UNIT..header.end() * UNIT);
                }
                Kind::Used => used += header.units,
                other => panic!("{other:?} between blocks"),
            }
            behind_free = header.kind == Kind::Free;
            (at, index, headers) = (header.end(), header.behind, headers + 1);
        }
        assert_eq!(at, span.end());
        (headers, last_end) = (headers + 2, Some(at));
    }
    let mut binned: Vec<_> = tlsf.bins.all_from(&tlsf.headers, 1);
    binned.sort_unstable_by_key(|index| tlsf.headers[*index].offset);
    let binned: Vec<_> = binned
        .into_iter()
        .map(|index| tlsf.headers[index])
        .inspect(|header| assert_eq!(header.kind, Kind::Free))
        .map(|header| u64::from(header.offset) * UNIT..header.end() * UNIT)
        .collect();
    assert_eq!(binned, free, "the bins hold other blocks than the spans");
    let stats = tlsf.stats();
    assert_eq!(stats.headers, headers, "headers leak");
    assert_eq!(stats.used_bytes, used * UNIT);
    assert_eq!(
        stats.free_bytes,
        free.iter().map(|r| r.end - r.start).sum::<u64>()
    );
    let largest = free.iter().map(|r| r.end - r.start).max().unwrap_or(0);
    assert_eq!(stats.largest_free_bytes, largest);
    free
}

/// The expected state: the free bytes as disjoint intervals that do not adjoin, and the allocated blocks.
#[derive(Default)]
struct Model {
    free: BTreeMap<u64, u64>,
    used: Vec<Allocation>,
    /// Handles that were freed.
    stale: Vec<u32>,
}

impl Model {
    fn insert_free(&mut self, mut start: u64, mut end: u64) {
        if let Some((left, left_end)) = self.free.range(..=start).next_back() {
            assert!(*left_end <= start, "freed twice");
            if *left_end == start {
                start = *left;
            }
        }
        if let Some(right_end) = self.free.remove(&end) {
            end = right_end;
        }
        self.free.insert(start, end);
    }

    /// Takes a range that must lie in one free interval.
    fn remove_free(&mut self, range: Range<u64>) {
        let inside = self
            .free
            .range(..=range.start)
            .next_back()
            .map(|(s, e)| (*s, *e));
        let (start, end) = inside.expect("a range that was never free was given out");
        assert!(
            end >= range.end,
            "{range:?} does not lie in free {start}..{end}"
        );
        self.free.remove(&start);
        if start < range.start {
            self.free.insert(start, range.start);
        }
        if range.end < end {
            self.free.insert(range.end, end);
        }
    }

    fn touches(&self, start: u64, end: u64) -> bool {
        let free = self
            .free
            .range(..end)
            .next_back()
            .is_some_and(|(_, e)| *e > start);
        free || self
            .used
            .iter()
            .any(|a| a.offset < end && a.offset + a.bytes > start)
    }
}

#[derive(Clone, Debug)]
enum Op {
    AddRegion { granule: u64, granules: u64 },
    Allocate { bytes: u64, align: u64 },
    Free { pick: prop::sample::Index },
    FreeStale { pick: prop::sample::Index },
    FreeMadeUp { handle: u32 },
    TakeFree { granule: u64, keep_bytes: u64 },
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0u64),
        6 => 0..64 * KIB,
        4 => 0..16 * MIB,
        2 => 0..3 * GIB,
        2 => prop::sample::select(vec![1, 255, 256, 257, 2 * MIB, 6_220_800, GIB, GIB + 1]),
    ]
}

fn operation() -> impl Strategy<Value = Op> {
    let granules = prop_oneof![3 => 1..16u64, 2 => 1..2048u64, 1 => 1..(1u64 << 16)];
    // Close together, so that regions touch; or anywhere in the largest pool.
    let granule =
        prop_oneof![6 => 0..64u64, 2 => 0..8192u64, 1 => 0..(MAX_POOL_BYTES / GRANULE_BYTES)];
    let align = prop_oneof![
        6 => Just(256u64),
        2 => (8..22u32).prop_map(|log| 1 << log),
        1 => prop::sample::select(vec![0, 1, 3, 1000, 4 * MIB, GIB]),
    ];
    prop_oneof![
        3 => (granule, granules).prop_map(|(granule, granules)| Op::AddRegion { granule, granules }),
        10 => (size(), align).prop_map(|(bytes, align)| Op::Allocate { bytes, align }),
        7 => any::<prop::sample::Index>().prop_map(|pick| Op::Free { pick }),
        1 => any::<prop::sample::Index>().prop_map(|pick| Op::FreeStale { pick }),
        1 => any::<u32>().prop_map(|handle| Op::FreeMadeUp { handle }),
        2 => (prop::sample::select(vec![0, 1, 3, 32].into_iter().map(|n| n * GRANULE_BYTES).collect::<Vec<_>>()), 0..8 * MIB)
            .prop_map(|(granule, keep_bytes)| Op::TakeFree { granule, keep_bytes }),
    ]
}

/// Applies one operation to allocator and model and compares the results.
fn apply(tlsf: &mut Tlsf, model: &mut Model, op: Op) {
    match op {
        Op::AddRegion { granule, granules } => {
            let (start, end) = (
                granule * GRANULE_BYTES,
                (granule + granules) * GRANULE_BYTES,
            );
            let result = tlsf.add_region(start, end - start);
            if end > MAX_POOL_BYTES {
                assert!(
                    matches!(result, Err(RegionError::BeyondPool { .. })),
                    "{result:?}"
                );
            } else if model.touches(start, end) {
                assert!(
                    matches!(result, Err(RegionError::Overlap { .. })),
                    "{result:?}"
                );
            } else {
                result.unwrap();
                model.insert_free(start, end);
            }
        }
        Op::Allocate { bytes, align } => allocate(tlsf, model, bytes, align),
        Op::Free { pick } if !model.used.is_empty() => {
            let freed = model.used.swap_remove(pick.index(model.used.len()));
            let before = tlsf.headers.looks.get();
            assert_eq!(tlsf.free(freed.handle), Ok(freed.bytes));
            assert!(
                tlsf.headers.looks.get() - before <= LOOKS_MAX,
                "free is not bounded"
            );
            model.insert_free(freed.offset, freed.offset + freed.bytes);
            model.stale.push(freed.handle);
        }
        Op::FreeStale { pick } if !model.stale.is_empty() => {
            let handle = model.stale[pick.index(model.stale.len())];
            assert_eq!(tlsf.free(handle), Err(UnknownHandle(handle)));
        }
        Op::FreeMadeUp { handle } if model.used.iter().all(|a| a.handle != handle) => {
            assert_eq!(tlsf.free(handle), Err(UnknownHandle(handle)));
        }
        Op::TakeFree {
            granule,
            keep_bytes,
        } => take_free(tlsf, model, granule, keep_bytes),
        Op::Free { .. } | Op::FreeStale { .. } | Op::FreeMadeUp { .. } => {}
    }
}

fn allocate(tlsf: &mut Tlsf, model: &mut Model, bytes: u64, align: u64) {
    let before = tlsf.headers.looks.get();
    let given = tlsf.allocate(bytes, align);
    assert!(
        tlsf.headers.looks.get() - before <= LOOKS_MAX,
        "allocate is not bounded"
    );
    let rounded = bytes.max(1).next_multiple_of(UNIT);
    let align = align.next_power_of_two().max(UNIT);
    let Some(given) = given else {
        // Good fit may miss a block that is less than 1/32 larger; it must find a larger one.
        let enough = rounded + align;
        let most = enough + enough / 32;
        let missed = model
            .free
            .iter()
            .find(|(start, end)| **end - **start >= most);
        assert_eq!(missed, None, "{bytes} bytes at {align} were not found");
        return;
    };
    assert_eq!(given.bytes, rounded);
    assert_eq!(given.offset % align, 0);
    assert!(model.used.iter().all(|used| used.handle != given.handle));
    model.remove_free(given.offset..given.offset + given.bytes);
    model.used.push(given);
    model.stale.retain(|handle| *handle != given.handle);
}

fn take_free(tlsf: &mut Tlsf, model: &mut Model, granule: u64, keep_bytes: u64) {
    let unit = granule.max(1).next_multiple_of(GRANULE_BYTES);
    let taken = tlsf.take_free(granule, keep_bytes);
    for (i, range) in taken.iter().enumerate() {
        assert!(range.start % unit == 0 && range.end % unit == 0 && range.start < range.end);
        assert!(i == 0 || taken[i - 1].end <= range.start);
        model.remove_free(range.clone());
    }
    let left: u64 = model.free.iter().map(|(start, end)| end - start).sum();
    assert!(
        taken.is_empty() || left >= keep_bytes,
        "less was kept than asked for"
    );
    // `take_free` removed all it could: either little is left to spare, or no whole granule is free.
    let whole = |(start, end): (&u64, &u64)| start.next_multiple_of(unit) + unit <= *end;
    assert!(
        left < keep_bytes + unit || !model.free.iter().any(whole),
        "a free granule was kept"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_does_what_the_model_says(ops in prop::collection::vec(operation(), 1..150)) {
        let (mut tlsf, mut model) = (Tlsf::new(), Model::default());
        for op in ops {
            apply(&mut tlsf, &mut model, op);
            let free: Vec<_> = model.free.iter().map(|(start, end)| *start..*end).collect();
            prop_assert_eq!(check(&tlsf), free);
        }
        for given in std::mem::take(&mut model.used) {
            tlsf.free(given.handle).unwrap();
            model.insert_free(given.offset, given.offset + given.bytes);
        }
        // Each span is one free block, and `take_free` returns all of it.
        let free = check(&tlsf);
        prop_assert_eq!(tlsf.stats().spans, free.len());
        let taken = tlsf.take_free(GRANULE_BYTES, 0);
        prop_assert_eq!(taken, free);
        let left = tlsf.stats();
        prop_assert_eq!((left.free_bytes, left.used_bytes, left.headers, left.spans), (0, 0, 0, 0));
    }

    #[test]
    fn what_was_leased_for_a_block_holds_it(
        pieces in prop::collection::vec((size(), 8..24u32), 1..40),
        frees in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let (mut tlsf, mut end, mut used) = (Tlsf::new(), 0, Vec::new());
        for (bytes, log) in pieces {
            let lease = Tlsf::lease_bytes(bytes, 1 << log).unwrap();
            tlsf.add_region(end, lease).unwrap();
            end += lease;
            let given = tlsf.allocate(bytes, 1 << log);
            prop_assert!(given.is_some(), "{} bytes at {} not found in {}", bytes, 1 << log, lease);
            used.extend(given);
            if let Some(pick) = frees.get(used.len()) {
                tlsf.free(used.swap_remove(pick.index(used.len())).handle).unwrap();
            }
        }
        check(&tlsf);
    }

    #[test]
    fn a_good_fit_passes_over_one_part_in_thirty_two(
        low in (0..33u32, any::<u64>()).prop_map(|(log, low)| (1 << log) + low % (1 << log)),
        more in 0..1000u64,
    ) {
        let low = low.min(MAX_UNITS);
        let high = (low + low * more / 8000).min(MAX_UNITS);
        prop_assert!(Bin::of(low) <= Bin::of(high));
        let mut bins = Bins::new();
        let mut headers = Headers::with_capacity(1);
        let block = headers.take(Kind::Free, 0, high);
        bins.insert(&mut headers, block);
        if let Some(found) = bins.good_fit(low) {
            prop_assert_eq!(found, block);
        } else {
            prop_assert!(high < low + low / 32, "{} was not found for {}", high, low);
        }
        if high > low {
            prop_assert_eq!(bins.good_fit(high + high / 16 + 1), None);
        }
    }
}

#[test]
fn an_aligned_block_finds_its_lease_behind_others_of_its_size() {
    let mut tlsf = Tlsf::new();
    tlsf.add_region(0, 4 * MIB).unwrap();
    // A free block that is large enough and spans no multiple of 2 MiB with room behind it.
    let filler = tlsf.allocate(2 * MIB + 256, 256).unwrap();
    assert_eq!(filler.offset, 0);
    assert_eq!(tlsf.allocate(MIB, 2 * MIB), None);
    tlsf.add_region(8 * MIB, Tlsf::lease_bytes(MIB, 2 * MIB).unwrap())
        .unwrap();
    assert_eq!(tlsf.allocate(MIB, 2 * MIB).unwrap().offset, 8 * MIB);
}

#[test]
fn the_number_of_steps_does_not_grow_with_the_number_of_blocks() {
    let most_looks = |blocks: usize| {
        let mut tlsf = Tlsf::new();
        tlsf.add_region(0, 64 * GIB).unwrap();
        let mut most = 0;
        let mut count = |tlsf: &Tlsf, before: u64| {
            most = most.max(tlsf.headers.looks.get() - before);
        };
        let mut used = Vec::new();
        for i in 0..blocks as u64 {
            let before = tlsf.headers.looks.get();
            used.push(tlsf.allocate(i % 977 * 300, 256 << (i % 7)).unwrap().handle);
            count(&tlsf, before);
        }
        // Every second block: many holes, and long lists in the bins.
        for handle in used.iter().step_by(2) {
            let before = tlsf.headers.looks.get();
            tlsf.free(*handle).unwrap();
            count(&tlsf, before);
        }
        for i in 0..blocks as u64 / 2 {
            let before = tlsf.headers.looks.get();
            tlsf.allocate(i % 991 * 310, 256 << (i % 7)).unwrap();
            count(&tlsf, before);
        }
        most
    };
    let (few, many) = (most_looks(2_000), most_looks(200_000));
    assert!(
        few <= LOOKS_MAX && many <= LOOKS_MAX,
        "{few} and {many} looks"
    );
    assert!(
        many <= few + 4,
        "{few} looks with few blocks, {many} with a hundred times as many"
    );
}

#[test]
fn a_size_that_comes_again_reuses_its_block() {
    // 6,220,800 bytes (a 1080p frame) lie inside a bin, not at its edge: a plain good fit uses a new block for
    // every frame.
    let mut tlsf = Tlsf::new();
    tlsf.add_region(0, 64 * MIB).unwrap();
    let wall = [
        tlsf.allocate(6_220_800, 256).unwrap(),
        tlsf.allocate(256, 256).unwrap(),
    ];
    tlsf.free(wall[0].handle).unwrap();
    for _ in 0..10 {
        let given = tlsf.allocate(6_220_800, 256).unwrap();
        assert_eq!(given.offset, wall[0].offset);
        tlsf.free(given.handle).unwrap();
    }
}

#[test]
fn the_largest_pool_is_one_block() {
    let mut tlsf = Tlsf::new();
    tlsf.add_region(MAX_POOL_BYTES / 2, MAX_POOL_BYTES / 2)
        .unwrap();
    tlsf.add_region(0, MAX_POOL_BYTES / 2).unwrap();
    let all = tlsf.allocate(MAX_POOL_BYTES, 1).unwrap();
    assert_eq!((all.offset, all.bytes), (0, MAX_POOL_BYTES));
    assert_eq!(tlsf.allocate(0, 1), None);
    assert_eq!(tlsf.free(all.handle), Ok(MAX_POOL_BYTES));
    for (bytes, align) in [
        (MAX_POOL_BYTES + 1, 1),
        (u64::MAX, 256),
        (1, u64::MAX),
        (1, 1 << 63),
    ] {
        assert_eq!(tlsf.allocate(bytes, align), None);
        assert_eq!(Tlsf::lease_bytes(bytes, align), None);
    }
    let high = tlsf.allocate(MAX_POOL_BYTES - 300, 256).unwrap();
    assert_eq!(high.offset, 0);
    let last = tlsf.allocate(0, 1).unwrap();
    assert_eq!((last.offset, last.bytes), (MAX_POOL_BYTES - 256, 256));
    check(&tlsf);
}

#[test]
fn wrong_regions_are_refused() {
    let mut tlsf = Tlsf::new();
    for (offset, bytes) in [
        (0, 0),
        (0, GRANULE_BYTES / 2),
        (GRANULE_BYTES / 2, GRANULE_BYTES),
        (0, u64::MAX),
        (4 * MIB, MIB + 256),
    ] {
        let refused = tlsf.add_region(offset, bytes);
        assert_eq!(refused, Err(RegionError::NotGranules { offset, bytes }));
    }
    let far = u64::MAX - GRANULE_BYTES + 1;
    for (offset, bytes) in [
        (far, GRANULE_BYTES),
        (GRANULE_BYTES, MAX_POOL_BYTES),
        (far, far),
    ] {
        let refused = tlsf.add_region(offset, bytes);
        assert_eq!(refused, Err(RegionError::BeyondPool { offset, bytes }));
    }
    tlsf.add_region(8 * MIB, 4 * MIB).unwrap();
    tlsf.allocate(4 * MIB, 256).unwrap();
    for (offset, bytes) in [
        (8 * MIB, 4 * MIB),
        (6 * MIB, 4 * MIB),
        (10 * MIB, 8 * MIB),
        (0, GIB),
    ] {
        let refused = tlsf.add_region(offset, bytes);
        assert_eq!(refused, Err(RegionError::Overlap { offset, bytes }));
    }
    check(&tlsf);
}

#[test]
fn without_headers_nothing_is_given_out_and_nothing_breaks() {
    let mut tlsf = Tlsf::new();
    tlsf.add_region(0, GIB).unwrap();
    let mut used = Vec::new();
    while let Some(given) = tlsf.allocate(0, 256) {
        used.push(given.handle);
    }
    assert!(used.len() >= MAX_HEADERS - 5, "{} blocks", used.len());
    assert!(tlsf.stats().free_bytes > 0);
    assert_eq!(
        tlsf.add_region(2 * GIB, GIB),
        Err(RegionError::TooManyBlocks)
    );
    for handle in used {
        tlsf.free(handle).unwrap();
    }
    assert_eq!(check(&tlsf), vec![Range { start: 0, end: GIB }]);
}

/// Adjoining ranges added by `add_region_apart`: no block lies across the seam, and `take_free` returns each whole.
#[test]
fn no_block_lies_across_regions_that_were_added_apart() {
    let mut tlsf = Tlsf::new();
    tlsf.add_region_apart(0, 2 * MIB).unwrap();
    tlsf.add_region_apart(2 * MIB, 4 * MIB).unwrap();
    let bytes = 2 * MIB - 2 * KIB;
    let mut blocks = Vec::new();
    while let Some(block) = tlsf.allocate(bytes, 256) {
        let (first, last) = (block.offset, block.offset + bytes - 1);
        assert_eq!(first < 2 * MIB, last < 2 * MIB, "{first}..={last}");
        blocks.push(block);
    }
    assert!(!blocks.is_empty());
    for block in blocks {
        tlsf.free(block.handle).unwrap();
    }
    let taken = tlsf.take_free(GRANULE_BYTES, 0);
    assert_eq!(taken, [0..2 * MIB, 2 * MIB..6 * MIB]);
    assert_eq!(tlsf.stats().free_bytes, 0);
}
