#!/usr/bin/env bash
# For tools/steady.sh: runs `cargo test` with these arguments, several test programs at a time: mostly they wait. The same command runs once per
# processor (4 at most), and tools/run-test.sh leaves each program to the one that comes to it first.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
runner="target.\"cfg(all())\".runner=\"$PWD/tools/run-test.sh\""
cargo test --locked --no-run "$@" || exit

TEST_CLAIMS=$(mktemp -d)
export TEST_CLAIMS
trap 'rm -rf "$TEST_CLAIMS"' EXIT
many=$(nproc)
runs=()
for _ in $(seq $((many < 4 ? many : 4))); do
  cargo test --locked --quiet --tests --no-fail-fast --config "$runner" "$@" &
  runs+=($!)
done
code=0
for run in "${runs[@]}"; do wait "$run" || code=$?; done
cargo test --locked --quiet --doc "$@" || code=$?
exit "$code"
