#!/usr/bin/env bash
# Runs every figure of `rgaps bench` and writes one JSON file, bench/results/<machine>-<date>.json.
#
# RGAPS names the program (default: target/release/rgaps, with rgapsd and rgaps-compare beside it), DOMAIN where
# payloads live (host, cuda, cuda:GPU-<uuid>), OUT the file, MESSAGES how many messages a latency
# is taken from. Takes about three minutes; a machine that does nothing else gives better figures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# In dist/ (tools/dist.sh) the program is in bin/.
rgaps=${RGAPS:-$([ -x bin/rgaps ] && echo bin/rgaps || echo target/release/rgaps)}
domain=${DOMAIN:-host}
messages=${MESSAGES:-20000}
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p)
gpu=$({ [ "$domain" = host ] || nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sed -n 1p; } || true)
machine=$(printf '%s %s %score' "${gpu:-}" "${cpu:-$(uname -m)}" "$(nproc)" | tr -cs 'A-Za-z0-9' '-' | sed 's/^-//; s/-$//')
out=${OUT:-bench/results/$machine-$(date -u +%Y%m%d).json}
mkdir -p "$(dirname "$out")"
part=$(mktemp "$out.XXXXXX")
trap 'rm -f "$part"' EXIT

# The first argument names the figure, the others are the program and its arguments, which prints one line of JSON.
measure() {
  local name=$1 report
  shift
  printf '%s\n' "$*" >&2
  report=$("$@")
  printf ',\n"%s": %s' "$name" "$report" >>"$part"
}
# The first argument names the figure, the others are the benchmark's.
figure() {
  measure "$1" "$rgaps" bench "${@:2}" --json
}

printf '{"date": "%s", "revision": "%s"' "$(date -u +%FT%TZ)" \
  "$(git rev-parse --short HEAD 2>/dev/null || cat revision 2>/dev/null || echo unknown)" >"$part"
for wait in poll block; do
  figure "latency_4KiB_$wait" latency --domain "$domain" --size 4KiB --messages "$messages" --wait "$wait"
  figure "latency_4MiB_$wait" latency --domain "$domain" --size 4MiB --messages 500 --wait "$wait"
  figure "latency_1GiB_$wait" latency --domain "$domain" --size 1GiB --messages 10 --wait "$wait"
  figure "header_200B_$wait" latency --domain "$domain" --size 4KiB --messages "$messages" --wait "$wait" --header 200
done
figure fanout fanout --domain "$domain" --subscribers "${FANOUT:-1,2,4,8,16,32}" --size 64KiB
figure fanin fanin --domain "$domain" --publishers "${FANIN:-1,2,4,8,16}" --size 64KiB
if [ "$domain" != host ]; then
  figure handoff handoff
  figure fanout_64MiB fanout --domain "$domain" --subscribers 1,2,4,8,16 --size 64MiB --messages 24
  figure spread_to_host spread --from "$domain" --to host
  if [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -gt 1 ]; then
    figure handoff_two_gpus handoff --gpus 0,1
    figure spread spread
  fi
fi
if [ "$domain" = host ]; then
  measure alloc "$(dirname "$rgaps")/rgaps-compare" alloc --processes 1,2,4,8
  figure throughput throughput --size 64
  figure memory memory
fi
printf '\n}\n' >>"$part"
mv "$part" "$out"
trap - EXIT
echo "$out"
