#!/usr/bin/env bash
# Builds every program in tests/c against the header, once with the shared and once with the static
# library, and runs it against the release daemon, in a runtime folder of its own. A program passes
# by ending with 0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
out=$root/target/c-test
runtime=$(mktemp -d)
trap 'rm -rf "$runtime"' EXIT
mkdir -p "$out"
export PATH=$root/target/release:$PATH XDG_RUNTIME_DIR=$runtime

flags=(-std=c11 -Wall -Wextra -Werror -g -I crates/capi/include)
# What Rust's standard library needs of the system, for the static library.
system_libs=(-lpthread -ldl -lm)
passed=0 failed=0
for source in tests/c/*.c; do
  name=$(basename "$source" .c)
  cc "${flags[@]}" "$source" -o "$out/$name-shared" -L target/release -lrgaps -Wl,-rpath,"$root/target/release"
  cc "${flags[@]}" "$source" -o "$out/$name-static" target/release/librgaps.a "${system_libs[@]}"
  for program in "$out/$name-shared" "$out/$name-static"; do
    if timeout 60 "$program"; then passed=$((passed + 1)); echo "ok $(basename "$program")"
    else failed=$((failed + 1)); echo "FAILED $(basename "$program")"; fi
  done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
