#!/usr/bin/env bash
# Cargo's runner for test programs in `make unit` and `make loom`: one that hangs is ended after
# TEST_SECONDS, and one that fails is run once more, so that the other tests run too. What passes only then is a
# bug: `make test` names it at the end and fails.
# RETRY=0 takes the first result.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
limit=${TEST_SECONDS:-600}

"$here/limit.sh" "$limit" "$@" && exit
code=$?
[ "${RETRY:-1}" = 0 ] && exit "$code"
printf '\nrun-test: %s failed (%d); once more\n' "$1" "$code" >&2
"$here/limit.sh" "$limit" "$@" || exit
mkdir -p "$here/../target"
printf '%s\n' "$*" >>"$here/../target/unsteady"
