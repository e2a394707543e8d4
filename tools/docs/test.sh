#!/usr/bin/env bash
# Runs the code blocks of the documents (tests/docs) with the wheel in .venv and what was built. Arguments go to
# pytest: `tools/docs/test.sh -k tutorials -x`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools/setup.sh base rust python
PROFILE=${PROFILE:-release} PREFIX=$PWD/target/docs-test/installed tools/install.sh
exec .venv/bin/python -m pytest tests/docs "$@"
