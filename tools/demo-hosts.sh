#!/usr/bin/env bash
# Runs the demo of two hosts with the wheel in .venv and the programs in it. Arguments go to demo/hosts.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
programs=$(.venv/bin/python -c 'import pathlib, rgaps; print(pathlib.Path(rgaps.__file__).parent / "bin")')
exec .venv/bin/python demo/hosts.py --programs "$programs" "$@"
