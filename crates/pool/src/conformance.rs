//! One suite for every domain's [`SegmentSource`] and [`Mapping`].
//!
//! A crate with an implementation enables the feature `conformance` in its dev-dependencies and
//! calls [`run_all`] from a test. Every check gets a fixture of its own and panics with a message
//! that names what is wrong.

use crate::segment::{Access, Mapping, PoolError, SegmentSource, Stream};
use rgaps_layout::SEGMENT_UNIT_BYTES;
use std::os::fd::{AsFd, OwnedFd};

/// Makes a mapping of a pool with this cap.
pub type MakeMapping = Box<dyn Fn(u64, Access) -> Result<Box<dyn Mapping>, PoolError>>;

/// An implementation under test.
pub struct Fixture {
    /// The daemon's side.
    pub source: Box<dyn SegmentSource>,
    /// A process's side.
    pub mapping: MakeMapping,
    /// Descriptors of the domain's own kind that resemble a segment of one
    /// [`granularity`](SegmentSource::granularity) but must be refused, each with its fault. The suite itself
    /// tests descriptors that are wrong for every domain.
    pub foreign: Vec<(&'static str, OwnedFd)>,
}

impl Fixture {
    fn map(&self, cap: u64, access: Access) -> Box<dyn Mapping> {
        (self.mapping)(cap, access).expect("a mapping can be reserved")
    }

