#!/usr/bin/env bash
# Runs the Python tests with the wheel in .venv and the daemon of PROFILE. Arguments go to pytest:
# `tools/pytest.sh -k loan -x`. Without arguments, the tests of tensors run once more, with torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PWD/target/${PROFILE:-release}:$PATH
.venv/bin/python -m pytest tests/python "$@"
[ $# = 0 ] || exit 0
tools/torch.sh || { [ $? = 3 ]; exit; }
target/torch/bin/python -m pytest tests/python/test_{torch,multiprocessing,weights,kv_torch,kv_demo}.py
