#!/usr/bin/env bash
# Runs the code blocks of the documents (tests/docs) with the wheel in .venv and what was built; pages that use torch with the system's torch. Arguments
# go to pytest: `tools/docs/test.sh -k tutorials -x`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools/setup.sh base rust python
PROFILE=${PROFILE:-release} PREFIX=$PWD/target/docs-test/installed tools/install.sh
others=()
if [ $# = 0 ] && tools/torch.sh; then
  with_torch=()
  for page in $(grep -rl 'needs torch -->' README.md docs); do
    page="tests/docs/test_pages.py::test_every_example_runs[$page]"
    with_torch+=("$page")
    others+=(--deselect "$page")
  done
  target/torch/bin/python -m pytest "${with_torch[@]}"
fi
exec .venv/bin/python -m pytest tests/docs "${others[@]}" "$@"
