#!/usr/bin/env bash
# Makes what examples/kv-cache needs: a Python with torch and the wheel in target/wheels, and the trained model. Prints the model's path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
demo=examples/kv-cache
out=target/kv-cache
tools/torch.sh
mkdir -p "$out"
sources=$(cat "$demo"/{model,tokenizer,train}.py | sha256sum | cut -c1-16)
model=$out/model-$sources.pt
if [ ! -e "$model" ]; then
  rm -f "$out"/model-*.pt # of other sources
  OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 target/torch/bin/python "$demo/train.py" --out "$model" >&2
fi
echo "$model"
