#!/usr/bin/env bash
# Makes the virtual machines' kernel and initramfs from the distribution's kernel package, which is unpacked and not
# installed, and prints the folder with `vmlinuz` and `initramfs.gz`: .cache/vm/VERSION-HASH, kept for the next time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=$PWD/.cache/vm
# Where modprobe and depmod are, also for people who are not root.
PATH=$PATH:/usr/sbin:/sbin

# rxe does not add a device without a crc32 module; kernels from 6.16 on have it built in.
OPTIONAL_MODULES=(crc32_generic crc32_pclmul)
MODULES=(virtio_pci virtio_net 9pnet_virtio 9p veth rdma_rxe rdma_ucm ib_uverbs sch_netem sch_prio cls_u32)

say() { printf 'vm image: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# The packages that the distribution's newest kernel consists of. The cloud flavours have neither rxe nor 9p.
kernel_packages() {
  local meta found=""
  for meta in linux-image-amd64 linux-image-generic; do
    found=$(apt-cache depends "$meta" 2>/dev/null | grep -oE 'linux-(image|modules-extra)-[0-9][^ ]*') && break
  done
  [ -n "$found" ] || return 0
  echo "$found"
  # Ubuntu has the modules in packages of their own.
  local modules
  modules=$(sed -n 's/^linux-image-/linux-modules-/p' <<<"$found")
  if apt-cache show "$modules" >/dev/null 2>&1; then echo "$modules"; fi
}

# Where a package's unpacked files go: its version is in the name of what is downloaded, and in this.
version_of() { apt-cache show --no-all-versions "$1" | sed -n 's/^Version: //p' | sed -n 1p; }

# The stages of starting up that come before the host's files are there; tests/vm/init.sh is what follows.
write_first_init() {
  cat <<'INIT'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /shared
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || echo "vm: no module $module"; done </modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose host /host
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none shared /shared
. /shared/machine
. "/host$REPOSITORY/tests/vm/init.sh"
INIT
}

# The modules and what they need, in the order in which they are to be loaded, uncompressed: kernel's folder, version,
# folder to fill.
gather_modules() {
  local root=$1 version=$2 to=$3 module path name
  depmod -b "$root" "$version"
  for module in "${OPTIONAL_MODULES[@]}" "${MODULES[@]}"; do
    modprobe -d "$root" -S "$version" --show-depends "$module" 2>/dev/null ||
      [[ " ${OPTIONAL_MODULES[*]} " = *" $module "* ]] || fail "the kernel package has no module $module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$to/paths"
  while read -r path; do
    name=$(basename "$path")
    case $name in
      *.xz) name=${name%.xz}; xz -dc "$path" >"$to/$name" ;;
      *.zst) name=${name%.zst}; zstd -qdc "$path" >"$to/$name" ;;
      *) cp "$path" "$to/$name" ;;
    esac
    echo "$name"
  done <"$to/paths" >"$to/order"
  rm "$to/paths"
}

build() {
  local into=$1 version package
  shift
  say "downloading $*"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # apt's own user cannot write there, and it says so although nothing is wrong.
  (cd "$work" && apt-get download -qq "$@" 2>"$work/apt.log") || { cat "$work/apt.log" >&2; fail "cannot download $*; run 'apt-get update'"; }
  mkdir "$work/kernel"
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/kernel"; done
  # Where /lib is a link to /usr/lib, modules are packaged below that.
  [ -e "$work/kernel/lib" ] || ln -s usr/lib "$work/kernel/lib"
  version=$(basename "$work"/kernel/lib/modules/*)
  mkdir -p "$work/initramfs/bin" "$work/initramfs/modules"
  cp "$(command -v busybox)" "$work/initramfs/bin/busybox"
  gather_modules "$work/kernel" "$version" "$work/initramfs/modules"
  write_first_init >"$work/initramfs/init"
  chmod +x "$work/initramfs/init"
  mkdir -p "$into.new"
  (cd "$work/initramfs" && find . | cpio --quiet -o -H newc | gzip -1) >"$into.new/initramfs.gz"
  cp "$work/kernel/boot/vmlinuz-$version" "$into.new/vmlinuz"
  # Whole or not there; those of other versions go.
  find "$cache" -mindepth 1 -maxdepth 1 -type d ! -path "$into.new" -exec rm -rf {} +
  mv "$into.new" "$into"
  say "made $into"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
mapfile -t packages < <(kernel_packages)
if [ ${#packages[@]} -eq 0 ]; then
  # Without package lists, such as in a container's image, what was made before is as good.
  newest=$(ls -dt "$cache"/*/ 2>/dev/null | sed -n 1p)
  [ -z "$newest" ] || { echo "${newest%/}"; exit; }
  fail "apt knows no kernel package; run 'apt-get update'"
fi
hash=$(sha256sum tests/vm/image.sh | cut -c -8)
image=$cache/$(version_of "${packages[0]}")-$hash
[ -e "$image/vmlinuz" ] || build "$image" "${packages[@]}"
echo "$image"
