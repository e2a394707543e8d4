#!/usr/bin/env bash
# Builds the abi3 wheel into target/wheels and installs it into .venv. It shares target/ with the
# build of PROFILE, `release` or `debug`. The wheel carries the programs, so that `pip install` is all that a user needs.
#
# LINKS=no leaves out rgaps-links, whose dependencies take minutes to build, unless it was built before. Such a wheel
# goes to target/demo/wheels: it is for this machine only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh base rust python
folder=${PROFILE:-release}
profile=${folder/debug/dev}
programs=(rgapsd rgaps rgaps-links)
wheels=target/wheels
if [ "${LINKS:-yes}" = no ]; then
  wheels=target/demo/wheels
  if [ -e "target/$folder/rgaps-links" ]; then
    cargo build --profile "$profile" --locked --quiet -p rgaps-links
  else
    programs=(rgapsd rgaps)
  fi
fi
rm -f "$wheels"/rgaps-*.whl
carried=crates/python/python/rgaps/bin
rm -rf "$carried"
mkdir -p "$carried"
for program in "${programs[@]}"; do
  strip -o "$carried/$program" "target/$folder/$program"
done
.venv/bin/python tools/third-party.py crates/python/LICENSES-THIRD-PARTY rgapsd rgaps-cli rgaps-links rgaps-python
.venv/bin/maturin build --profile "$profile" --locked --quiet \
  --manifest-path crates/python/Cargo.toml --target-dir target --out "$wheels"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
  "$wheels"/rgaps-*.whl
