#!/usr/bin/env bash
# Copies what `make build` made to where programs look for it. Variables:
#   PREFIX      /usr/local
#   LIBDIR      $PREFIX/lib; on Debian /usr/lib/<triplet>
#   DESTDIR     put before every path, for packages; not written into any file
#   PROFILE     release, or debug for what `cargo build` made
#   TARGET_DIR  target
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=$prefix/include
root=${DESTDIR:-}
built=${TARGET_DIR:-target}/${PROFILE:-release}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for path in "$prefix" "$libdir"; do
  [[ $path = /* ]] || { echo "install: '$path' is not an absolute path" >&2; exit 1; }
done
[ -f "$built/librgaps.so" ] || { echo "install: no $built/librgaps.so; run 'make build' first" >&2; exit 1; }

# The name that programs ask for at run time is in the library itself.
soname=$(readelf -d "$built/librgaps.so" | sed -n 's/.*Library soname: \[\(.*\)\]/\1/p')
install -d "$root$libdir/pkgconfig" "$root$includedir/rgaps" "$root$prefix/bin"
install -m 755 "$built/librgaps.so" "$root$libdir/librgaps.so.$version"
ln -sf "librgaps.so.$version" "$root$libdir/$soname"
ln -sf "$soname" "$root$libdir/librgaps.so"
install -m 644 "$built/librgaps.a" "$root$libdir/librgaps.a"
install -m 644 crates/capi/include/rgaps.h "$root$includedir/rgaps.h"
install -m 644 crates/capi/include/rgaps/thesis.h "$root$includedir/rgaps/thesis.h"
sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@INCLUDEDIR@|$includedir|; s|@VERSION@|$version|" \
  crates/capi/rgaps.pc.in >"$root$libdir/pkgconfig/rgaps.pc"
chmod 644 "$root$libdir/pkgconfig/rgaps.pc"
for program in rgaps rgapsd rgaps-links; do
  if [ -f "$built/$program" ]; then install -m 755 "$built/$program" "$root$prefix/bin/$program"; fi
done
