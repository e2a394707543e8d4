#!/usr/bin/env bash
# Fuzzes what a peer's bytes meet: FUZZ_SECONDS (default 300) for each target in fuzz/, with libFuzzer. Without
# a nightly compiler (FUZZ=seeded, or rustup missing) the same targets run with seeded changes of the corpus.
# An input that fails is kept in fuzz/artifacts; put it into fuzz/corpus when it is mended.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${FUZZ_SECONDS:-300}
if [ "${FUZZ:-}" = seeded ] || ! command -v rustup >/dev/null; then
  FUZZ_SECONDS=$seconds exec cargo test --locked --release -p rgaps-transport -p rgaps-links -p rgaps-remoting --test fuzz -- --nocapture
fi
tools/setup.sh base rust fuzz
# What is found goes into a folder of its own; the corpus in git is what somebody chose.
for target in frames ends hello control calls; do
  mkdir -p "fuzz/target/found/$target"
  cargo +nightly fuzz run "$target" "fuzz/target/found/$target" "fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -max_len=4096 -timeout=30 -print_final_stats=1
done
