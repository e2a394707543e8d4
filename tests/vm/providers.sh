#!/usr/bin/env bash
# Runs the conformance suite of segments over each provider of host memory, a daemon with each, and what each costs, with
# Debian's kernels in QEMU: 6.12 has udmabuf (6.1 does not); kernel/build.sh has built the module dmaplane. Arguments:
# the series. The last line is JSON. With MEASURE=1 it only measures the module, as the tables of its paper do: target/vm/dmaplane.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=$PATH:/usr/sbin:/sbin
LIMIT_S=${LIMIT_S:-900}
SPLAT='WARNING:|BUG:|Oops|general protection|INFO: task .* blocked|refcount_t|Call Trace'

# A program of this machine without its debugging symbols, with the libraries that it needs.
copy_program() {
  strip -o "$2/bin/${3:-$(basename "$1")}" "$1" 2>/dev/null || cp "$1" "$2/bin/"
  ldd "$1" | grep -oE '/[^ ]+' | while read -r library; do
    mkdir -p "$2$(dirname "$library")"
    cp -L "$library" "$2$library"
  done
}

# The module dmaplane, what it needs, and Soft-RoCE, in the order of loading.
copy_modules() {
  local built=target/kernel/$1/dmaplane/dmaplane.ko kernel=$2 into=$3 module name
  [ -e "$built" ] || { echo "providers: $1: there is no $built; 'make kernel' builds it" >&2; return 1; }
  for name in crc32_generic veth rdma_rxe; do
    modprobe -d "$kernel/root" -S "$(basename "$kernel"/root/lib/modules/*)" --show-depends "$name"
  done 2>/dev/null | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    name=$(basename "${module%.xz}")
    case $module in *.xz) xz -dc "$module" >"$into/$name" ;; *) cp "$module" "$into/" ;; esac
    echo "$name" >>"$into/order"
  done
  strip --strip-debug -o "$into/dmaplane.ko" "$built"
  echo dmaplane.ko >>"$into/order"
}

make_image() {
  local series=$1 root=$2
  rm -rf "$root"
  mkdir -p "$root/bin" "$root/modules"
  copy_modules "$series" "$3" "$root/modules"
  cp "$(command -v busybox)" "$root/bin/busybox"
  cp tests/vm/providers-init.sh "$root/init"
  copy_program "$tests" "$root" pool-tests
  copy_program "$device_tests" "$root" device-tests
  copy_program "$(command -v rdma)" "$root"
  copy_program "$(command -v ip)" "$root"
  copy_program target/debug/examples/provider_costs "$root"
  copy_program target/debug/rgaps "$root"
  copy_program target/debug/rgapsd "$root"
  (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$root.gz"
}

# Where the figures are from.
machine() {
  printf '{"cpu": "%s", "cores": %d, "kernel": "%s"}' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | sed -n 1p)" "$(nproc)" "$(uname -r)"
}

cargo build --locked --quiet -p rgaps-cli -p rgapsd
cargo build --locked --quiet -p rgaps-pool --example provider_costs
# The program of a test.
program() {
  cargo test --locked "$@" --no-run --message-format=json 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}
tests=$(program -p rgaps-pool --lib)
device_tests=$(program -p rgaps-dmaplane --test device)
ran=0 failed=0 splats=0
for series in "${@:-6.12}"; do
  out=$PWD/target/vm/providers-$series
  kernel=$(kernel/kernels.sh "$series")
  mkdir -p "$out"
  make_image "$series" "$out/root" "$kernel"
  clock=$(kernel/tests/guest-clock.sh)
  timeout --kill-after=10 "$LIMIT_S" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 1536 \
    -smp 2,sockets=2,cores=1 \
    -object memory-backend-ram,id=m0,size=1024M -object memory-backend-ram,id=m1,size=512M \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
    -nodefaults -no-reboot -display none -monitor none -serial stdio \
    -kernel "$kernel/vmlinuz" -initrd "$out/root.gz" \
    -append "console=ttyS0 panic=-1 oops=panic quiet no_timer_check $clock measure=${MEASURE:-0}" \
    </dev/null | stdbuf -oL tr -d '\r' >"$out/log" || echo "providers: $series: QEMU ended with $? (124: after the limit of $LIMIT_S s)"
  sed -n '/^providers: begin/,/^providers: end/p' "$out/log" | grep -aE '^(test |left out|failures|providers:|\{|(thread|assertion) )' || true
  ran=$((ran + $(grep -acE '^providers: (ok|not ok)' "$out/log" || true)))
  failed=$((failed + $(grep -acE '^providers: not ok' "$out/log" || true)))
  grep -aq '^providers: end' "$out/log" || failed=$((failed + 1))
  splats=$((splats + $(grep -aEc "$SPLAT" "$out/log" || true)))
  echo "providers: $series: log in $out/log"
done
if [ "${MEASURE:-0}" = 1 ]; then
  {
    printf '{"tool": "dmaplane", "date": "%s", "revision": "%s", "command": "make bench-dmaplane", "machine": %s, "emulated": "Linux %s in QEMU (TCG), two NUMA nodes of a processor each, Soft-RoCE over veth"' \
      "$(date -u +%FT%TZ)" "$(git rev-parse --short HEAD)" "$(machine)" "$series"
    sed -n 's/^figures: \("[a-z]*"\): \({.*\)/, \1: \2/p' "$out/log"
    echo '}'
  } | python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)))' >target/vm/dmaplane.json
  echo "providers: figures in target/vm/dmaplane.json"
fi
printf '{"tests": %d, "failed": %d, "splats": %d}\n' "$ran" "$failed" "$splats"
[ "$failed" = 0 ] && [ "$splats" = 0 ]
