#!/usr/bin/env bash
# Plays the demo of a KV cache between two hosts with the wheel in target/wheels. Arguments go to examples/kv-cache/play.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh hosts
model=$(tools/kv-model.sh)
python=target/torch/bin/python
programs=$("$python" -c 'import pathlib, rgaps; print(pathlib.Path(rgaps.__file__).parent / "bin")')
export PYTHONPATH=$PWD/demo
exec "$python" examples/kv-cache/play.py --model "$model" --out target/kv-cache/run --programs "$programs" "$@"
