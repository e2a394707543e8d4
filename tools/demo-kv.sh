#!/usr/bin/env bash
# Trains the model of examples/kv-cache, once, and plays the demo with the wheel in target/wheels. Arguments go to play.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
demo=examples/kv-cache
out=target/kv-cache
tools/setup.sh base hosts torch
# The system's torch is for the system's Python, and its numpy.
python=$out/venv/bin/python
"$python" -c 'import torch' 2>/dev/null || /usr/bin/python3 -m venv --clear --system-site-packages "$out/venv"
"$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps target/wheels/rgaps-*.whl
sources=$(cat "$demo"/{model,tokenizer,train}.py | sha256sum | cut -c1-16)
model=$out/model-$sources.pt
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONPATH=$PWD/demo
[ -e "$model" ] || "$python" "$demo/train.py" --out "$model"
programs=$("$python" -c 'import pathlib, rgaps; print(pathlib.Path(rgaps.__file__).parent / "bin")')
exec "$python" "$demo/play.py" --model "$model" --out "$out/run" --programs "$programs" "$@"
