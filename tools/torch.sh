#!/usr/bin/env bash
# Makes target/torch, a Python environment with the system's torch (for the CPU), pytest, and the wheel in target/wheels. Ends with 3 where the
# system's torch is older than rgaps can use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh base torch >&2
python=target/torch/bin/python
# The system's torch is for the system's Python.
"$python" -c 'import torch' 2>/dev/null || /usr/bin/python3 -m venv --clear --system-site-packages target/torch
version=$("$python" -c 'import torch; print(torch.__version__)')
if [ "$(printf '%s\n' 1.13 "$version" | sort -V | sed -n 1p)" != 1.13 ]; then
  echo "torch.sh: this system's torch is $version; rgaps needs 1.13" >&2
  exit 3
fi
"$python" -m pip install --quiet --disable-pip-version-check 'pytest>=8,<10' 'pytest-timeout>=2.3,<3' 'numpy>=1.26,<2' 'rosbags>=0.11,<0.12' >&2
"$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps target/wheels/rgaps-*.whl >&2
