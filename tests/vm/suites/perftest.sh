# What rdma-core's perftest makes of these machines, so that figures of ours can stand beside it: same machines, same run.
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

# One way, half of the round trip.
perftest_run ib_write_lat -s 8 -n 2000
perftest_run ib_write_bw -s 65536 -n 600
if [ "$ROLE" = a ]; then
  printf '{"ib_write_lat_8_b_us": {"p50": %s, "p99": %s}, "ib_write_bw_64_kib_mib_s": %s}\n' \
    "$(column ib_write_lat 5)" "$(column ib_write_lat 8)" "$(column ib_write_bw 4)" >"$RESULTS/figures.json"
  device_counters >"$RESULTS/counters.json"
fi
barrier done
