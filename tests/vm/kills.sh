# Topics between two machines whose lanes are RDMA: sizes from nothing to 64 MiB to four subscribers, every byte checked; then
# the same while the links of the receiving end are killed, and while the cable is out.
# vm: limit_s=500 memory_mib=1280
BIN=$REPOSITORY/target/debug
export RGAPS_CONFIG=/tmp/rgaps.toml RGAPS_SOCKET=/run/rgaps.sock RGAPS_DAEMON=$BIN/rgapsd RGAPS_LINKS_PROGRAM=$BIN/rgaps-links
cat >$RGAPS_CONFIG <<END
[links]
enabled = true
host = "guest-$ROLE"
listen = "$ADDRESS:0"
control = ["tcp/$ADDRESS:7447"]
connect = ["tcp/$PEER_ADDRESS:7447"]
insecure = true
trusted_fabric = true
outage_ms = 60000
END
"$BIN/rgapsd" >/tmp/daemon.log 2>&1 &
trap 'tail -n 30 /tmp/daemon.log' ERR
peers() { "$BIN/rgaps" peers --json; }
over_rdma() { peers 2>/dev/null | tr -d ' \n' | grep -q '"state":"linked".*"path":"rdma"'; }
WAIT_S=90 until_true "lanes over RDMA" over_rdma
barrier linked

# crossing NAME MESSAGES [COMMAND...]: messages from a to four subscribers on b, and a command meanwhile.
crossing() {
  local name=$1 messages=$2 pids=() pid
  shift 2
  if [ "$ROLE" = a ]; then
    "$BIN/examples/crossing" publish "$name" "$messages" 4 >>"$RESULTS/links.jsonl" & pids=($!)
  else
    for _ in 1 2 3 4; do
      "$BIN/examples/crossing" subscribe "$name" "$messages" >>"$RESULTS/links.jsonl" & pids+=($!)
    done
  fi
  "$@"
  for pid in "${pids[@]}"; do wait "$pid" || fail "$name"; done
  say "$name: passed in $SECONDS s"
  WAIT_S=120 barrier "$name"
}
kill_links() { for _ in 1 2 3; do sleep 3; pkill -KILL -x rgaps-links || true; done; }
at() { if [ "$ROLE" = "$1" ]; then shift; "$@"; fi; }
pull_cable() { sleep 2; ip link set eth0 down; sleep 2; ip link set eth0 up; }

crossing all-sizes "${MESSAGES:-2000}" true
crossing receiver-killed 800 at b kill_links
crossing cable-out 800 at b pull_cable
# What broke goes over RDMA again.
WAIT_S=90 until_true "lanes over RDMA again" over_rdma
peers >"$RESULTS/peers.$ROLE.json"
barrier over
"$BIN/rgaps" down || true
