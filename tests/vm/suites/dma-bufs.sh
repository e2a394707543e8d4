# Pools of dma-bufs of the module dmaplane under lanes over RDMA: by their descriptors on a device within a process that takes them, by
# their addresses on Soft-RoCE, which does not. In short: what links register, and that they say so.
# vm: memory_mib=1536
. tests/vm/hosts.sh
module=target/kernel/6.1/dmaplane/dmaplane.ko
if ! insmod $module; then
  say "left out: $module is not there or is another kernel's ('make kernel')"
  exit 0
fi
export RGAPS_DAEMON=$PROGRAMS/rgapsd
if [ "$ROLE" = a ]; then
  target/vm/programs/dma_bufs --nocapture --test-threads 1
else
  target/vm/programs/host_memory --nocapture what_lies_in_a_dma_buf
fi
barrier tested
export RGAPS_POOL__HOST__PROVIDER=dmaplane
start_hosts
if [ "$ROLE" = a ]; then
  head -c 3000001 /dev/urandom >/tmp/message
  sha256sum </tmp/message >"$SYNC/sum"
  rgaps topic pub photo --file /tmp/message --wait-subscribers 1 --timeout $WAIT_S
else
  rgaps topic echo photo --reliable --format raw --count 1 --timeout $WAIT_S | sha256sum >/tmp/sum
fi
barrier crossed
[ "$ROLE" = a ] || cmp "$SYNC/sum" /tmp/sum || fail "the message has other bytes"
knows_by_address() { rgaps peers --json | grep -q '"dma_bufs":{"by_address":"[^"]*ibv_reg_dmabuf_mr'; }
until_true "the reason" knows_by_address
rgaps peers
rgaps peers --json >"$RESULTS/peers-$ROLE.json"
rgaps doctor --json >"$RESULTS/doctor-$ROLE.json" || true
grep -q '"provider":"dmaplane","dma_buf":{"failed":"[^"]*"},"address":"works"' "$RESULTS/doctor-$ROLE.json" ||
  fail "doctor says of rxe0: $(cat "$RESULTS/doctor-$ROLE.json")"
rgaps doctor | grep -A1 'dma-bufs of' || true
