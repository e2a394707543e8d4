# Messages from a to four subscriber processes on b, every byte checked, while something is killed in the transfer of a large
# one. Read by a suite, after tests/vm/hosts.sh. Before and after each of these all lanes are RDMA, and nobody has any of the
# pools.
#
# What is promised (docs/decisions/0016, 0018), and so what is checked, of reliable subscribers:
#   links_there   killed where messages land: nothing is lost or comes twice; order holds for each life of the links
#   daemon_there  killed, and so its links: nothing is lost; the one message that was being published may come twice
#   publisher     killed: of its messages the first so many, whole, the same at all; all of the next publisher's
#   subscriber    killed with a message in its hands: the others miss nothing
#   cable         out for longer than a lane is believed in: nothing is lost or comes twice
#   links_here    killed where messages leave: the same of a publisher that keeps all for late subscribers (which stays in the
#                 pools, so this one is the last)
CROSSING=target/vm/programs/crossing
NEXT=0

# Bytes of the host's pool that publishers have.
leased() { rgaps pool --json | { grep -o '"leased_bytes":[0-9]*' || true; } | awk -F : '{ sum += $2 } END { print sum + 0 }'; }
pool_is_free() {
  local pools
  pools=$(rgaps pool --json) && [[ $pools = *'"leased_bytes":'* && $pools != *'"leased_bytes":'[1-9]* ]]
}

# begin TOPIC MESSAGES MIB: the next so many numbers, with a large one among them.
begin() {
  TOPIC=$1 FROM=$NEXT TO=$((NEXT + $2)) READERS=() PUBLISHER=
  LARGE=(at=$((FROM + $2 / 4)) mib="$3")
  NEXT=$TO SECONDS=0
}

at() { if [ "$ROLE" = "$1" ]; then "${@:2}"; fi; }

# publish FROM TO [OPTION...], on a.
publish() {
  [ "$ROLE" = a ] || return 0
  "$CROSSING" publish "$TOPIC" "$1" "$2" "${LARGE[@]}" "until=$SYNC/$TOPIC.taken" "${@:3}" >>/tmp/"$TOPIC".publisher &
  PUBLISHER=$!
}

# subscribe COUNT [OPTION...], on b.
subscribe() {
  local reader
  [ "$ROLE" = b ] || return 0
  for reader in $(seq "$1"); do
    "$CROSSING" subscribe "$TOPIC" $FROM $TO "${LARGE[@]}" "${@:2}" >/tmp/"$TOPIC.$reader" &
    READERS+=($!)
  done
}

# The large one is on its way: published on a, the next one at the first subscriber on b.
in_transfer() {
  local file=/tmp/$TOPIC.1 line=near
  if [ "$ROLE" = a ]; then file=/tmp/$TOPIC.publisher line=large; fi
  until_true "'$line' of '$TOPIC'" has_line "$file" "$line"
  [ "$ROLE" = a ] || ! has_line "$file" large || say "$TOPIC: the large one has come already"
}

finish() {
  local pid
  if [ "$ROLE" = a ]; then
    wait "$PUBLISHER" || fail "the publisher of '$TOPIC'"
    grep '^{' /tmp/"$TOPIC".publisher >>"$RESULTS/crossing.jsonl"
  else
    for pid in "${READERS[@]}"; do wait "$pid" || fail "a subscriber of '$TOPIC'"; done
    cat /tmp/"$TOPIC".[1-4] | grep '^{' | sort -u >/tmp/taken
    [ "$(wc -l </tmp/taken)" = 1 ] || fail "subscribers of '$TOPIC' took different messages: $(cat /tmp/taken)"
    cat /tmp/taken >>"$RESULTS/crossing.jsonl"
    : >"$SYNC/$TOPIC.taken"
  fi
  wait_for_rdma
  [ "$TOPIC" = links-here ] || until_true "memory that nobody has" pool_is_free || fail "$(leased) bytes are leased"
  barrier "$TOPIC"
  say "$TOPIC: passed in $SECONDS s"
}

kill_links() { pkill -KILL -x rgaps-links; }

kill_daemon() {
  kill -KILL $DAEMON
  wait $DAEMON || true
  start_daemon
}

all_sizes() {
  begin all-sizes "$@"
  subscribe 4
  publish $FROM $TO
  finish
}

links_there() {
  begin links-there "$@"
  subscribe 4
  publish $FROM $TO
  in_transfer
  at b kill_links
  finish
}

daemon_there() {
  begin daemon-there "$@"
  subscribe 4 twice=1
  publish $FROM $TO
  in_transfer
  at b kill_daemon
  finish
}

publisher() {
  local half
  begin publisher "$@"
  half=$(((FROM + TO) / 2))
  subscribe 4 cut=$half
  # It can publish only a few beyond the large one before that is taken.
  publish $FROM $half kept=4
  in_transfer
  at a kill -KILL $PUBLISHER
  publish $half $TO
  finish
}

subscriber() {
  local victim
  begin subscriber "$@"
  if [ "$ROLE" = b ]; then
    "$CROSSING" subscribe "$TOPIC" $FROM $TO "${LARGE[@]}" hold >/tmp/victim &
    victim=$!
  fi
  subscribe 3
  publish $FROM $TO
  if [ "$ROLE" = b ]; then
    until_true "a message in the victim's hands" has_line /tmp/victim holds
    kill -KILL $victim
  fi
  finish
}

pull_cable() {
  ip link set eth0 down
  sleep $((LEASE_MS * 2 / 1000))
  ip link set eth0 up
}

cable() {
  begin cable "$@"
  subscribe 4
  publish $FROM $TO
  in_transfer
  at b pull_cable
  finish
}

links_here() {
  begin links-here "$@"
  subscribe 4 late
  publish $FROM $TO transient kept=2000
  in_transfer
  at a kill_links
  finish
}
