#!/usr/bin/env bash
# Runs the Python tests with the wheel in .venv and the release daemon. Arguments go to pytest:
# `tools/pytest.sh -k loan -x`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PWD/target/release:$PATH
exec .venv/bin/python -m pytest tests/python "$@"
