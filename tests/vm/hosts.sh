# For suites with a daemon on each guest, and RDMA lanes between them. Read by a suite: `. tests/vm/hosts.sh`.
PROGRAMS=${PROGRAMS:-$REPOSITORY/target/debug}
export RGAPS_CONFIG=/tmp/rgaps.toml RGAPS_LINKS_PROGRAM=$PROGRAMS/rgaps-links
# A machine that is emulated on a busy one is silent for seconds.
LEASE_MS=4000
DAEMON=

rgaps() { "$PROGRAMS/rgaps" "$@"; }

write_configuration() {
  cat >$RGAPS_CONFIG <<END
socket = "/run/rgaps.sock"
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
lease_ms = $LEASE_MS
outage_ms = 600000
END
}

daemon_runs() { rgaps status >/dev/null 2>&1; }

start_daemon() {
  # What it and its links say is also in the guest's log.
  "$PROGRAMS/rgapsd" --foreground > >(tee -a /tmp/daemon.log) 2>&1 &
  DAEMON=$!
  until_true "a daemon" daemon_runs
}

# All lanes of the link, which `path` says; the word alone is also elsewhere in the answer.
linked_over_rdma() {
  local peers
  peers=$(rgaps peers --json 2>/dev/null) && [[ $peers = *'"state":"linked"'*'"path":"rdma"'* ]] || { pause 0.5; return 1; }
}
wait_for_rdma() { until_true "lanes over RDMA" linked_over_rdma; }

# Daemons on both guests, and the link between them.
start_hosts() {
  write_configuration
  start_daemon
  wait_for_rdma
  rgaps peers
  barrier linked
}

# figures NAME...: of the link with the other host.
figures() {
  local peers name
  peers=$(rgaps peers --json)
  for name; do [[ $peers =~ \"$name\":([0-9]+) ]] && echo "$name ${BASH_REMATCH[1]}"; done
}
