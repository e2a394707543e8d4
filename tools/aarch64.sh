#!/usr/bin/env bash
# Cross-builds everything for 64-bit Arm and runs the pure crates' tests under qemu-user. qemu-user
# runs one process's instructions, not an Arm kernel: what needs the kernel's memory and process
# calls is only built, and in `make test` (WHOLE) only checked. On an Arm machine `make test` runs it all natively.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "$(uname -m)" = aarch64 ]; then
  echo "aarch64: this machine is one; the other steps ran natively"
  exit 0
fi
tools/setup.sh base rust aarch64
# Nobody looks at line numbers in what is only built.
export CARGO_PROFILE_DEV_DEBUG=0
cross=(--locked --target aarch64-unknown-linux-gnu --target-dir target/aarch64)
# Without the links and the bridge: Zenoh takes minutes to build, and nothing of it was tried there.
how=build
[ -z "${WHOLE:-}" ] || how=check
cargo "$how" "${cross[@]}" --workspace --exclude rgaps-python --exclude rgaps-links --exclude rgaps-bridge
# One of them counts steps, millions of them, and says nothing of an instruction set.
cargo test "${cross[@]}" -p rgaps-layout -p rgaps-topic -- --skip asking_for_room_does_not_look_at_the_whole_history
# qemu-user 7.2 (Debian 12) does not know futex_waitv.
cargo test "${cross[@]}" -p rgaps-sync -- --skip futex
cargo test "${cross[@]}" -p rgaps-pool --lib tlsf
