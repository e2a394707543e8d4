#!/usr/bin/env bash
# Builds the modules and the test programs against Debian's kernels: target/kernel/SERIES. Arguments: the series. The last line is JSON.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
modules=()
for series in "${@:-6.1}"; do
  kernel=$(kernel/kernels.sh "$series")
  for part in dmaplane tests; do
    out=$PWD/target/kernel/$series/$part
    mkdir -p "$out"
    # Kbuild writes beside the sources, so it gets copies. Those that are the same keep their times. What somebody built beside them stays there.
    rsync -a --checksum --exclude '*.mod.c' --include '*.[ch]' --include Kbuild --exclude '*' kernel/"$part"/ "$out"/
  done
  for part in dmaplane tests; do
    make -C "$kernel/headers" M="$PWD/target/kernel/$series/$part" CC=gcc CROSS_COMPILE= CONFIG_DEBUG_INFO_BTF_MODULES= W=1 \
      DMAPLANE_KUNIT="$(grep -qs '^CONFIG_KUNIT=y' "$kernel/headers/.config" && echo 1)" modules
  done
  modules+=("\"$series\": \"target/kernel/$series/dmaplane/dmaplane.ko\"")
done
(IFS=,; printf '{"modules": {%s}}\n' "${modules[*]}")
