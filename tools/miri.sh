#!/usr/bin/env bash
# Looks for undefined behaviour in the crates that are pure memory, by interpreting their tests.
# Miri knows no futex_waitv and no memfd: what needs those runs under the sanitizers instead. TLSF is
# safe code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh base rust miri
# The clock of the machine is used; pointers are made from addresses in shared memory.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance ${MIRIFLAGS:-}"
# Interpreting is a thousand times slower: a few cases of each property, and of the longest runs of
# several threads nothing (ThreadSanitizer has those).
export PROPTEST_CASES=${PROPTEST_CASES:-2}
miri=(cargo +nightly miri test --locked --target-dir target/miri)
"${miri[@]}" -p rgaps-layout --lib
"${miri[@]}" -p rgaps-sync --lib -- --skip futex
"${miri[@]}" -p rgaps-topic
"${miri[@]}" -p rgaps-verbs --lib
