#!/usr/bin/env bash
# The module as dkms builds and installs it, with Debian's dkms and unpacked headers, all below target/kernel: nothing is
# installed on this machine. Arguments: the series of kernels.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=$PATH:/usr/sbin:/sbin
cache=$PWD/.cache/kernel/dkms
if [ ! -e "$cache/usr/sbin/dkms" ]; then
  mkdir -p "$cache"
  (cd "$cache" && apt-get download -qq -o APT::Sandbox::User=root dkms && dpkg -x dkms_*.deb . && rm dkms_*.deb)
fi
release=$(sed -n 's/^PACKAGE_VERSION="\(.*\)"$/\1/p' kernel/dmaplane/dkms.conf)
for series in "${@:-6.1}"; do
  kernel=$(kernel/kernels.sh "$series")
  version=$(basename "$kernel"/root/lib/modules/*)
  out=$PWD/target/kernel/$series/dkms
  rm -rf "$out"
  mkdir -p "$out/tree" "$out/modules/$version"
  make -s -C kernel/dmaplane install DESTDIR="$out"
  dkms() {
    "$cache/usr/sbin/dkms" "$@" -m dmaplane -v "$release" -k "$version" --dkmstree "$out/tree" --sourcetree "$out/usr/src" \
      --installtree "$out/modules" --kernelsourcedir "$kernel/headers" --no-depmod
  }
  for step in add build install; do
    dkms "$step" >"$out/log" 2>&1 || { cat "$out/log" "$out"/tree/dmaplane/$release/build/make.log 2>/dev/null; exit 1; }
  done
  module=$(find "$out/modules" -name 'dmaplane.ko*')
  [ "$(modinfo -F vermagic "$module" | cut -d' ' -f1)" = "$version" ]
  [ "$(modinfo -F version "$module")" = "$release" ]
  make -s -C kernel/dmaplane uninstall DESTDIR="$out"
  [ ! -e "$out/usr/src/dmaplane-$release" ]
  echo "kernel: $series: dkms installs ${module#"$out"/}"
done
