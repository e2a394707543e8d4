# Channels of the crate `verbs` beside what rdma-core's perftest makes of these machines: same machines, same run.
# vm: limit_s=300
# perftest_run PROGRAM OPTIONS...: guest b serves, a asks; a's table is left in /tmp/PROGRAM.
perftest_run() {
  local program=$1 server
  local options=(-d $DEVICE -x "$(gid_index)" -F "${@:2}")
  if [ "$ROLE" = b ]; then
    timeout $WAIT_S "$program" "${options[@]}" >/tmp/"$program" &
    server=$!
    until_true "$program to listen" listens 18515
    barrier "$program"
    wait $server
  else
    barrier "$program"
    timeout $WAIT_S "$program" "${options[@]}" $PEER_ADDRESS | tee /tmp/"$program"
  fi
}

# column PROGRAM N: of the line of figures, the only one that begins with a number.
column() { awk -v n="$2" '$1 ~ /^[0-9]+$/ { print $n }' /tmp/"$1"; }

# One way, half of the round trip; then what is sent while the other end takes it.
perftest_run ib_write_lat -s 8 -n 2000
perftest_run ib_write_bw -s 65536 -n 600
barrier channels
timeout 120 target/release/examples/verbs-check "$ROLE" 10.9.0.2 latency rate switches | tee /tmp/channels
if [ "$ROLE" = a ]; then
  {
    printf '{"ib_write_lat_8_b_us": {"p50": %s, "p99": %s}}\n' "$(column ib_write_lat 5)" "$(column ib_write_lat 8)"
    printf '{"ib_write_bw_64_kib_mib_s": %s}\n' "$(column ib_write_bw 4)"
    cat /tmp/channels
    device_counters
  } >"$RESULTS/figures.jsonl"
fi
barrier done
