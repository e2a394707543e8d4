#!/usr/bin/env bash
# Compiles crates/device/src/tensor.cu to tensor.ptx beside it, for every GPU from Turing on. `check` compares instead of writing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
toolkit=.cache/nvcc/nvidia/cu13
text=crates/device/src/tensor.ptx
made=target/device/tensor.ptx
mkdir -p target/device
"$toolkit/bin/nvcc" -std=c++17 -O3 -Icrates/capi/include -arch=compute_75 -ptx -Werror all-warnings \
  crates/device/src/tensor.cu -o "$made.whole"
# Without comments, which name files; and of a version that drivers from R450 on take: nothing newer is in it.
sed -e '/^\/\//d' -e '/^[[:space:]]*\/\//d' -e '/^$/d' -e 's/^\.version .*/.version 7.0/' "$made.whole" >"$made"
"$toolkit/bin/ptxas" -arch=sm_75 -warn-spills -Werror "$made" -o "$made.cubin"
case ${1:-} in
  check) cmp "$made" "$text" || { echo "$text is not what tensor.cu and the headers say: run tools/device/tensor.sh" >&2; exit 1; } ;;
  '') cp "$made" "$text" ;;
  *) echo "usage: tools/device/tensor.sh [check]" >&2; exit 2 ;;
esac
