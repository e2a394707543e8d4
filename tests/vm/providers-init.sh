#!/bin/busybox sh
# The guest of providers.sh.
export PATH=/bin HOME=/tmp RUST_BACKTRACE=1
/bin/busybox --install -s /bin 2>/dev/null
mkdir -p /proc /sys /dev /tmp /run
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
ip link set lo up
while read -r module; do insmod "/modules/$module"; done </modules/order 2>/dev/null
if [ -e /dev/dmaplane ]; then
  # By path: busybox would take its own `ip`, which knows no veth.
  /bin/ip link add rd0 mtu 4200 type veth peer name rd1 mtu 4200
  /bin/ip link set rd1 up && /bin/ip addr add 10.77.0.1/24 dev rd0 && /bin/ip link set rd0 up
  rdma link add rxe0 type rxe netdev rd0
  until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; do sleep 0.1; done
fi
echo "providers: begin"
# Runs something, and says how it came out.
check() {
  name=$1
  shift
  if "$@"; then echo "providers: ok $name"; else echo "providers: not ok $name"; fi
}

# A daemon with a provider, whose successor takes over what a subscriber kept.
daemon() {
  export RGAPS_POOL__HOST__PROVIDER=$1 RGAPS_REALM=$1 RGAPS_POOL__HOST__CAP=128MiB
  rgaps topic echo kept --reliable >"/tmp/$1.echo" 2>"/tmp/$1.err" &
  reader=$!
  rgaps topic pub kept --text first --transient-local --wait-subscribers 1 >/dev/null || return 1
  rgaps pool --json
  rgaps pool --json | grep -q "\"provider\":\"$1\"" || return 1
  daemon=$(rgaps status --json | sed 's/.*"pid":\([0-9]*\).*/\1/')
  kill -9 "$daemon"
  rgaps up >/dev/null || return 1
  rgaps topic echo kept --count 1 --late latest --timeout 600 | grep -q first || return 1
  rgaps topic pub kept --text second || return 1
  kill "$reader"
  wait "$reader"
  rgaps down
  grep -q first "/tmp/$1.echo"
}

# Figures of the module, like the tables of its paper (docs/performance/dmaplane.md); nothing else.
measure() {
  for run in "small --copy 1MiB --copies 500 --depth 64 --seconds 10" "large --copy 64MiB --copies 5 --depth 64 --seconds 2 --messages 100" \
    "stress --copy 1MiB --copies 1 --depth 64 --credits 4 --high 3 --low 1 --seconds 5 --messages 100"; do
    set -- $run
    printf 'figures: "%s": ' "$1"
    shift
    rgaps dmaplane bench "$@" --json || echo null
  done
}
if grep -q measure=1 /proc/cmdline; then
  check measure measure
  echo "providers: end"
  echo o >/proc/sysrq-trigger
  sleep 60
fi

# What follows leaves out what is not there, and this must be.
check "the module is loaded" test -e /dev/dmaplane-pool
check "calls of dmaplane" device-tests --nocapture
check conformance pool-tests --nocapture --test-threads 2 conforms fallback_conform provider dma_buf discarded prefaulted \
  module quota
for provider in memfd udmabuf dmaplane; do
  case $provider in memfd) device=/dev/null ;; udmabuf) device=/dev/udmabuf ;; dmaplane) device=/dev/dmaplane-pool ;; esac
  [ -e $device ] || { echo "providers: left out $provider: no $device"; continue; }
  check "a daemon with $provider" daemon $provider
done
rgaps doctor | grep -A1 '  provider '
check costs provider_costs
if [ -e /dev/dmaplane ]; then
  check status rgaps dmaplane status
  check bench rgaps dmaplane bench --copy 2MiB --copies 5 --message 16KiB --depth 8 --seconds 3 --messages 100
  rgaps dmaplane bench --copy 2MiB --copies 5 --message 16KiB --depth 8 --seconds 3 --messages 100 --json
fi
dmesg
echo "providers: end"
echo o >/proc/sysrq-trigger
sleep 60
