#!/usr/bin/env bash
# `make test`: every step in order, cheap ones first, stopping at the first that fails. Each step is
# a target of its own, so a failure can be looked at alone.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

STEPS=(setup check unit loom build c-test python chaos aarch64)
# A shorter crash test than `make chaos` alone; the seed is printed with every result.
export KILLS=${TEST_KILLS:-200} SEED=${SEED:-1}

summary=()
start_all=$SECONDS
for step in "${STEPS[@]}"; do
  printf '\n==== make %s\n' "$step"
  start=$SECONDS
  if ! make "$step"; then
    printf '\nmake test: FAILED in step "%s"; run "make %s" to see it alone\n' "$step" "$step" >&2
    exit 1
  fi
  summary+=("$(printf '%-10s %4d s' "$step" $((SECONDS - start)))")
done

printf '\n==== every step passed\n'
printf '%s\n' "${summary[@]}"
printf '%-10s %4d s\n' all $((SECONDS - start_all))
