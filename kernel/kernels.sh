#!/usr/bin/env bash
# Unpacks Debian's kernel of a series with its headers, installing nothing, and prints the folder, which is kept:
# .cache/kernel/SERIES/VERSION with `headers` (for Kbuild), `vmlinuz` and `lib/modules`. Series: 6.1 is Debian 12's,
# 6.12 its backports'; apt reads their lists in a folder of this repository, so the system's sources stay as they are. 6.12-debug is
# built here, by kernel/debug-kernel.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin

series=${1:?usage: kernels.sh 6.1|6.12|6.12-debug}
case $series in
  6.12-debug) exec kernel/debug-kernel.sh ;;
  6.1) suites=("bookworm main" "bookworm-security main") ;;
  6.12) suites=("bookworm-backports main") ;;
  *) echo "kernels: no series $series; there are 6.1, 6.12 and 6.12-debug" >&2; exit 1 ;;
esac
cache=$PWD/.cache/kernel/$series
say() { printf 'kernels: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

apt=$cache/apt
options=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
  -o "Dir::Cache=$apt/cache" -o "Dir::State::status=$apt/status" -o APT::Sandbox::User=root)

write_sources() {
  local suite base
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  touch "$apt/status"
  for suite in "${suites[@]}"; do
    case $suite in *-security*) base=debian-security ;; *) base=debian ;; esac
    echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/$base $suite"
  done >"$apt/sources.list"
}

# The package that a meta package depends on.
real() { apt-cache "${options[@]}" depends "$1" | sed -n 's/^ *Depends: *\(linux-[^ ]*\)$/\1/p' | sed -n 1p; }

# Debian's header packages name each other by absolute paths, which are below this folder now.
relocate() {
  local root=$1 headers=$2 common
  common=$(sed -n 's,^include /usr/src/\(.*\)/Makefile$,\1,p' "$root/usr/src/$headers/Makefile")
  [ -n "$common" ] || fail "the headers of $headers look otherwise than expected"
  echo "include $3/root/usr/src/$common/Makefile" >"$root/usr/src/$headers/Makefile"
}

make_kernel() {
  local into=$1 image=$2 headers=$3 package kbuild common
  common=${headers%-amd64}-common
  kbuild=$(apt-cache "${options[@]}" depends "$headers" | sed -n 's/^ *Depends: *\(linux-kbuild-.*\)$/\1/p' | sed -n 1p)
  say "downloading $image, $headers"
  rm -rf "$into.new"
  mkdir -p "$into.new/root" "$into.new/debs"
  (cd "$into.new/debs" && apt-get "${options[@]}" download -qq "$image" "$headers" "$common" "$kbuild")
  for package in "$into.new"/debs/*.deb; do dpkg -x "$package" "$into.new/root"; done
  rm -r "$into.new/debs"
  relocate "$into.new/root" "$headers" "$into"
  ln -s "root/usr/src/$headers" "$into.new/headers"
  cp "$into.new"/root/boot/vmlinuz-* "$into.new/vmlinuz"
  [ -e "$into.new/root/lib/modules" ] || ln -s usr/lib "$into.new/root/lib"
  depmod -b "$into.new/root" "$(basename "$into.new"/root/lib/modules/*)"
  rm -rf "$into"
  mv "$into.new" "$into"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
write_sources
if ! apt-get "${options[@]}" update -qq >"$cache/apt.log" 2>&1; then
  newest=$(find "$cache" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' ! -name '*.new' -printf '%T@ %p\n' | sort -n | tail -n 1)
  [ -n "$newest" ] || { cat "$cache/apt.log" >&2; fail "cannot reach the package archive"; }
  say "cannot reach the package archive; what was made before is as good"
  echo "${newest#* }"
  exit
fi
image=$(real linux-image-amd64)
headers=$(real linux-headers-amd64)
[ -n "$image" ] && [ -n "$headers" ] || fail "the archive has no linux-image-amd64 of $series"
version=$(apt-cache "${options[@]}" show --no-all-versions "$image" | sed -n 's/^Version: //p' | sed -n 1p)
into=$cache/${version//\~/-}
[ -e "$into/vmlinuz" ] || make_kernel "$into" "$image" "$headers"
# Those of other versions go.
find "$cache" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' ! -path "$into" -exec rm -rf {} +
echo "$into"
