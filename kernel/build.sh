#!/usr/bin/env bash
# Builds the modules and the test programs against Debian's kernels: target/kernel/SERIES. Arguments: the series.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for series in "${@:-6.1}"; do
  kernel=$(kernel/kernels.sh "$series")
  for part in dmaplane tests; do
    out=$PWD/target/kernel/$series/$part
    mkdir -p "$out"
    # Kbuild writes beside the sources, so it gets copies. Those that are the same keep their times.
    rsync -a --checksum kernel/"$part"/ "$out"/
  done
  make -C "$kernel/headers" M="$PWD/target/kernel/$series/dmaplane" CC=gcc CROSS_COMPILE= CONFIG_DEBUG_INFO_BTF_MODULES= W=1 modules
  [ ! -e "kernel/tests/Kbuild" ] || make -C "$kernel/headers" M="$PWD/target/kernel/$series/tests" CC=gcc CROSS_COMPILE= CONFIG_DEBUG_INFO_BTF_MODULES= W=1 modules
  echo "kernel: $series: target/kernel/$series/dmaplane/dmaplane.ko"
done
