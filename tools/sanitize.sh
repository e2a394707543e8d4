#!/usr/bin/env bash
# Runs the tests of the crates with unsafe code under a sanitizer: address or thread. Needs a nightly
# compiler. For ThreadSanitizer the standard library is rebuilt too: without it, its locks would
# look like races.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=$1
tools/setup.sh base rust nightly
# A library that is loaded at run time does not find a sanitizer in a Rust program: the stand-in for
# CUDA's driver is built without one.
cargo build --locked --quiet -p rgaps-test-driver
export RGAPS_TEST_DRIVER=$PWD/target/debug/librgaps_test_driver.so
build_std=()
if [ "$kind" = thread ]; then build_std=(-Zbuild-std); fi
# With --target the flags reach neither build scripts nor procedural macros.
exec cargo +nightly test --locked "${build_std[@]}" --target x86_64-unknown-linux-gnu \
  --config "target.\"cfg(all())\".rustflags=[\"-Zsanitizer=$kind\"]" \
  --target-dir "target/$kind" \
  -p rgaps-sync -p rgaps-pool -p rgaps-topic -p rgaps-cuda --lib --tests
