#!/usr/bin/env bash
# Device topics between processes, with threads in place of kernels: in host memory, and in the memory of two GPUs of the test
# driver. Seconds of each demo: SECONDS_EACH=4.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
each=${SECONDS_EACH:-4} seed=${SEED:-1}
built=$PWD/target/${PROFILE:-release}
tools/device/build.sh host
check=target/device/check
$check latency --messages 500 --bytes 4096 --subscribers 2
$check rate --messages 2000 --blocks 2
driver=$built/librgaps_test_driver.so
[ -f "$driver" ] || driver=$built/deps/librgaps_test_driver.so
# With ordinary topics: through a daemon of our own.
runtime=$(mktemp -d)
trap 'rm -rf "$runtime"' EXIT
export RGAPS_DAEMON=$built/rgapsd RGAPS_IDLE_EXIT_MS=1000 RGAPS_POOL__HOST__CAP=64MiB RGAPS_POOL__CUDA__CAP=64MiB
RGAPS_SOCKET=$runtime/host.sock $check meet --messages 2000 --kills 8 --seed "$seed"
RGAPS_SOCKET=$runtime/seats.sock RGAPS_LIMITS__DEVICE_STALL_MS=5000 $check seats --kills 12 --seed "$seed"
export RGAPS_CUDA_LIBRARY=$driver RGAPS_TEST_DRIVER_DEVICES=2 RGAPS_TEST_DRIVER_PEERS=all
$check demo --domain cuda --seconds "$each" --kills 12 --seed "$seed"
RGAPS_SOCKET=$runtime/cuda.sock $check meet --domain cuda --messages 1000 --kills 6 --seed "$seed"
$check latency --domain cuda --peer cuda:1 --messages 500 --bytes 65536
# Two hosts.
unset RGAPS_CUDA_LIBRARY RGAPS_DAEMON RGAPS_IDLE_EXIT_MS RGAPS_POOL__HOST__CAP RGAPS_POOL__CUDA__CAP
tools/device/far.sh
