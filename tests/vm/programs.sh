#!/usr/bin/env bash
# Builds test programs of a package and puts them in target/vm/programs under their plain names, for suites to run:
# tests/vm/programs.sh PACKAGE TEST...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
package=$1
shift
mkdir -p target/vm/programs
for test; do
  # Cargo's names for them have a hash at the end.
  built=$(cargo test --locked --quiet --package "$package" --test "$test" --no-run --message-format json |
    grep '"kind":\["test"\]' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
  ln -f "$built" "target/vm/programs/$test"
done
