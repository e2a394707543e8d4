# Channels of the crate `verbs` beside what rdma-core's perftest makes of these machines: same machines, same run, in turns.
rounds=5
# None begins later than this, in seconds: on a busy host one takes minutes.
LAST_BEGINS_S=120
check=target/release/examples/verbs-check
POLL_US=2000

# perftest_run PROGRAM OPTIONS...: guest b serves, a asks; a's table is left in /tmp/PROGRAM.
perftest_run() {
  local program=$1 server
  local options=(-d $DEVICE -x "$(gid_index)" -F "${@:2}")
  if [ "$ROLE" = b ]; then
    timeout $WAIT_S "$program" "${options[@]}" >/tmp/"$program" &
    server=$!
    until_true "$program to listen" listens 18515
    barrier "$program-$round"
    wait $server
  else
    barrier "$program-$round"
    timeout $WAIT_S "$program" "${options[@]}" $PEER_ADDRESS | tee /tmp/"$program"
  fi
}

# column PROGRAM N: of the line of figures, the only one that begins with a number.
column() { awk -v n="$2" '$1 ~ /^[0-9]+$/ { print $n }' /tmp/"$1"; }

# verbs_run NAME COMMAND...: leaves its lines in /tmp/channels.
verbs_run() {
  barrier "$1-$round"
  timeout $WAIT_S "${@:2}" >/tmp/lines || fail "$1"
  cat /tmp/lines
  sed "s/^{/{\"run\": \"$1\", \"round\": \"$round\", /" /tmp/lines >>/tmp/channels
}

for round in $(seq "$rounds"); do
  # One decides for both.
  [ "$ROLE" = b ] || [ "$round" = 1 ] || [ $SECONDS -lt $LAST_BEGINS_S ] || : >"$SYNC/enough"
  barrier "round-$round"
  [ ! -e "$SYNC/enough" ] || break
  # One way, half of the round trip; then what is sent while the other end takes it.
  perftest_run ib_write_lat -s 8 -n 1000
  verbs_run latency $check "$ROLE" 10.9.0.2 latency
  perftest_run ib_write_bw -s 65536 -n 1000
  printf '{"run": "perftest", "round": "%s", "ib_write_lat_8_b_us": %s, "ib_write_lat_8_b_p99_us": %s, "ib_write_bw_65536_mib_s": %s}\n' \
    "$round" "$(column ib_write_lat 5)" "$(column ib_write_lat 8)" "$(column ib_write_bw 4)" >>/tmp/channels
  verbs_run rate $check "$ROLE" 10.9.0.2 rate
  verbs_run lane target/release/examples/lane-check "$ROLE" 10.9.0.2
  # As long as perftest polls, which never sleeps.
  verbs_run lane-polled target/release/examples/lane-check "$ROLE" 10.9.0.2 $POLL_US
done
round=all
verbs_run copying $check copying
verbs_run switches $check "$ROLE" 10.9.0.2 switches

# System calls of 4000 frames in batches less those of 2000: of 2000, without beginning and end. On Soft-RoCE a doorbell is one.
calls() {
  VERBS_CHECK_FRAMES=$1 verbs_run "posts-$1" strace -f -c -o "/tmp/calls-$1" $check "$ROLE" 10.9.0.2 posts
}
calls 2000
calls 4000
# The columns of strace's table: time, seconds, each, calls, (errors,) name.
for frames in 2000 4000; do
  awk '$1 ~ /^[0-9.]+$/ && $4 ~ /^[0-9]+$/ && $NF != "total" { print $NF, $4 }' /tmp/calls-$frames | sort >/tmp/called-$frames
done
join -a 1 -a 2 -e 0 -o 0,1.2,2.2 /tmp/called-2000 /tmp/called-4000 |
  awk -v role="$ROLE" '
    BEGIN { printf "{\"system_calls_of_2000_frames\": \"%s\"", role }
    $3 != $2 { printf ", \"%s\": %d", $1, $3 - $2 }
    END { print "}" }' | tee -a /tmp/channels
cp /tmp/channels "$RESULTS/figures-$ROLE.jsonl"
if [ "$ROLE" = a ]; then
  device_counters >"$RESULTS/counters.jsonl"
  python3 tests/vm/ratios.py channels /tmp/channels >"$RESULTS/ratios.jsonl"
fi
barrier done
