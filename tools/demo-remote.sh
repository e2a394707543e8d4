#!/usr/bin/env bash
# Plays the demo of GPU remoting; arguments go to demo/remote.py. With SUITE=1 it runs the programs of tests/remote before, on the same machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck disable=SC2086 # several words
cargo build --locked --quiet ${DEBUG_PROGRAMS:--p rgaps-cli -p rgaps-interpose -p rgaps-test-driver -p rgapsd}
tools/gpu-libs.py build target/debug/librgaps_gpu.so target/debug/gpu-libs
tests/remote/build.sh
if [ "${SUITE:-0}" = 1 ]; then
  tests/remote/suite.sh
  tests/remote/cable.py
fi
exec python3 demo/remote.py "$@"
