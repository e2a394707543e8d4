# CUDA programs of guest a on a GPU of guest b (the test driver's), over RDMA: every element is verified. The same over TCP, for its times.
# vm: memory_mib=1024 limit_s=900
export RGAPS_CONFIG=/tmp/rgaps.toml
cat >$RGAPS_CONFIG <<'CONFIGURATION'
[links]
insecure = true
trusted_fabric = true
CONFIGURATION
RGAPS=target/debug/rgaps
PORT=7462

# run PROTOCOL WORDS...: a program and its arguments.
run() {
  local protocol=$1
  shift
  RGAPS_GPU_STATISTICS=/tmp/statistics timeout 120 $RGAPS gpu run --libraries target/debug/gpu-libs \
    --on "$protocol/$PEER_ADDRESS:$([ "$protocol" = rdma ] && echo $PORT || echo $((PORT + 1)))" -- "target/remote/$1" "${@:2}" >/tmp/said ||
    fail "$* over $protocol: $(cat /tmp/said)"
  say "$* over $protocol: $(tail -n 1 /tmp/said)"
}

# measure PROTOCOL WORDS...: a program whose last line is JSON.
measure() {
  run "$@"
  grep -q '"wrong":0' /tmp/said || fail "$* computed something else"
  sed -n "\$s/^{/{\"round\":\"$round\",\"protocol\":\"$1\",/p" /tmp/said >>"$RESULTS/programs.jsonl"
}

if [ "$ROLE" = b ]; then
  RGAPS_CUDA_LIBRARY=$REPOSITORY/target/debug/librgaps_test_driver.so $RGAPS gpu serve --clients 16 --listen rdma/$ADDRESS:$PORT \
    --listen tcp/$ADDRESS:$((PORT + 1)) &
  WAIT_S=120 until_true "the server" listens $PORT
  barrier serves
  WAIT_S=880 until_true "the programs" test -e "$SYNC/ran.a" -o -e "$SYNC/ended.a"
  barrier ran
  kill $!
else
  barrier serves
  sent_before=$(cat /sys/class/infiniband/$DEVICE/ports/1/hw_counters/sent_pkts)
  # The protocols take turns, since the machine's other work changes.
  for round in 1 2 3; do
    for protocol in rdma tcp; do
      measure $protocol saxpy 16384 3
      measure $protocol matmul 48 1
      # Copies of 1 KiB to 256 KiB: the interpreter of kernels has no part in their times.
      measure $protocol transfers 262144 2
    done
  done
  python3 tests/vm/ratios.py programs "$RESULTS/programs.jsonl" >"$RESULTS/ratios.jsonl"
  # Copies of all sizes, many calls at a time, functions that the server calls, errors.
  for words in "copy sizes_around_powers_of_two" "copy many_megabytes" "rows rows_there_and_back" "callback functions_run_in_order" "threads threads_launch" "error a_wrong_address_ends_the_context"; do
    # shellcheck disable=SC2086 # two words
    run rdma $words
  done
  sent=$(($(cat /sys/class/infiniband/$DEVICE/ports/1/hw_counters/sent_pkts) - sent_before))
  say "packets of $DEVICE: $sent; $(device_counters)"
  # Copies in three rounds are over 60 MiB.
  [ $sent -gt 5000 ] || fail "the bytes did not go over RDMA"
  cp /tmp/statistics "$RESULTS/statistics.jsonl"
  barrier ran
fi
