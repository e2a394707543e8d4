#!/usr/bin/env bash
# Runs `cargo test` with these arguments, several test programs at a time: mostly they wait. The same command runs AT_ONCE times (two
# more than there are processors, 8 at most), and tools/run-test.sh leaves each program to the one that comes to it first. At the end
# come the programs that took longest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
runner="target.\"cfg(all())\".runner=\"$PWD/tools/run-test.sh\""
cargo test --locked --no-run "$@" || exit

TEST_CLAIMS=$(mktemp -d)
export TEST_CLAIMS
trap 'rm -rf "$TEST_CLAIMS"' EXIT
many=$(($(nproc) + 2))
cargo test --locked --quiet --doc "$@" &
runs=($!)
for _ in $(seq "${AT_ONCE:-$((many < 8 ? many : 8))}"); do
  cargo test --locked --quiet --tests --no-fail-fast --config "$runner" "$@" &
  runs+=($!)
done
code=0
for run in "${runs[@]}"; do wait "$run" || code=$?; done
printf '\nthe longest test programs:\n'
sort --reverse --numeric-sort "$TEST_CLAIMS"/*/seconds | sed -n 1,10p
exit "$code"
