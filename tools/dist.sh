#!/usr/bin/env bash
# Makes dist/: what a machine without compilers needs to run rgaps and its tests, such as a borrowed
# one with a GPU. Stripped, and packed below a limit, since it travels.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
LIMIT_MIB=64
tools/setup.sh base rust python nvcc
rm -rf dist
mkdir -p dist/{bin,lib,include,wheels,tests/bin,bench}

cargo build --release --locked --quiet -p rgaps-chaos
cargo build --release --locked --quiet -p rgaps-races
cargo build --release --locked --quiet -p rgaps-compare
cargo build --release --locked --quiet -p rgaps-links
cp target/release/{rgaps,rgapsd,rgaps-links,rgaps-chaos,rgaps-races,rgaps-compare} dist/bin/
cp target/release/librgaps.so dist/lib/
cp -r crates/capi/include/. dist/include/
cp target/wheels/rgaps-*.whl dist/wheels/
cp -r tests/python dist/tests/
# Some of those tests run the examples.
mkdir dist/examples
cp -r examples/python examples/kv-cache dist/examples/
mkdir dist/demo
cp demo/about.py dist/demo/
cp bench/run.sh bench/python_latency.py bench/weights.py bench/remoting_delay.py bench/remoting_inline.py bench/remoting_lane.py bench/zeroing.py dist/bench/
cp tools/gpu-check.py dist/gpu-check
cp -r tools/gpu dist/
mkdir dist/device
cp tools/device/far.sh tools/device/hosts.sh dist/device/
chmod +x dist/gpu-check
# rgaps beside other ways, with the wheels of theirs that such a machine lacks.
mkdir -p dist/compare/wheels
cp bench/compare/*.py bench/compare/run bench/compare/wheels.txt dist/compare/
cached=.cache/compare-wheels
if ! cmp -s bench/compare/wheels.txt "$cached/wheels.txt"; then
  rm -rf "$cached"
  platforms=()
  for glibc in 39 35 34 31 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
  .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.12 --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 \
    --dest "$cached" -r bench/compare/wheels.txt
  cp bench/compare/wheels.txt "$cached/"
fi
cp "$cached"/*.whl dist/compare/wheels/
# GPU remoting: the libraries, the programs, and CUDA's shared runtime for the runs without them.
cargo build --release --locked --quiet -p rgaps-interpose
strip --strip-unneeded -o target/release/librgaps_gpu.stripped.so target/release/librgaps_gpu.so
mkdir -p dist/gpu-libs dist/remote/cudart
cp target/release/librgaps_gpu.stripped.so dist/gpu-libs/librgaps_gpu.so
tools/gpu-libs.py build dist/gpu-libs/librgaps_gpu.so dist/gpu-libs
GPU_LIBS=dist/gpu-libs tests/remote/build.sh
find target/remote -maxdepth 1 -type f -executable ! -name absent -exec cp {} dist/remote/ ';'
find dist/remote -maxdepth 1 -type f -exec strip {} +
cp tests/remote/run.py tests/remote/torch_steps.py dist/remote/
cc -O2 -pthread -o dist/bin/rgaps-delay bench/delay.c
cp .cache/nvcc/nvidia/cu13/lib/libcudart.so.13 dist/remote/cudart/
tools/device/build.sh cuda
cp target/device/check-cuda dist/bin/rgaps-device-check
cargo build --release --locked --quiet -p rgaps-gpu-verbs --example gpu-verbs-check
tools/device/build.sh rdma-cuda
cp target/release/examples/gpu-verbs-check dist/bin/rgaps-gpu-verbs-check
cp target/device/librdma-jobs-cuda.so dist/lib/
# The same with the header and test of an earlier commit, for `gpu-check --only device --match rounds`: DEVICE_BEFORE=be0d7db.
if [ -n "${DEVICE_BEFORE:-}" ]; then
  rm -rf target/device/before && mkdir -p target/device/before
  git archive "$DEVICE_BEFORE" crates/capi/include tests/device | tar -x -C target/device/before
  SOURCES=target/device/before tools/device/build.sh cuda
  cp target/device/check-cuda "dist/bin/rgaps-device-check-$(git rev-parse --short "$DEVICE_BEFORE")"
fi
git rev-parse HEAD >dist/revision

# The test programs that gpu-check runs: those that use what memory answers. Cargo names them as JSON.
cargo test --release --locked --no-run --message-format=json -p rgaps-cuda -p rgaps-kernels -p rgaps -p rgaps-cli -p rgaps-recording -p rgaps-view \
  --test conformance --test direct --test kernels --test cuda --test several --test streams --test pubsub --test bench_gpu |
  .venv/bin/python -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        package = message["manifest_path"].split("/")[-2]
        name = message["target"]["name"]
        shutil.copy(message["executable"], f"dist/tests/bin/{package}-{name}")
'
strip dist/bin/* dist/tests/bin/*
strip --strip-unneeded dist/lib/librgaps.so dist/lib/librdma-jobs-cuda.so
# The name that programs ask for; a copy, since not everything that carries files carries links.
cp dist/lib/librgaps.so dist/lib/librgaps.so.0
find dist -name __pycache__ -prune -exec rm -rf {} +

du -sh dist/*
# As a whole it is over what some machines take, so it is packed, too: unpack it there.
packed=target/dist.tar.xz
tar -cf - dist | xz -T0 -6 >"$packed"
size_mib=$(($(stat -c %s "$packed") >> 20))
[ "$size_mib" -lt "$LIMIT_MIB" ] || { echo "dist: $packed has $size_mib MiB, which is over $LIMIT_MIB MiB" >&2; exit 1; }
echo "dist: $(($(du -sb dist | cut -f1) >> 20)) MiB, $size_mib MiB as $packed"
