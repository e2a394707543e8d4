#!/usr/bin/env bash
# Copies what `make build` and `make links` made to where programs look for it; `tools/install.sh remove` takes the same
# files away again. Variables:
#   PREFIX      /usr/local
#   LIBDIR      $PREFIX/lib; on Debian /usr/lib/<triplet>
#   DESTDIR     put before every path, for packages; not written into any file
#   PROFILE     release, or debug for what `cargo build` made
#   TARGET_DIR  target
#
# Installed programs and libraries have names of functions for backtraces, but no line numbers, which would make them three
# times as large; the build in TARGET_DIR keeps them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=$prefix/include
docdir=$prefix/share/doc/rgaps
# `rgaps gpu run` looks for them there, from where it is itself.
gpudir=$prefix/lib/rgaps/gpu
root=${DESTDIR:-}
built=${TARGET_DIR:-target}/${PROFILE:-release}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | sed -n 1p)
for path in "$prefix" "$libdir"; do
  [[ $path = /* ]] || { echo "install: '$path' is not an absolute path" >&2; exit 1; }
done

if [ "${1:-}" = remove ]; then
  rm -f "$root$prefix"/bin/{rgaps,rgapsd,rgaps-links} "$root$includedir"/rgaps.h "$root$includedir"/rgaps/{thesis.h,communicator.h,gpu.h,device.h,device_layout.h,device.cuh,device_rdma_layout.h,device_rdma.cuh,device_link.cuh} \
    "$root$libdir"/librgaps.{a,so} "$root$libdir"/librgaps.so.* "$root$libdir"/pkgconfig/rgaps.pc \
    "$root$docdir"/LICENSE-{APACHE,MIT} "$root$gpudir"/librgaps_gpu.so "$root$gpudir"/libcu*.so.*
  for folder in "$root$includedir/rgaps" "$root$docdir" "$root$gpudir" "$root$prefix/lib/rgaps"; do
    if [ -d "$folder" ]; then rmdir --ignore-fail-on-non-empty "$folder"; fi
  done
  exit
fi

[ -f "$built/librgaps.so" ] || { echo "install: no $built/librgaps.so; run 'make build' first" >&2; exit 1; }

# The name that programs ask for at run time is in the library itself.
soname=$(readelf -d "$built/librgaps.so" | sed -n 's/.*Library soname: \[\(.*\)\]/\1/p')
install -d "$root$libdir/pkgconfig" "$root$includedir/rgaps" "$root$prefix/bin" "$root$docdir"
# Installs a program or library: mode, name, destination.
stripped() {
  install -m "$1" "$built/$2" "$root$3"
  strip --strip-debug "$root$3"
}
stripped 755 librgaps.so "$libdir/librgaps.so.$version"
ln -sf "librgaps.so.$version" "$root$libdir/$soname"
ln -sf "$soname" "$root$libdir/librgaps.so"
stripped 644 librgaps.a "$libdir/librgaps.a"
install -m 644 crates/capi/include/rgaps.h "$root$includedir/rgaps.h"
install -m 644 crates/capi/include/rgaps/{thesis.h,communicator.h,gpu.h,device.h,device_layout.h,device.cuh,device_rdma_layout.h,device_rdma.cuh,device_link.cuh} "$root$includedir/rgaps/"
install -m 644 LICENSE-APACHE LICENSE-MIT "$root$docdir/"
sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@INCLUDEDIR@|$includedir|; s|@VERSION@|$version|" \
  crates/capi/rgaps.pc.in >"$root$libdir/pkgconfig/rgaps.pc"
chmod 644 "$root$libdir/pkgconfig/rgaps.pc"
for program in rgaps rgapsd rgaps-links; do
  if [ -f "$built/$program" ]; then stripped 755 "$program" "$prefix/bin/$program"; fi
done
if [ -f "$built/librgaps_gpu.so" ]; then
  install -d "$root$gpudir"
  stripped 755 librgaps_gpu.so "$gpudir/librgaps_gpu.so"
  tools/gpu-libs.py build "$root$gpudir/librgaps_gpu.so" "$root$gpudir"
fi
