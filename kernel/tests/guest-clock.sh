#!/usr/bin/env bash
# Prints what a QEMU guest's kernel is told of its clock: the time stamp counter, and how fast it is (see tsc.c).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
gcc -O1 -Wall -Wextra -Werror -o "$folder/tsc" "$(dirname "${BASH_SOURCE[0]}")/tsc.c"
echo "tsc=reliable clocksource=tsc tsc_early_khz=$("$folder/tsc")"
