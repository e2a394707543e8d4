# RDMA that kernels post (threads in their place), on real verbs: messages, and a device topic of one machine whose messages reach one of
# the other, every byte verified.

# check WHAT COMMAND...
check() {
  local what=$1 more=()
  shift
  [ "$what" = works ] || more=(--topics yes)
  timeout $WAIT_S target/$PROFILE/examples/gpu-verbs-check "$@" --jobs target/device/librdma-jobs.so --device $DEVICE --messages 1000 \
    --limit-s 60 "${more[@]}" | tee -a "$RESULTS/$ROLE.jsonl"
}

for what in works topics; do
  barrier "$what"
  if [ "$ROLE" = b ]; then
    check "$what" receive --listen $ADDRESS:7472 &
    until_true "the receiver" listens 7472
    : >"$SYNC/$what.listens"
    wait $!
  else
    until_true "the receiver" test -e "$SYNC/$what.listens"
    check "$what" send --peer $PEER_ADDRESS:7472
  fi
  say "$what: passed"
done
