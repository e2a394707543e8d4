#!/usr/bin/env bash
# Installs the wheel into .venv and runs the Python tests against the release daemon. Arguments go
# to pytest: `tools/pytest.sh -k loan -x`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
.venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps target/wheels/rgaps-*.whl
export PATH=$PWD/target/release:$PATH
exec .venv/bin/python -m pytest tests/python "$@"
