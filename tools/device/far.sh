#!/usr/bin/env bash
# A kernel's messages reach a kernel of another host: device topic, bridge, links, bridge, device topic. Each host is a network namespace
# with a daemon and links of its own; the cable between them is pulled meanwhile. Threads take the place of kernels, every word is verified.
# BUILT is the folder of rgaps, rgapsd and rgaps-links, CHECK the test program: in dist/, with kernels.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
built=${BUILT:-$here/../../target/${PROFILE:-release}} check=${CHECK:-$here/../../target/device/check}
messages=${MESSAGES:-4000} limit_s=120
. "$here/hosts.sh"
# Each host has its own.
unset RGAPS_SOCKET RGAPS_DAEMON
runtime=$(mktemp -d) processes=()
clean_up() {
  [ ${#processes[@]} = 0 ] || kill "${processes[@]}" 2>/dev/null || true
  wait
  remove_hosts
  rm -rf "$runtime"
}
trap clean_up EXIT
fail() {
  echo "far: $*" >&2
  tail -n 20 "$runtime"/*.log >&2
  exit 1
}

# until_true WHAT COMMAND...
until_true() {
  local what=$1 deadline=$((SECONDS + limit_s))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || fail "waited $limit_s s for $what"
    sleep 0.1
  done
}

# become HOST COMMAND...: the command on host 0 or 1, with the settings of its daemon, in place of this shell.
become() {
  local host=$1 within=("${one[@]}")
  shift
  [ "$host" = 0 ] || within=("${other[@]}")
  RGAPS_CONFIG=$runtime/$host.toml exec "${within[@]}" "$@"
}
on() { (become "$@"); }

# The links of the other host, by which a host finds it: fixed where each has an address of its own.
ports=(7447 7447)
[ $has_cable = 1 ] || ports=($((20000 + $$ % 5000)) $((25000 + $$ % 5000)))
for host in 0 1; do
  cat >"$runtime/$host.toml" <<END
socket = "$runtime/$host.sock"
autostart = false
log = "warn"
[pool.host]
cap = "64MiB"
[links]
enabled = true
host = "host-$host"
listen = "${addresses[host]}:0"
control = ["tcp/${addresses[host]}:${ports[host]}"]
connect = ["tcp/${addresses[1 - host]}:${ports[1 - host]}"]
scouting = false
insecure = true
outage_ms = 300000
END
  RGAPS_LINKS_PROGRAM=$built/rgaps-links become $host "$built/rgapsd" --foreground >"$runtime/daemon-$host.log" 2>&1 &
  processes+=($!)
done

# field HOST NAME COMMAND...: the number of that name in the JSON of an `rgaps` command.
field() {
  local host=$1 name=$2
  shift 2
  on "$host" "$built/rgaps" "$@" --json 2>/dev/null | sed -n "s/.*\"$name\":\([0-9]*\).*/\1/p"
}
has_lanes() { [ "$(field 0 lanes peers || echo 0)" -gt 0 ] 2>/dev/null; }
has_no_lanes() { ! has_lanes; }
# The links subscribe to the first host's topic for the other host.
is_subscribed() { [ "$(field 0 subscribers topic info far || echo 0)" -gt 0 ] 2>/dev/null; }
# The first kernel's messages are there; the second one waits for room.
has_half() { [ "$(field 1 newest topic info far || echo 0)" = $((messages / 2)) ]; }
is_held_back() { on 0 "$built/rgaps" topic info far | grep 'the publisher waits for it' >/dev/null; }

until_true "a link" has_lanes
become 1 "$check" far-receive --messages "$messages" >"$runtime/receive.log" 2>&1 &
receiver=$!
processes+=($receiver)
mkfifo "$runtime/go"
become 0 "$check" far-publish --messages "$messages" <"$runtime/go" >"$runtime/publish.log" 2>&1 &
publisher=$!
processes+=($publisher)
exec 9>"$runtime/go"
until_true "the links to subscribe" is_subscribed
printf 1 >&9
until_true "the first kernel's messages" has_half
if [ $has_cable = 1 ]; then
  cable down
  until_true "the loss of the cable to be seen" has_no_lanes
fi
printf 2 >&9
if [ $has_cable = 1 ]; then
  until_true "the kernel to wait for the other host" is_held_back
  cable up
fi
wait $publisher || fail "the publisher failed"
wait $receiver || fail "the receiver failed"
processes=("${processes[@]:0:2}") # the daemons
tail -qn 1 "$runtime/publish.log" "$runtime/receive.log"
