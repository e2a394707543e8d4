#!/usr/bin/env bash
# Kernel style: checkpatch of the kernel whose source package is newest here, on what is ours. Warnings fail.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=$PWD/.cache/kernel/checkpatch
if [ ! -e "$cache/scripts/checkpatch.pl" ]; then
  mkdir -p "$cache"
  (cd "$cache" && apt-get download -qq -o APT::Sandbox::User=root linux-source-6.1 && dpkg --fsys-tarfile linux-source-6.1_*.deb |
    tar -xO ./usr/src/linux-source-6.1.tar.xz | tar -xJ --strip-components=1 --wildcards '*/scripts/checkpatch.pl' \
    '*/scripts/spelling.txt' '*/scripts/const_structs.checkpatch' && rm linux-source-6.1_*.deb)
fi
# Out of tree, so versions are compared; the programs of the tests are for user space.
shopt -s extglob
perl "$cache/scripts/checkpatch.pl" --no-tree --terse --no-summary \
  --ignore LINUX_VERSION_CODE,FILE_PATH_CHANGES -f kernel/dmaplane/!(*.mod).[ch] kernel/tests/*.[ch] kernel/tests/user/*.[ch]
