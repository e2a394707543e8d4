#!/usr/bin/env bash
# Runs the unit tests of the crates with unsafe code under a sanitizer: address or thread. Needs a
# nightly compiler. For ThreadSanitizer the standard library is rebuilt too: without it, its locks
# would look like races.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=$1
tools/setup.sh base rust nightly
# With --target the flags reach neither build scripts nor procedural macros.
build_std=()
if [ "$kind" = thread ]; then build_std=(-Zbuild-std); fi
exec cargo +nightly test "${build_std[@]}" --target x86_64-unknown-linux-gnu \
  --config "target.\"cfg(all())\".rustflags=[\"-Zsanitizer=$kind\"]" \
  --target-dir "target/$kind" \
  -p rgaps-layout -p rgaps-sync -p rgaps-pool -p rgaps-topic --lib
