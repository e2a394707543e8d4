#!/usr/bin/env bash
# Packs every crate that is published, as `cargo publish --dry-run` would before it asks crates.io, and without building what it packed
# (VERIFY=1 builds it). tests/workspace/tests/publishing.rs checks what the packages hold. Packing needs no network, but the crates
# that these depend on have to be here: on a fresh machine they are fetched first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo fetch --locked --quiet
options=(--workspace --locked --offline --allow-dirty --target-dir target/package)
[ "${VERIFY:-0}" = 1 ] || options+=(--no-verify)
# Packages of tests are members that are never published; nothing says so to `cargo package` but their names.
for member in $(cargo metadata --format-version 1 --no-deps --locked --offline | python3 -c '
import json, sys
print(*(package["name"] for package in json.load(sys.stdin)["packages"] if package["publish"] == []))
'); do
  options+=(--exclude "$member")
done
output=$(cargo package "${options[@]}" 2>&1) || { printf '%s\n' "$output" >&2; exit 1; }
# Cargo only warns of what crates.io refuses.
if grep -A 3 '^warning: manifest has no' <<<"$output" >&2; then exit 1; fi
printf 'packed %d crates\n' "$(grep -c '^ *Packaged' <<<"$output")"
