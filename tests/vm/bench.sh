# `rgaps bench link` over RDMA and over TCP, beside perftest. Its two ends are on one machine, so all of these are: both ends use
# the machine's Soft-RoCE device, TCP goes over loopback. Ratios are what counts.
# vm: guests=1 cpus=2 memory_mib=2048 limit_s=590
BIN=$REPOSITORY/target/release
export RGAPS_CONFIG=/tmp/rgaps.toml RGAPS_DAEMON=$BIN/rgapsd RGAPS_LINKS_PROGRAM=$BIN/rgaps-links
cat >$RGAPS_CONFIG <<END
[pool.host]
cap = "512MiB"
segment = "8MiB"
[links]
lease_ms = 10000
END
WAIT_S=120

# perftest_run PROGRAM OPTIONS...: its table is left in /tmp/PROGRAM.
perftest_run() {
  local server options=(-d $DEVICE -x "$(gid_index)" -F "${@:2}")
  timeout $WAIT_S "$1" "${options[@]}" >/tmp/server &
  server=$!
  until_true "$1 to listen" listens 18515
  timeout $WAIT_S "$1" "${options[@]}" $ADDRESS | tee /tmp/"$1"
  wait $server
}

# link TRANSPORT SIZE
link() {
  timeout $WAIT_S "$BIN/rgaps" bench link --transport "$1" --namespaces no --size "$2" --messages 64 --json | tee -a "$RESULTS/link.jsonl"
}

for round in 1 2; do
  say "round $round"
  perftest_run ib_write_lat -s 8 -n 1000
  perftest_run ib_write_bw -s 65536 -n 400
  awk -v round=$round '$1 == 8 { latency = $5 } $1 == 65536 { rate = $4 }
    END { printf "{\"perftest\": %d, \"ib_write_lat_8_b_us\": %s, \"ib_write_bw_64_kib_mib_s\": %s}\n", round, latency, rate }' \
    /tmp/ib_write_lat /tmp/ib_write_bw | tee -a "$RESULTS/link.jsonl"
  for size in 8 64KiB 1MiB; do
    link rdma $size
    link tcp $size
  done
done
python3 tests/vm/ratios.py "$RESULTS/link.jsonl" | tee "$RESULTS/ratios.jsonl"
