#!/usr/bin/env bash
# Boots a built module with Debian's kernel in QEMU, with two NUMA nodes, and runs the tests. Arguments: the series of
# kernels. KILLS, FUZZ_S, SEED and FILTER (a part of tests' names) from the environment. The last line is JSON.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=$PATH:/usr/sbin:/sbin
KILLS=${KILLS:-500} FUZZ_S=${FUZZ_S:-10} SEED=${SEED:-1} FILTER=${FILTER:-}
# A kill takes 40 ms on two idle cores.
LIMIT_S=${LIMIT_S:-$((900 + FUZZ_S + KILLS / 5))}
# What the tests use of the kernel's own modules.
MODULES=(crc32_generic veth rdma_rxe)
# Lines of the kernel's log that mean a bug. What the kernel says of itself at boot is not among them.
SPLAT='WARNING:|BUG:|KASAN|UBSAN|unreferenced object|Oops|general protection|possible (circular|recursive) locking|INFO: task .* blocked|possible deadlock|refcount_t|Call Trace'

# A program of this machine with the libraries that it needs.
copy_program() {
  cp "$1" "$2/bin/"
  ldd "$1" | grep -oE '/[^ ]+' | while read -r library; do
    mkdir -p "$2$(dirname "$library")"
    cp -L "$library" "$2$library"
  done
}

# The first block of a language in a page. It reads the page to its end: `sed` writes the page to it through a pipe.
block() { awk -v fence="^\`\`\`$1\$" '/^```$/ && on { ended = 1 } on && !ended { print } $0 ~ fence { on = 1 }'; }

make_image() {
  local series=$1 out=$2 kernel=$3 root module version
  root=$out/root
  rm -rf "$root"
  mkdir -p "$root/bin" "$root/modules"
  cp "$(command -v busybox)" "$root/bin/busybox"
  cp kernel/tests/init "$root/init"
  copy_program "$(command -v rdma)" "$root"
  copy_program "$(command -v ip)" "$root"
  gcc -O1 -g -Wall -Wextra -Werror -D_GNU_SOURCE -static -pthread -o "$root/bin/dmaplane-test" kernel/tests/user/*.c \
    2>&1 >&2 || return
  # The program of docs/how-to/dmaplane.md, and what the page says that it prints.
  block c <docs/how-to/dmaplane.md >"$out/share.c"
  gcc -O1 -Wall -Wextra -Werror -static -Ikernel/dmaplane -o "$root/bin/share" "$out/share.c" 2>&1 >&2 || return
  sed -n '/^sudo .\/share$/,$p' docs/how-to/dmaplane.md | block text >"$root/share.txt"
  version=$(basename "$kernel"/root/lib/modules/*)
  for module in "${MODULES[@]}"; do
    modprobe -d "$kernel/root" -S "$version" --show-depends "$module"
  done 2>/dev/null | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    case $module in *.xz) xz -dc "$module" >"$root/modules/$(basename "${module%.xz}")" ;; *) cp "$module" "$root/modules/" ;; esac
    basename "${module%.xz}" >>"$root/modules/order"
  done
  for module in dmaplane/dmaplane.ko tests/dmaplane_importer.ko tests/nvidia_p2p_stand_in.ko; do
    cp "target/kernel/$series/$module" "$root/modules/"
    basename "$module" >>"$root/modules/order"
  done
  (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$out/initramfs.gz"
}

# An emulated processor that runs code while another one changes it may die of that while the kernel starts, before there is a module:
# then it is started again.
boot() {
  for _ in 1 2 3; do
    start "$@"
    ! grep -aq 'dmaplane: begun' "$1/log" || return 0
    echo "kernel: the guest did not come up: $(grep -aoE 'Oops: .*|Kernel panic.*' "$1/log" | sed -n 1p)"
  done
}

start() {
  local out=$1 kernel=$2 m0=768 m1=512 clock
  clock=$(kernel/tests/guest-clock.sh)
  # The checkers' own memory.
  case $kernel in *-debug/*) m0=1536 ;; esac
  timeout --kill-after=10 "$LIMIT_S" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m $((m0 + m1)) \
    -smp 4,sockets=2,cores=2 \
    -object memory-backend-ram,id=m0,size=${m0}M -object memory-backend-ram,id=m1,size=${m1}M \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
    -numa dist,src=0,dst=1,val=21 \
    -object memory-backend-ram,id=gpu,size=16M,share=on -device ivshmem-plain,memdev=gpu \
    -nodefaults -no-reboot -display none -monitor none -serial stdio \
    -kernel "$kernel/vmlinuz" -initrd "$out/initramfs.gz" \
    -append "console=ttyS0 panic=-1 oops=panic quiet no_timer_check $clock kunit.enable=1 kills=$KILLS fuzz=$FUZZ_S seed=$SEED filter=$FILTER" \
    </dev/null | stdbuf -oL tr -d '\r' >"$out/log" || echo "kernel: QEMU ended with $? (124: after the limit of $LIMIT_S s)"
}

# How many of something the guest says that there were, and failed, in all.
sum() {
  sed -nE "s/^dmaplane-test: ([0-9]+) $2, ([0-9]+) failed\$/\1 \2/p" "$1" | awk '{ n += $1; bad += $2 } END { print n + 0, bad + 0 }'
}

tests=0 failed=0 kills=0 fuzz_s=0 splats=0
for series in "${@:-6.1}"; do
  out=$PWD/target/kernel/$series/test
  kernel=$(kernel/kernels.sh "$series")
  mkdir -p "$out"
  make_image "$series" "$out" "$kernel"
  begun=$SECONDS
  boot "$out" "$kernel"
  grep -aE '^(ok|not ok|#|dmaplane-test:)|dmaplane: ended' "$out/log" || true
  # Those of user space, and of KUnit where the kernel has it.
  read -r n bad <<<"$(sum "$out/log" tests)"
  [ "$n" != 0 ] || bad=1
  tests=$((tests + n)) failed=$((failed + bad))
  read -r n bad <<<"$(sum "$out/log" kills)"
  kills=$((kills + n)) failed=$((failed + bad))
  read -r n bad <<<"$(sum "$out/log" 's of fuzzing')"
  fuzz_s=$((fuzz_s + n)) failed=$((failed + bad))
  points=$(objdump -dr "target/kernel/$series/dmaplane/dmaplane.ko" | grep -c __sanitizer_cov_trace_pc || true)
  [ "$points" = 0 ] || echo "# of $points points in the module, those of KUnit tests and of loading included"
  # Whatever else went wrong in there counts as one, too.
  grep -aq 'dmaplane: ended with 0$' "$out/log" || [ "$failed" -gt 0 ] || failed=1
  bad=$(grep -aEc "$SPLAT" "$out/log" || true)
  [ "$bad" = 0 ] || { echo "kernel: $series: the kernel's log, $out/log:"; grep -aE -A12 "$SPLAT" "$out/log" | sed -n 1,60p; }
  splats=$((splats + bad))
  echo "kernel: $series: $((SECONDS - begun)) s, log in $out/log"
done
printf '{"tests": %d, "failed": %d, "kills": %d, "fuzz_s": %d, "splats": %d}\n' "$tests" "$failed" "$kills" "$fuzz_s" "$splats"
[ "$failed" = 0 ] && [ "$splats" = 0 ]
