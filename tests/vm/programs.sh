#!/usr/bin/env bash
# Builds examples and test programs and puts them in target/vm/programs under their plain names, for suites to run:
# tests/vm/programs.sh PACKAGES NAME... Cargo's names for tests have a hash at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
read -ra packages <<<"$1"
shift
mkdir -p target/vm/programs
targets=()
for name; do
  if compgen -G "crates/*/examples/$name.rs" >/dev/null; then targets+=(--example "$name"); else targets+=(--test "$name"); fi
done
cargo build --locked --quiet "${packages[@]}" "${targets[@]}" --message-format json >target/vm/programs.json
for name; do
  built=$(grep "\"name\":\"$name\"" target/vm/programs.json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
  ln -f "$built" "target/vm/programs/$name"
done
