#!/usr/bin/env bash
# The programs themselves print the page of the command line, so the site always has the newest. If the page in docs/
# is older, this writes it again; in `make test` that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
page=docs/reference/cli.md
# shellcheck disable=SC2086 # several words
cargo build --locked --quiet ${DEBUG_PROGRAMS:--p rgaps-cli -p rgapsd -p rgaps-links}
target/debug/rgaps reference >target/cli.md
for program in rgapsd rgaps-links; do
  printf '## %s\n\n```text\n%s\n```\n\n' "$program" "$("target/debug/$program" --help)" >>target/cli.md
done
if ! cmp -s "$page" target/cli.md; then
  cp target/cli.md "$page"
  echo "docs: $page was older than the commands and is written again; commit it"
  [ -z "${RGAPS_TEST_RUN:-}" ] || exit 1
fi
