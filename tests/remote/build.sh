#!/usr/bin/env bash
# Compiles tests/remote/*.cu and tests/remote/programs/*.cu with nvcc from its registry packages, into target/remote. The kernels are PTX
# without compression, for the test driver; a GPU's driver compiles it. What is newer than its sources stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=target/remote
tools/setup.sh nvcc
toolkit=$PWD/.cache/nvcc/nvidia/cu13
mkdir -p "$out/link"
# The linker asks for the name without a number.
ln -sf "$toolkit/lib/libcudart.so.13" "$out/link/libcudart.so"
compile() {
  local program
  program=$out/$(basename "$1" .cu)
  [ "$program" -nt "$1" ] && [ "$program" -nt tests/remote/case.h ] && return
  "$toolkit/bin/nvcc" -O1 -std=c++17 -cudart shared -cudadevrt none --no-compress -Wno-deprecated-gpu-targets \
    -gencode arch=compute_75,code=compute_75 "-L$out/link" -Itests/remote -o "$program" "$1"
}
export -f compile
export out toolkit
printf '%s\0' tests/remote/*.cu tests/remote/programs/*.cu | xargs -0 -n 1 -P 2 bash -c 'compile "$1"' _
# Without the shared runtime, to see that it is refused.
static=$out/static
[ "$static" -nt tests/remote/programs/saxpy.cu ] ||
  "$toolkit/bin/nvcc" -cudart static -cudadevrt none -gencode arch=compute_75,code=compute_75 "-L$toolkit/lib" -o "$static" \
    tests/remote/programs/saxpy.cu
