#!/usr/bin/env bash
# Builds the abi3 wheel into target/wheels and installs it into .venv. It shares target/ with the
# release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh base rust python
rm -f target/wheels/rgaps-*.whl
# The wheel carries the programs, so that `pip install` is all that a user needs.
programs=crates/python/python/rgaps/bin
rm -f "$programs"/rgaps*
for program in rgapsd rgaps; do
  if [ -e "target/release/$program" ]; then strip -o "$programs/$program" "target/release/$program"; fi
done
.venv/bin/maturin build --release --locked --quiet \
  --manifest-path crates/python/Cargo.toml --target-dir target --out target/wheels
.venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
  target/wheels/rgaps-*.whl
