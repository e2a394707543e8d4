#!/usr/bin/env bash
# RDMA that kernels post, with threads in place of kernels: rdma-core's vectors, messages over each lane, errors, the ladder.
# PROFILE=debug takes what `cargo build --examples` made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
check=target/${PROFILE:-release}/examples/gpu-verbs-check
if [ -f /usr/include/infiniband/mlx5dv.h ]; then
  mkdir -p target/device
  "${CC:-cc}" -Wall -Werror tests/rdma/vectors.c -o target/device/vectors
  target/device/vectors | cmp - tests/rdma/vectors.h
else
  echo "rdma: tests/rdma/vectors.h is not compared with rdma-core: there is no <infiniband/mlx5dv.h> (libibverbs-dev)"
fi
tools/device/build.sh rdma-host
$check verify --jobs target/device/librdma-jobs.so --seed "${SEED:-1}"
$check ladder --jobs target/device/librdma-jobs.so --messages 5000

# Two processes, in network namespaces of their own where that is allowed.
one=rgaps-rdma-$$-1 other=rgaps-rdma-$$-2 address=127.0.0.1
run_one=() run_other=()
if ip netns add "$one" 2>/dev/null; then
  trap 'ip netns del "$one"; ip netns del "$other" 2>/dev/null' EXIT
  ip netns add "$other"
  ip link add name "rr$$a" netns "$one" type veth peer name "rr$$b" netns "$other"
  address=10.77.0.2
  ip -n "$one" addr add 10.77.0.1/24 dev "rr$$a"
  ip -n "$other" addr add $address/24 dev "rr$$b"
  ip -n "$one" link set "rr$$a" up
  ip -n "$other" link set "rr$$b" up
  run_one=(ip netns exec "$one") run_other=(ip netns exec "$other")
else
  echo "rdma: two processes on loopback: this user may make no network namespaces"
fi
heard=target/device/rdma-listening
"${run_other[@]}" "$check" receive --jobs target/device/librdma-jobs.so --listen $address:0 2>"$heard" &
receiver=$!
until grep -q "listening at" "$heard"; do
  kill -0 $receiver || { cat "$heard" >&2; exit 1; }
  sleep 0.05
done
"${run_one[@]}" "$check" send --jobs target/device/librdma-jobs.so --peer "$(sed -n 's/^listening at //p' "$heard")"
wait $receiver || { cat "$heard" >&2; exit 1; }
