# `rgaps bench link` over RDMA and over TCP, beside perftest. Its two ends are on one machine, so all of these are: both ends use
# the machine's Soft-RoCE device, TCP goes over loopback. Ratios are what counts.
# With another build in target/before (`make bench-rdma BEFORE=...`) both are measured in turns, and the ratios are after / before, too.
# vm: guests=1 cpus=2 memory_mib=2048 limit_s=590
export RGAPS_CONFIG=/tmp/rgaps.toml
builds=(after)
[ ! -d target/before ] || builds+=(before)
cat >$RGAPS_CONFIG <<END
[pool.host]
cap = "512MiB"
segment = "8MiB"
[links]
lease_ms = 10000
END
# No round begins later than this, in seconds: on a busy host one takes minutes.
LAST_BEGINS_S=150

# perftest_run PROGRAM OPTIONS...: its table is left in /tmp/PROGRAM.
perftest_run() {
  local server options=(-d $DEVICE -x "$(gid_index)" -F "${@:2}")
  timeout $WAIT_S "$1" "${options[@]}" >/tmp/server &
  server=$!
  until_true "$1 to listen" listens 18515
  timeout $WAIT_S "$1" "${options[@]}" $ADDRESS | tee /tmp/"$1"
  wait $server
}

# What a table says of messages of SIZE bytes: column SIZE N PROGRAM.
column() { awk -v size="$1" -v n="$2" '$1 == size { print $n }' /tmp/"$3"; }

# A line of a build's figures.
note() {
  sed "s/^{/{\"round\": \"$round\", \"build\": \"$build\", /" | tee -a "$RESULTS/link.jsonl"
}

# use_build NAME: the one that is measured now.
use_build() {
  build=$1
  BIN=$REPOSITORY/target/release
  [ "$build" = after ] || BIN=$REPOSITORY/target/before
  export RGAPS_DAEMON=$BIN/rgapsd RGAPS_LINKS_PROGRAM=$BIN/rgaps-links
}

# link TRANSPORT SIZE
link() {
  timeout $WAIT_S "$BIN/rgaps" bench link --transport "$1" --namespaces no --size "$2" --messages 64 --json | note
}

# lane [POLL_US]: a lane by itself, both of its ends here as well.
lane() {
  local server
  timeout $WAIT_S "$BIN/examples/lane-check" b $ADDRESS "$@" >/dev/null &
  server=$!
  until_true "lane-check to listen" listens 7481
  timeout $WAIT_S "$BIN/examples/lane-check" a $ADDRESS "$@" | note
  wait $server
}

for round in 1 2 3; do
  [ $round = 1 ] || [ $SECONDS -lt $LAST_BEGINS_S ] || break
  say "round $round"
  perftest_run ib_write_lat -s 8 -n 1000
  latency=$(column 8 5 ib_write_lat)
  perftest_run ib_write_bw -s 65536 -n 1000
  small=$(column 65536 4 ib_write_bw)
  perftest_run ib_write_bw -s 1048576 -n 64
  large=$(column 1048576 4 ib_write_bw)
  printf '{"round": "%s", "ib_write_lat_8_b_us": %s, "ib_write_bw_65536_mib_s": %s, "ib_write_bw_1048576_mib_s": %s}\n' \
    $round "$latency" "$small" "$large" | tee -a "$RESULTS/link.jsonl"
  for poll_us in "" 2000; do
    for build in "${builds[@]}"; do
      use_build "$build"
      lane $poll_us
    done
  done
  for size in 8 64KiB 1MiB; do
    for build in "${builds[@]}"; do
      use_build "$build"
      link rdma $size
      link tcp $size
    done
  done
done
python3 tests/vm/ratios.py links "$RESULTS/link.jsonl" | tee "$RESULTS/ratios.jsonl"
