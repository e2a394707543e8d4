#!/usr/bin/env bash
# Compiles tests/remote/*.cu and tests/remote/programs/*.cu with nvcc from its registry packages, into target/remote. The kernels are PTX
# without compression, for the test driver; a GPU's driver compiles it. What is newer than its sources stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=target/remote
tools/setup.sh nvcc math
# The linker finds the names of cuBLAS and others in our libraries.
libraries=$(realpath "${GPU_LIBS:-target/debug/gpu-libs}")
toolkit=$PWD/.cache/nvcc/nvidia/cu13
mkdir -p "$out/link"
ln -sf "$libraries/librgaps_gpu.so" "$out/link/librgaps_gpu.so"
# The linker asks for the name without a number.
ln -sf "$toolkit/lib/libcudart.so.13" "$out/link/libcudart.so"
for library in cublas.so.13 cublasLt.so.13 curand.so.10 cufft.so.12 cudnn.so.9; do
  ln -sf "$libraries/lib$library" "$out/link/lib${library%%.*}.so"
done
compile() {
  local program
  program=$out/$(basename "$1" .cu)
  [ "$program" -nt "$1" ] && [ "$program" -nt tests/remote/case.h ] && [ "$program" -nt tests/remote/programs/ok.h ] && return
  local more=()
  case $1 in */blas.cu | */math.cu | */absent.cu) more=(-I.cache/math/include -lcublasLt -lcublas -lcurand -lcufft -lcudnn -Xlinker --allow-shlib-undefined) ;;
    */topics.cu | examples/*) more=(-Icrates/capi/include -lrgaps_gpu) ;; esac
  "$toolkit/bin/nvcc" -O1 -std=c++17 -cudart shared -cudadevrt none --no-compress -Wno-deprecated-gpu-targets \
    -gencode arch=compute_75,code=compute_75 "-L$out/link" -Itests/remote "${more[@]}" -o "$program" "$1"
}
export -f compile
export out toolkit
printf '%s\0' tests/remote/*.cu tests/remote/programs/*.cu examples/gpu-remoting/*.cu | xargs -0 -n 1 -P 2 bash -c 'compile "$1"' _
# Without the shared runtime, to see that it is refused.
static=$out/static
[ "$static" -nt tests/remote/programs/saxpy.cu ] ||
  "$toolkit/bin/nvcc" -cudart static -cudadevrt none -gencode arch=compute_75,code=compute_75 "-L$toolkit/lib" -o "$static" \
    tests/remote/programs/saxpy.cu
# Stand-ins for the libraries above the runtime, which the server loads.
mkdir -p "$out/standins"
for library in cublas.so.13 cublasLt.so.13 curand.so.10 cufft.so.12 cudnn.so.9; do
  source=tests/remote/math/${library%%.*}.c to=$out/standins/lib$library
  [ "$to" -nt "$source" ] && [ "$to" -nt tests/remote/math/fake.h ] ||
    cc -O1 -std=gnu11 -Wall -Wno-deprecated-declarations -shared -fPIC "-Wl,-soname,lib$library" -I.cache/math/include "-I$toolkit/include" -o "$to" "$source" -ldl -lm
done