    fn unit(&self) -> u64 {
        self.source.granularity()
    }
}

/// Runs every check, each on a fixture fresh from `make`.
pub fn run_all(make: &mut dyn FnMut() -> Fixture) {
    granularity_and_domain_agree(make());
    segments_grow_behind_one_another(make());
    bytes_written_across_segments_are_read_back(make());
    two_mappings_see_each_others_bytes(make());
    bytes_outlive_the_mapping_that_wrote_them(make());
    write_from_copies_a_host_buffer(make());
    a_read_only_mapping_refuses_writes(make());
    ranges_outside_are_refused(make());
    the_cap_is_kept(make());
    impossible_sizes_are_refused(make());
    foreign_descriptors_are_refused(make());
    an_adopted_segment_has_its_bytes(make());
    discarding_spares_the_neighbours(make());
    concurrent_extensions_exclude_one_another(make());
}

/// Bytes that differ everywhere and with `seed`, with no period that divides a page.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

fn read(mapping: &dyn Mapping, offset: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    mapping
        .read(offset, &mut found)
        .expect("a range that is mapped can be read");
    found
}

fn granularity_and_domain_agree(f: Fixture) {
    assert!(
        f.unit() > 0 && f.unit() % SEGMENT_UNIT_BYTES == 0,
        "granularity {} is odd",
        f.unit()
    );
    let mapping = f.map(4 * f.unit(), Access::ReadOnly);
    assert_eq!(mapping.domain(), f.source.domain());
    assert_eq!(mapping.access(), Access::ReadOnly);
    assert_eq!(mapping.mapped(), 0);
    assert!(
        mapping.cap() >= 4 * f.unit(),
        "cap {} is less than was asked for",
        mapping.cap()
    );
    assert_eq!(
        mapping.base() % SEGMENT_UNIT_BYTES,
        0,
        "the base is not aligned to the unit of segments"
    );
    assert_eq!(
        f.map(f.unit(), Access::ReadWrite).access(),
        Access::ReadWrite
    );
}

fn segments_grow_behind_one_another(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(8 * unit, Access::ReadWrite);
    let base = mapping.base();
    let mut end = 0;
    for units in [1, 3, 2] {
        let segment = f
            .source
            .create(units * unit)
            .expect("a segment can be created");
        assert_eq!(segment.bytes, units * unit);
        mapping
            .extend(segment.fd.as_fd(), segment.bytes)
            .expect("it can be mapped");
        end += segment.bytes;
        assert_eq!(mapping.mapped(), end);
        assert_eq!(mapping.base(), base, "the pool moved when it grew");
        // The caller still owns the descriptor; the mapping does not need it any more.
        rustix::io::fcntl_getfd(&segment.fd).expect("extend must not close the descriptor");
    }
    let bytes = pattern(1, 4096);
    mapping
        .write(end - 4096, &bytes)
        .expect("the last page can be written");
    assert_eq!(read(&*mapping, end - 4096, 4096), bytes);
}

fn bytes_written_across_segments_are_read_back(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(4 * unit, Access::ReadWrite);
    for _ in 0..3 {
        let segment = f.source.create(unit).expect("a segment can be created");
        mapping
            .extend(segment.fd.as_fd(), unit)
            .expect("it can be mapped");
    }
    // From inside the first segment, over all of the second, into the third.
    let bytes = pattern(2, unit as usize + 2 * 777);
    mapping
        .write(unit - 777, &bytes)
        .expect("a range over three segments can be written");
    assert!(
        read(&*mapping, unit - 777, bytes.len()) == bytes,
        "bytes over segments differ"
    );
    assert_eq!(
        read(&*mapping, 2 * unit, 100),
        bytes[777 + unit as usize..][..100]
    );
    mapping
        .synchronize(Stream(0))
        .expect("the default stream can be waited for");
}

fn two_mappings_see_each_others_bytes(mut f: Fixture) {
    let unit = f.unit();
    let (writer, other) = (
        f.map(2 * unit, Access::ReadWrite),
        f.map(4 * unit, Access::ReadWrite),
    );
    let reader = f.map(2 * unit, Access::ReadOnly);
    for _ in 0..2 {
        let segment = f.source.create(unit).expect("a segment can be created");
        for mapping in [&writer, &other, &reader] {
            mapping
                .extend(segment.fd.as_fd(), unit)
                .expect("it can be mapped three times");
        }
    }
    let (first, second) = (pattern(3, 10_000), pattern(4, 10_000));
    writer.write(unit - 5_000, &first).expect("writer writes");
    assert!(
        read(&*reader, unit - 5_000, 10_000) == first,
        "the reader sees other bytes"
    );
    assert!(
        read(&*other, unit - 5_000, 10_000) == first,
        "the other writer sees other bytes"
    );
    other
        .write(unit - 5_000, &second)
        .expect("the other writer writes");
    assert!(
        read(&*writer, unit - 5_000, 10_000) == second,
        "the first writer sees old bytes"
    );
    assert!(
        read(&*reader, unit - 5_000, 10_000) == second,
        "the reader sees old bytes"
    );
}

fn bytes_outlive_the_mapping_that_wrote_them(mut f: Fixture) {
    let unit = f.unit();
    let segment = f.source.create(unit).expect("a segment can be created");
    let bytes = pattern(5, 5_000);
    let writer = f.map(unit, Access::ReadWrite);
    writer
        .extend(segment.fd.as_fd(), unit)
        .expect("it can be mapped");
    writer
        .write(unit - 5_000, &bytes)
        .expect("its end can be written");
    drop(writer);
    let reader = f.map(unit, Access::ReadOnly);
    reader
        .extend(segment.fd.as_fd(), unit)
        .expect("it can be mapped again");
    drop(segment);
    assert!(
        read(&*reader, unit - 5_000, 5_000) == bytes,
        "bytes are gone with their writer"
    );
}

fn write_from_copies_a_host_buffer(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(unit, Access::ReadWrite);
    let segment = f.source.create(unit).expect("a segment can be created");
    mapping
        .extend(segment.fd.as_fd(), unit)
        .expect("it can be mapped");
    let bytes = pattern(6, 70_001);
    let source = bytes.as_ptr().expose_provenance() as u64;
    // SAFETY: `bytes` lives on and is not written.
    unsafe { mapping.write_from(33, source, bytes.len() as u64) }.expect("host bytes are copied");
    assert!(
        read(&*mapping, 33, bytes.len()) == bytes,
        "copied bytes differ"
    );
    // SAFETY: with 0 bytes nothing is read.
    unsafe { mapping.write_from(unit, source, 0) }.expect("no bytes at the end are in range");
    // SAFETY: the range is refused before anything is read, and `bytes` lives on.
    let refused = unsafe { mapping.write_from(unit - 70_000, source, bytes.len() as u64) };
    assert!(
        matches!(refused, Err(PoolError::OutOfRange { .. })),
        "{refused:?}"
    );
}

fn a_read_only_mapping_refuses_writes(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(unit, Access::ReadOnly);
    let segment = f.source.create(unit).expect("a segment can be created");
    mapping
        .extend(segment.fd.as_fd(), unit)
        .expect("it can be mapped");
    let before = read(&*mapping, 0, 64);
    let bytes = pattern(7, 64);
    let refused = mapping.write(0, &bytes);
    assert!(matches!(refused, Err(PoolError::ReadOnly)), "{refused:?}");
    // SAFETY: `bytes` lives on and is not written.
    let refused = unsafe { mapping.write_from(0, bytes.as_ptr().expose_provenance() as u64, 64) };
    assert!(matches!(refused, Err(PoolError::ReadOnly)), "{refused:?}");
    assert_eq!(read(&*mapping, 0, 64), before);
}

fn ranges_outside_are_refused(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(4 * unit, Access::ReadWrite);
    let mut one = [0u8; 1];
    let refused = mapping.read(0, &mut one);
    assert!(
        matches!(refused, Err(PoolError::OutOfRange { mapped: 0, .. })),
        "{refused:?}"
    );
    let segment = f.source.create(unit).expect("a segment can be created");
    mapping
        .extend(segment.fd.as_fd(), unit)
        .expect("it can be mapped");
    mapping
        .read(unit - 1, &mut one)
        .expect("the last byte is in range");
    mapping
        .read(unit, &mut [])
        .expect("no bytes at the end are in range");
    // Reserved but not mapped, beyond the cap, and where offset + length overflows.
    for offset in [unit, unit + 1, 3 * unit, 5 * unit, u64::MAX - 1, u64::MAX] {
        let refused = mapping.read(offset, &mut one);
        assert!(
            matches!(refused, Err(PoolError::OutOfRange { .. })),
            "{offset}: {refused:?}"
        );
        let refused = mapping.write(offset, &one);
        assert!(
            matches!(refused, Err(PoolError::OutOfRange { .. })),
            "{offset}: {refused:?}"
        );
    }
    let refused = mapping.read(unit - 1, &mut [0, 0]);
    assert!(
        matches!(refused, Err(PoolError::OutOfRange { .. })),
        "{refused:?}"
    );
    let refused = mapping.read(unit + 1, &mut []);
    assert!(
        matches!(refused, Err(PoolError::OutOfRange { .. })),
        "{refused:?}"
    );
}

fn the_cap_is_kept(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(2 * unit, Access::ReadWrite);
    let cap = mapping.cap();
    let first = f.source.create(unit).expect("a segment can be created");
    mapping
        .extend(first.fd.as_fd(), unit)
        .expect("it can be mapped");
    mapping.write(0, &[42; 16]).expect("it can be written");
    // `cap - unit` bytes are left, so a segment of `cap` bytes does not fit.
    let large = f
        .source
        .create(cap.next_multiple_of(unit))
        .expect("a segment can be created");
    let refused = mapping.extend(large.fd.as_fd(), large.bytes);
    assert!(
        matches!(refused, Err(PoolError::CapReached { .. })),
        "{refused:?}"
    );
    assert_eq!(
        mapping.mapped(),
        unit,
        "a refused segment must not change what is mapped"
    );
    let second = f.source.create(unit).expect("a segment can be created");
    mapping
        .extend(second.fd.as_fd(), unit)
        .expect("what fits is mapped after a refusal");
    assert_eq!(read(&*mapping, 0, 16), [42; 16]);
}

fn impossible_sizes_are_refused(mut f: Fixture) {
    let unit = f.unit();
    for bytes in [
        0,
        1,
        unit - 1,
        unit + 1,
        unit + 4096,
        u64::MAX,
        u64::MAX - unit + 1,
    ] {
        let refused = f.source.create(bytes);
        assert!(refused.is_err(), "a segment of {bytes} bytes was created");
    }
    assert!(
        (f.mapping)(0, Access::ReadWrite).is_err(),
        "a pool of no bytes was reserved"
    );
    assert!(
        (f.mapping)(u64::MAX, Access::ReadOnly).is_err(),
        "2^64 bytes were reserved"
    );

    let mapping = f.map(8 * unit, Access::ReadWrite);
    let segment = f.source.create(unit).expect("a segment can be created");
    // If `extend` accepted a size above the real one, reads would go beyond the segment's end.
    for bytes in [0, 1, unit - 1, unit + 1, 2 * unit, 8 * unit] {
        let refused = mapping.extend(segment.fd.as_fd(), bytes);
        assert!(
            refused.is_err(),
            "a segment of {unit} bytes was mapped as {bytes}"
        );
        let copy = segment
            .fd
            .try_clone()
            .expect("a descriptor can be duplicated");
        assert!(
            f.source.adopt(copy, bytes, 0).is_err(),
            "{unit} bytes were adopted as {bytes}"
        );
    }
    assert_eq!(mapping.mapped(), 0);
    mapping
        .extend(segment.fd.as_fd(), unit)
        .expect("it can be mapped as what it is");
}

/// Descriptors that no domain may accept as a segment.
fn wrong_everywhere() -> Vec<(&'static str, OwnedFd)> {
    let (pipe, _) = rustix::pipe::pipe().expect("a pipe");
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let folder = std::fs::File::open("/").expect("the root folder");
    let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
    let program = std::fs::File::open("/proc/self/exe").expect("this program");
    vec![
        ("a pipe", pipe),
        ("a device", null.into()),
        ("a folder", folder.into()),
        ("a socket", socket.into()),
        ("an ordinary file", program.into()),
    ]
}

fn foreign_descriptors_are_refused(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(4 * unit, Access::ReadOnly);
    let mut foreign = wrong_everywhere();
    foreign.append(&mut f.foreign);
    for (what, fd) in foreign {
        let refused = mapping.extend(fd.as_fd(), unit);
        assert!(refused.is_err(), "{what} was mapped");
        assert_eq!(mapping.mapped(), 0, "{what} changed what is mapped");
        assert!(f.source.adopt(fd, unit, 0).is_err(), "{what} was adopted");
    }
    let segment = f.source.create(unit).expect("a segment can be created");
    mapping
        .extend(segment.fd.as_fd(), unit)
        .expect("a proper segment is mapped after refusals");
}

fn an_adopted_segment_has_its_bytes(mut f: Fixture) {
    let unit = f.unit();
    let segment = f.source.create(2 * unit).expect("a segment can be created");
    let writer = f.map(2 * unit, Access::ReadWrite);
    writer
        .extend(segment.fd.as_fd(), segment.bytes)
        .expect("it can be mapped");
    let bytes = pattern(8, 9_999);
    writer
        .write(unit - 5_000, &bytes)
        .expect("it can be written");
    // The descriptor that a client would have kept.
    let kept = segment
        .fd
        .try_clone()
        .expect("a descriptor can be duplicated");
    let (inode, pages) = (segment.inode, segment.placement.pages);
    drop(segment);
    if inode != 0 {
        let copy = kept.try_clone().expect("a descriptor can be duplicated");
        assert!(
            f.source.adopt(copy, 2 * unit, inode ^ 1).is_err(),
            "another inode was adopted"
        );
    }
    let adopted = f
        .source
        .adopt(kept, 2 * unit, inode)
        .expect("it can be adopted");
    assert_eq!((adopted.bytes, adopted.inode), (2 * unit, inode));
    assert_eq!(adopted.placement.pages, pages);
    let reader = f.map(2 * unit, Access::ReadOnly);
    reader
        .extend(adopted.fd.as_fd(), adopted.bytes)
        .expect("an adopted segment can be mapped");
    assert!(
        read(&*reader, unit - 5_000, 9_999) == bytes,
        "an adopted segment has other bytes"
    );
}

fn discarding_spares_the_neighbours(mut f: Fixture) {
    let unit = f.unit();
    let segment = f.source.create(3 * unit).expect("a segment can be created");
    let mapping = f.map(3 * unit, Access::ReadWrite);
    mapping
        .extend(segment.fd.as_fd(), segment.bytes)
        .expect("it can be mapped");
    let bytes = pattern(9, 3 * unit as usize);
    mapping.write(0, &bytes).expect("it can be written");
    f.source.discard(&segment, unit, unit);
    f.source.discard(&segment, 2 * unit, 2 * unit); // Beyond the end: refused as a whole.
    f.source.discard(&segment, u64::MAX, unit);
    let end = 2 * unit as usize;
    assert!(
        read(&*mapping, 0, unit as usize) == bytes[..unit as usize],
        "lower neighbour lost"
    );
    assert!(
        read(&*mapping, 2 * unit, unit as usize) == bytes[end..],
        "upper neighbour lost"
    );
    // The discarded bytes are unspecified, but the range can be written again.
    mapping
        .write(unit, &bytes[..unit as usize])
        .expect("a discarded range can be written");
    assert!(
        read(&*mapping, unit, unit as usize) == bytes[..unit as usize],
        "bytes differ"
    );
}

fn concurrent_extensions_exclude_one_another(mut f: Fixture) {
    let unit = f.unit();
    let mapping = f.map(8 * unit, Access::ReadWrite);
    let segments: Vec<_> = (0..8)
        .map(|_| f.source.create(unit).expect("a segment can be created"))
        .collect();
    std::thread::scope(|scope| {
        for segment in &segments {
            let mapping = &mapping;
            scope.spawn(move || {
                mapping
                    .extend(segment.fd.as_fd(), unit)
                    .expect("it is mapped")
            });
        }
    });
    assert_eq!(mapping.mapped(), 8 * unit);
    for i in 0..8 {
        mapping
            .write(i * unit, &pattern(i, 100))
            .expect("each segment can be written");
    }
    for i in 0..8 {
        assert_eq!(
            read(&*mapping, i * unit, 100),
            pattern(i, 100),
            "segments overlap"
        );
    }
}
