#!/usr/bin/env bash
# Runs the demo with the wheel in .venv and the daemon in it. Arguments go to demo/run.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python demo/run.py "$@"
