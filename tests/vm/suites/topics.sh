# Topics between two hosts whose lanes go over RDMA: one publisher, four subscribers on the other host, every byte; then
# with the cable pulled.
# vm: memory_mib=1280 limit_s=400
programs=$REPOSITORY/target/debug
WAIT_S=150
cat >/tmp/rgaps.toml <<END
socket = "/tmp/rgaps.sock"
autostart = false
log = "warn,rgaps_links=info"
[pool.host]
cap = "512MiB"
segment = "8MiB"
[links]
enabled = true
host = "host-$ROLE"
listen = "$ADDRESS:0"
control = ["tcp/$ADDRESS:7447"]
connect = ["tcp/$PEER_ADDRESS:7447"]
insecure = true
trusted_fabric = true
outage_ms = 60000
END
rgaps() { "$programs/rgaps" "$@" --config /tmp/rgaps.toml; }

daemon_runs() { rgaps status >/dev/null 2>&1; }
linked_over_rdma() { rgaps peers --json | grep -q '"rdma"'; }

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

# carry TOPIC MEANWHILE OPTIONS...: publishes /tmp/messages on a; four subscribers on b have to read just that.
carry() {
  local topic=$1 meanwhile=$2 reader readers=()
  shift 2
  if [ "$ROLE" = a ]; then
    wc -l </tmp/messages >"$SYNC/$topic.count"
    tr -d '\n' </tmp/messages | sha256sum >"$SYNC/$topic.sum"
  fi
  barrier "$topic-made"
  if [ "$ROLE" = a ]; then
    rgaps topic pub "$topic" --file /tmp/messages --lines --wait-subscribers 4 --timeout 120 "$@" &
    barrier "$topic-begun"
    wait $!
    rgaps topic info "$topic" --json >"$RESULTS/$topic.json" || true # its publisher has gone
  else
    for reader in 1 2 3 4; do
      rgaps topic echo "$topic" --reliable --format raw --count "$(cat "$SYNC/$topic.count")" --timeout 120 |
        sha256sum >/tmp/sum.$reader &
      readers+=($!)
    done
    barrier "$topic-begun"
    $meanwhile
    for reader in 1 2 3 4; do
      wait "${readers[reader - 1]}"
      cmp "$SYNC/$topic.sum" /tmp/sum.$reader || fail "subscriber $reader of '$topic' has other bytes"
    done
  fi
  barrier "$topic-read"
  say "$topic: passed"
}

# figure NAME: of the link with the other host.
figure() { rgaps peers --json | grep -o "\"$1\":[0-9]*" | head -n 1 | cut -d : -f 2; }

# Cards know what is published here and what lands here: of large messages they write what they can by themselves. (Not
# all, where the machine is so busy that lanes break.)
check_direct() {
  grep -q "cards do not know memory" /tmp/said && fail "memory that no card knows"
  say "directly out: $(figure direct_bytes_out), in: $(figure direct_bytes_in); through rings: $(figure ring_bytes_out), $(figure ring_bytes_in)"
  rgaps peers --json >"$RESULTS/photos-peers-$ROLE.json"
}

pull_cable() {
  sleep 5
  ip link set eth0 down
  sleep 3
  ip link set eth0 up
}

mkfifo /tmp/says
tee /tmp/said </tmp/says &
RGAPS_LINKS_PROGRAM=$programs/rgaps-links "$programs/rgapsd" --foreground --config /tmp/rgaps.toml >/tmp/says 2>&1 &
daemon=$!
until_true "a daemon" daemon_runs
until_true "lanes over RDMA" linked_over_rdma
rgaps peers
barrier linked
make_messages 2000 65536 1000003 16777216
# Not with --require rdma: on a busy machine a lane can break, and what is sent until the next one would be left out.
carry photos :
check_direct
make_messages 1000 65536 1000003
carry pulled pull_cable --rate 100
rgaps peers --json >"$RESULTS/peers-$ROLE.json"
# What the card registers, found out by a trial; Soft-RoCE takes no dma-buf.
RGAPS_CUDA_LIBRARY=$programs/librgaps_test_driver.so rgaps doctor --json >"$RESULTS/doctor-$ROLE.json" || true
grep -q '"device":"rxe0","port":1,"state":"ACTIVE".*"mtu_bytes":4096.*"host_writable":"works".*"dma_buf":{"failed":"ibv_reg_dmabuf_mr' \
  "$RESULTS/doctor-$ROLE.json" || fail "doctor says of rxe0: $(cat "$RESULTS/doctor-$ROLE.json")"
kill $daemon
