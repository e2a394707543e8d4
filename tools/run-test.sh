#!/usr/bin/env bash
# Cargo's runner for test programs in `make unit` and `make loom`: one that hangs is ended after
# TEST_SECONDS, and one that fails is run once more, so that the other tests run too. What passes only then is a
# bug: `make test` names it at the end and fails.
# RETRY=0 takes the first result. With TEST_CLAIMS, a folder, several runs share the programs: each runs once, and what it
# prints comes in one piece.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# Some tests build programs. With these variables of cargo's, that would build `ring` and all above it anew each time.
unset CARGO_MANIFEST_DIR CARGO_MANIFEST_PATH "${!CARGO_PKG_@}"
limit=${TEST_SECONDS:-600}

run() {
  if [ -z "${TEST_CLAIMS:-}" ]; then "$here/limit.sh" "$limit" "$@"; return; fi
  local folder=$TEST_CLAIMS/${1##*/} code=0 begun=$SECONDS
  local log=$folder/log
  "$here/limit.sh" "$limit" "$@" >"$log" 2>&1 || code=$?
  printf '%4d s %s\n' $((SECONDS - begun)) "${1##*/}" >"$folder/seconds"
  printf '\n     Running %s\n%s\n' "$*" "$(<"$log")"
  return "$code"
}

if [ -n "${TEST_CLAIMS:-}" ]; then mkdir "$TEST_CLAIMS/${1##*/}" 2>/dev/null || exit 0; fi
run "$@" && exit
code=$?
[ "${RETRY:-1}" = 0 ] && exit "$code"
printf '\nrun-test: %s failed (%d); once more\n' "$1" "$code" >&2
run "$@" || exit
mkdir -p "$here/../target"
printf '%s\n' "$*" >>"$here/../target/unsteady"
