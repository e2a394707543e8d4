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
. tools/device/hosts.sh
trap remove_hosts EXIT
heard=target/device/rdma-listening
# Messages of works; then those of a device topic, which reach one of the other host.
for more in "" "--topics yes"; do
  : >"$heard" # what the last one said is not this one's address
  # shellcheck disable=SC2086 # options
  "${other[@]}" "$check" receive --jobs target/device/librdma-jobs.so --listen "${addresses[1]}:0" $more 2>>"$heard" &
  receiver=$!
  # "listening at ADDRESS": `read` fails as long as the line is not whole.
  until read -r _ _ peer <"$heard"; do
    kill -0 $receiver || { cat "$heard" >&2; exit 1; }
    sleep 0.05
  done
  # shellcheck disable=SC2086 # options
  "${one[@]}" "$check" send --jobs target/device/librdma-jobs.so --peer "$peer" $more
  wait $receiver || { cat "$heard" >&2; exit 1; }
done
