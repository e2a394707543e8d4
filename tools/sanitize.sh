#!/usr/bin/env bash
# Runs the tests of the crates with unsafe code under a sanitizer: address or thread. Needs a nightly
# compiler. For ThreadSanitizer the standard library is rebuilt too: without it, its locks would
# look like races.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=$1
tools/setup.sh base rust nightly
crates=(-p rgaps-sync -p rgaps-topic -p rgaps-verbs -p rgaps-transport)
flags=()
case $kind in
  address)
    # A library that is loaded at run time does not find a sanitizer in a Rust program, so the
    # stand-in for CUDA's driver is built without one.
    cargo build --locked --quiet -p rgaps-test-driver
    export RGAPS_TEST_DRIVER=$PWD/target/debug/librgaps_test_driver.so
    # Tests that fault on purpose look for the signal.
    export ASAN_OPTIONS=handle_segv=0:${ASAN_OPTIONS:-}
    crates+=(-p rgaps-cuda) ;;
  thread)
    # What sets a remote write in order with others of the same memory, where lanes of both kinds are, is a frame that went
    # through a socket, which no sanitizer sees. Threads of lanes end with the process.
    printf 'race:rgaps_verbs::in_process::copy\n' > target/thread.suppressions
    export TSAN_OPTIONS=report_thread_leaks=0:suppressions=$PWD/target/thread.suppressions:${TSAN_OPTIONS:-}
    # Without a sanitizer its locks would look like races: the CUDA crate is left out.
    flags+=(-Zbuild-std) ;;
  *) echo "usage: $0 address|thread" >&2; exit 2 ;;
esac
# With --target the flags reach neither build scripts nor procedural macros.
sanitized=(cargo +nightly test --locked "${flags[@]}" --target x86_64-unknown-linux-gnu
  --config "target.\"cfg(all())\".rustflags=[\"-Zsanitizer=$kind\"]" --target-dir "target/$kind")
"${sanitized[@]}" "${crates[@]}" --lib --tests
"${sanitized[@]}" -p rgaps-topic --features crash-steps --test crash
# One test after the other: memory is mapped and unmapped by system calls that a sanitizer does not see, so what a test
# maps where another's mapping was would look like a race with that one.
"${sanitized[@]}" -p rgaps-pool --lib --tests -- --test-threads=1
