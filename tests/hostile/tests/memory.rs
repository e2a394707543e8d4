//! The descriptors that clients get: they cannot be shrunk, and what is for reading cannot be
//! written through as it came.

use rgaps_hostile::daemon;
use rgaps_hostile::honest::{Expect, Pair};
use rgaps_hostile::liar::{publisher, subscriber, Liar};
use rgaps_layout::SEGMENT_UNIT_BYTES;
use rgaps_session::{Answer, Member, RefusalCode, Request};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// Tries all that would change a file's size; also through an opening of its own.
fn try_to_resize(fd: &OwnedFd, what: &str) {
    let size = rustix::fs::fstat(fd).expect("fstat").st_size as u64;
    let reopened = |flags| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
    };
    let mut openings = vec![fd.try_clone().expect("dup")];
    openings.extend(reopened(OFlags::RDWR));
    // Opening for truncation must fail, or change nothing.
    drop(reopened(OFlags::RDWR | OFlags::TRUNC));
    for opening in &openings {
        for wanted in [0, SEGMENT_UNIT_BYTES / 2, size - 1, size + 1, size * 2] {
            let cut = rustix::fs::ftruncate(opening, wanted);
            assert!(cut.is_err(), "{what} was cut to {wanted} bytes");
        }
        let grown = rustix::fs::fallocate(opening, FallocateFlags::empty(), size, 4096);
        assert!(grown.is_err(), "{what} was grown");
        let collapsed = rustix::fs::fallocate(opening, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert!(collapsed.is_err(), "{what} was collapsed");
        // Seals that would keep others from writing.
        let sealed = rustix::fs::fcntl_add_seals(opening, SealFlags::WRITE);
        assert_eq!(sealed, Err(Errno::PERM), "{what} was sealed");
    }
    let now = rustix::fs::fstat(fd).expect("fstat").st_size as u64;
    assert_eq!(now, size, "{what}");
}

fn access(fd: &OwnedFd) -> OFlags {
    rustix::fs::fcntl_getfl(fd).expect("fcntl") & OFlags::RWMODE
}

fn segments(liar: &mut Liar, of: Member, writable: bool) -> Vec<OwnedFd> {
    let request = Request::Segments {
        zone: of.zone,
        pool: 0,
        from: 0,
        writable,
    };
    let (answer, fds) = liar.ask_with(request, &[]).expect("not cut off");
    match answer.expect("segments") {
        Answer::Segments { bytes } => assert_eq!(bytes.len(), fds.len()),
        other => panic!("{other:?}"),
    }
    fds
}

#[test]
fn no_descriptor_can_be_resized() {
    let mut daemon = daemon::start();
    let pair = Pair::start(&daemon.config(), "honest", Expect::Perfection, 1);
    pair.goes_on(10);

    let mut liar = Liar::welcomed(&daemon.socket());
    let joined = liar.join("own", subscriber(false)).expect("not cut off");
    let joined = joined.expect("a seat");
    let [registry, control] = <[OwnedFd; 2]>::try_from(joined.fds).expect("two descriptors");
    assert_eq!(access(&registry), OFlags::RDONLY);
    let denied = rustix::io::pwrite(&registry, &[0xff; 64], 0);
    assert_eq!(denied, Err(Errno::BADF), "the registry was written to");

    // A subscriber may not write, whatever it asks for.
    let request = Request::Segments {
        zone: joined.member.zone,
        pool: 0,
        from: 0,
        writable: true,
    };
    let refusal = liar
        .ask(request)
        .expect("not cut off")
        .expect_err("a refusal");
    assert_eq!(refusal.code, RefusalCode::NotPermitted);
    let readable = segments(&mut liar, joined.member, false);
    assert!(!readable.is_empty());
    for fd in &readable {
        assert_eq!(access(fd), OFlags::RDONLY);
        assert_eq!(rustix::io::pwrite(fd, &[0xff; 64], 0), Err(Errno::BADF));
        let punched = rustix::fs::fallocate(
            fd,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            SEGMENT_UNIT_BYTES,
        );
        assert_eq!(punched, Err(Errno::BADF), "a reader punched a hole");
    }
    let own = liar
        .join("own", publisher())
        .expect("not cut off")
        .expect("a seat");
    let writable = segments(&mut liar, own.member, true);
    for (what, fds) in [
        ("the registry", vec![registry]),
        ("the control segment", vec![control]),
        ("a segment for reading", readable),
        ("a segment for writing", writable),
    ] {
        for fd in &fds {
            try_to_resize(fd, what);
        }
    }

    pair.goes_on(20);
    let (published, received, errors) = pair.end();
    assert_eq!((received, errors), (published, 0));
    daemon.assert_well();
}
