# Topics between two hosts whose lanes go over RDMA: one publisher, four subscribers on the other host, every byte; by the
# command line, and, in short, what tests/vm/kills.sh does.
# vm: memory_mib=1280
. tests/vm/hosts.sh
. tests/vm/crossing.sh

# make_messages SMALL LARGE...: lines of /tmp/messages: so many of up to 200 bytes, one empty, and one of each size.
make_messages() {
  local small=$1 bytes
  shift
  {
    base64 -w 120 /dev/urandom | head -n "$small"
    echo
    for bytes; do head -c "$bytes" /dev/urandom | base64 -w 0; echo; done
  } >/tmp/messages || true # `head` ends what writes to it
}

# carry TOPIC: publishes /tmp/messages on a; four subscribers on b have to read just that.
carry() {
  local topic=$1 reader readers=()
  if [ "$ROLE" = a ]; then
    wc -l </tmp/messages >"$SYNC/$topic.count"
    tr -d '\n' </tmp/messages | sha256sum >"$SYNC/$topic.sum"
  fi
  barrier "$topic-made"
  if [ "$ROLE" = a ]; then
    rgaps topic pub "$topic" --file /tmp/messages --lines --wait-subscribers 4 --timeout $WAIT_S
    rgaps topic info "$topic" --json >"$RESULTS/$topic.json" || true # its publisher has gone
  else
    for reader in 1 2 3 4; do
      rgaps topic echo "$topic" --reliable --format raw --count "$(cat "$SYNC/$topic.count")" --timeout $WAIT_S |
        sha256sum >/tmp/sum.$reader &
      readers+=($!)
    done
    for reader in 1 2 3 4; do
      wait "${readers[reader - 1]}"
      cmp "$SYNC/$topic.sum" /tmp/sum.$reader || fail "subscriber $reader of '$topic' has other bytes"
    done
  fi
  barrier "$topic-read"
  say "$topic: passed"
}

# Cards know what is published here and what lands here: of large messages they write what they can by themselves. (Not
# all, where the machine is so busy that lanes break.)
check_direct() {
  grep -q "cards cannot access" /tmp/daemon.log && fail "memory that no card can access"
  say "of the link:" $(figures direct_bytes_out direct_bytes_in ring_bytes_out ring_bytes_in)
  rgaps peers --json >"$RESULTS/photos-peers-$ROLE.json"
}

start_hosts
# Not with --require rdma: on a busy machine a lane can break, and what is sent until the next one would be left out.
make_messages 300 65536 1000003
carry photos
all_sizes 200 16
check_direct
daemon_there 120 8
publisher 120 8
subscriber 120 8
rgaps peers --json >"$RESULTS/peers-$ROLE.json"
# What the card registers, found out by a trial; Soft-RoCE takes no dma-buf.
RGAPS_CUDA_LIBRARY=$PROGRAMS/librgaps_test_driver.so rgaps doctor --json >"$RESULTS/doctor-$ROLE.json" || true
grep -q '"device":"rxe0","port":1,"state":"ACTIVE".*"mtu_bytes":4096.*"host_writable":"works".*"dma_buf":{"failed":"ibv_reg_dmabuf_mr' \
  "$RESULTS/doctor-$ROLE.json" || fail "doctor says of rxe0: $(cat "$RESULTS/doctor-$ROLE.json")"
