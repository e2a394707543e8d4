# For scripts that run in a guest, of which there are two: ROLE is a or b. A suite is run in both, by bash with
# `set -eu -o pipefail`, in the repository's folder; it passes where both end with 0. Files are the host's, read-only;
# /tmp, /run, /var/tmp and /dev/shm are memory. What a suite leaves in RESULTS is kept in
# target/vm/.../shared/SUITE/results, and .jsonl files are also printed. What it leaves running is killed.
. /run/vm/machine # REPOSITORY, PROFILE, TERMINAL, TERMINAL_COLUMNS, TERMINAL_ROWS, SUITES
. /run/vm/"$SUITE"/about # GUESTS, LIMIT_S
SYNC=/run/vm/$SUITE/sync
RESULTS=/run/vm/$SUITE/results
DEVICE=rxe0
MTU=4200 # so that RDMA's is 4096
if [ "$ROLE" = a ]; then PEER=b ADDRESS=10.9.0.1 PEER_ADDRESS=10.9.0.2; else PEER=a ADDRESS=10.9.0.2 PEER_ADDRESS=10.9.0.1; fi
# How long a guest waits for anything, in seconds, unless it says so.
WAIT_S=${WAIT_S:-600}

say() { printf '%s: %s\n' "$ROLE" "$*"; }
fail() { say "FAILED: $*" >&2; return 1; }

# Starting a program takes an emulated machine 30 ms and more of what is waited for, so what waits starts none.
exec {NEVER}<> <(:)
pause() { read -rt "$1" -u "$NEVER" || true; }

# until_true WHAT COMMAND...: runs the command again and again until it succeeds.
until_true() {
  local what=$1 deadline=$((SECONDS + WAIT_S))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || { fail "waited $WAIT_S s for $what"; return 1; }
    pause 0.1
  done
}

# has_line FILE BEGINNING: a line of the file, if that is there, begins so.
has_line() {
  local line
  [ -e "$1" ] || return 1
  while read -r line; do [[ $line != "$2"* ]] || return 0; done <"$1"
  return 1
}

# Both guests get here before either goes on. Through files of the host's, so it works whatever becomes of the wire.
barrier() {
  local name=$1
  [ "$GUESTS" = 2 ] || return 0
  : >"$SYNC/$name.$ROLE"
  until_true "the peer at '$name'" reached_or_ended "$name"
  [ -e "$SYNC/$name.$PEER" ] || fail "the peer ended before '$name'"
}

reached_or_ended() { [ -e "$SYNC/$1.$PEER" ] || [ -e "$SYNC/ended.$PEER" ]; }

# eth0 is the wire to the peer; DEVICE is Soft-RoCE on it. Also after a suite that left them otherwise.
connect_guest() {
  ip link set lo up
  ip link set eth0 mtu $MTU
  ip addr replace $ADDRESS/24 dev eth0
  ip link set eth0 up
  [ -e /sys/class/infiniband/$DEVICE ] || rdma link add $DEVICE type rxe netdev eth0
  until_true "port of $DEVICE" grep -q ACTIVE /sys/class/infiniband/$DEVICE/ports/1/state
}

# The peer runs and answers.
wait_for_peer() {
  [ "$GUESTS" = 2 ] || return 0
  barrier up
  until_true "an answer from $PEER_ADDRESS" busybox ping -c 1 -W 1 $PEER_ADDRESS >/dev/null
  barrier answered
}

# Somebody on this guest listens at a TCP port.
listens() { [ -n "$(ss -Hltn "sport = :$1")" ]; }

# The index of the RoCE v2 GID that is made of the IPv4 address; with one of another kind a queue pair is not set up.
gid_index() {
  local types=/sys/class/infiniband/$DEVICE/ports/1/gid_attrs/types gids=/sys/class/infiniband/$DEVICE/ports/1/gids index
  for index in $(cd "$gids" && ls | sort -n); do
    grep -q '^0000:0000:0000:0000:0000:ffff:' "$gids/$index" || continue
    # A slot that is not used cannot be read.
    if [ "$(cat "$types/$index" 2>/dev/null)" = "RoCE v2" ]; then echo "$index"; return; fi
  done
  fail "$DEVICE has no RoCE v2 GID with an IPv4 address"
}

# Retransmissions and errors that DEVICE has counted, as JSON.
device_counters() {
  local counters=/sys/class/infiniband/$DEVICE/ports/1/hw_counters name
  printf '{'
  for name in completer_retry_err retry_exceeded_err rcvd_seq_err rcvd_rnr_err send_err; do
    printf '"%s": %s, ' $name "$(cat $counters/$name)"
  done
  printf '"sent_pkts": %s}\n' "$(cat $counters/sent_pkts)"
}
