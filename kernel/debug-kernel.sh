#!/usr/bin/env bash
# Builds a small kernel with KASAN, lockdep and leak detection from Debian's source package (kernel/debug.config), and
# prints its folder, which has the form of those of kernels.sh: .cache/kernel/6.12-debug/VERSION-CONFIG. The first time takes
# about 20 minutes of two processors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
series=6.12
cache=$PWD/.cache/kernel/$series-debug
config=$PWD/kernel/debug.config
say() { printf 'debug-kernel: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# The kernel of Debian's packages, whose lists of packages these sources come from.
debian=$(kernel/kernels.sh "$series")
into=$cache/$(basename "$debian")-$(sha256sum "$config" | cut -c 1-8)

unpack_source() {
  local apt=$PWD/.cache/kernel/$series/apt
  say "downloading the source of Linux $series"
  (cd "$1" && apt-get -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" \
    -o "Dir::Cache=$apt/cache" -o "Dir::State::status=$apt/status" -o APT::Sandbox::User=root \
    download -qq "linux-source-$series" &&
    dpkg --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" | tar -xJ --strip-components=1 &&
    rm linux-source-*.deb)
}

# Everything that was asked for must be there: a dependency that is missing drops an option without a word.
check_config() {
  local line
  while read -r line; do
    case $line in
      CONFIG_*) grep -qxF "$line" "$1/.config" || fail "the kernel cannot have $line" ;;
      "# CONFIG_"*) ! grep -qF "$(cut -d' ' -f2 <<<"$line")=" "$1/.config" || fail "the kernel insists on ${line#\# }" ;;
    esac
  done <"$config"
}

make_kernel() {
  local tree=$into.new/headers release
  local make=(make -s -C "$tree" CC=gcc LOCALVERSION=-dmaplane-debug KBUILD_BUILD_TIMESTAMP=1970-01-01)
  rm -rf "$into.new"
  mkdir -p "$tree"
  unpack_source "$tree"
  "${make[@]}" KCONFIG_ALLCONFIG="$config" allnoconfig >&2
  check_config "$tree"
  say "building it"
  "${make[@]}" -j "$(nproc)" bzImage modules >&2
  release=$("${make[@]}" kernelrelease)
  "${make[@]}" INSTALL_MOD_PATH="$into.new/root" modules_install >&2
  cp "$tree/arch/x86/boot/bzImage" "$into.new/vmlinuz"
  [ -d "$into.new/root/lib/modules/$release" ] || fail "no folder of modules"
  # What building modules does not need, which is most of it.
  find "$tree" -name '*.o' ! -path "$tree/scripts/*" ! -path "$tree/tools/*" -delete
  rm -rf "$into"
  mv "$into.new" "$into"
}

mkdir -p "$cache"
exec 8>"$cache/lock"
flock 8
[ -e "$into/vmlinuz" ] || make_kernel
find "$cache" -mindepth 1 -maxdepth 1 -type d ! -path "$into" -exec rm -rf {} +
echo "$into"
