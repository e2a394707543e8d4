#!/usr/bin/env bash
# Compiles tests/device/check.cu with the C library in it: `host`, where threads take the place of kernels (target/device/check),
# or `cuda` (target/device/check-cuda), which needs `tools/setup.sh nvcc` and no GPU. PROFILE=debug takes what `cargo build` made.
# `rdma-host` and `rdma-cuda` compile tests/rdma/jobs.cu to libraries for gpu-verbs-check: target/device/librdma-jobs[-cuda].so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
built=target/${PROFILE:-release}
out=target/device
mkdir -p "$out"
# Header and test; SOURCES is a folder with those of another commit.
sources=${SOURCES:-.}
includes=("-I$sources/crates/capi/include" "-I$sources/tests/device")
library=("$built/librgaps.a" -lgcc_s -lutil -lrt -lpthread -lm -ldl)
# Machine code for the GPUs that we measure on, and PTX for later ones.
toolkit=.cache/nvcc/nvidia/cu13
architectures=(-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90)
nvcc=("$toolkit/bin/nvcc" -std=c++17 -O3 "${architectures[@]}" -Xcompiler -Wall,-Wextra -Werror all-warnings -cudart static -L"$toolkit/lib")
cxx=("${CXX:-c++}" -std=c++17 -O2 -g -Wall -Wextra -Werror)
rdma=(-Icrates/capi/include -Itests/rdma tests/rdma/jobs.cu -shared)
case ${1:-} in
  host) "${cxx[@]}" "${includes[@]}" -x c++ "$sources/tests/device/check.cu" -x none -o "$out/check" "${library[@]}" ;;
  cuda) "${nvcc[@]}" "${includes[@]}" -Xptxas -warn-spills,-warn-lmem-usage "$sources/tests/device/check.cu" -o "$out/check-cuda" "${library[@]}" ;;
  rdma-host) "${cxx[@]}" -fPIC -pthread -x c++ "${rdma[@]}" -o "$out/librdma-jobs.so" ;;
  rdma-cuda) "${nvcc[@]}" -Xcompiler -fPIC -Xptxas -warn-spills "${rdma[@]}" -o "$out/librdma-jobs-cuda.so" ;;
  *) echo "usage: tools/device/build.sh host|cuda|rdma-host|rdma-cuda" >&2; exit 2 ;;
esac
