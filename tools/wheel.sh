#!/usr/bin/env bash
# Builds the abi3 wheel into target/wheels and installs it into .venv. It shares target/ with the
# release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh base rust python
rm -f target/wheels/rgaps-*.whl
.venv/bin/maturin build --release --locked --quiet \
  --manifest-path crates/python/Cargo.toml --target-dir target --out target/wheels
.venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
  target/wheels/rgaps-*.whl
