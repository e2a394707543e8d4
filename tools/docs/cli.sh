#!/usr/bin/env bash
# The page of the command line is printed by the command line itself. Fails if the page in docs/ is an older one, and
# writes the new one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
page=docs/reference/cli.md new=target/cli.md
cargo run --locked --quiet -p rgaps-cli -- reference >"$new"
if ! cmp -s "$page" "$new"; then
  cp "$new" "$page"
  echo "docs: $page was older than the commands; it is written again: look at it and commit it" >&2
  exit 1
fi
