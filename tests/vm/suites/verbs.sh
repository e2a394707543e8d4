# Channels of the crate `verbs` on real verbs, by its example `verbs-check`: every frame's bytes, credits at their minimum,
# what ends a channel, peers that lie.
for test in conformance credits liars faults killed event link; do
  barrier "$test"
  SECONDS=0
  timeout $WAIT_S target/$PROFILE/examples/verbs-check "$ROLE" 10.9.0.2 "$test" | tee -a "$RESULTS/$ROLE.jsonl"
  say "$test: passed in $SECONDS s"
done
