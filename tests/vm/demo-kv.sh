# The demo of a KV cache on two virtual machines, over RDMA: a prefills, b decodes. See examples/kv-cache/README.md.
# vm: limit_s=900 memory_mib=2048
PROGRAMS=$REPOSITORY/target/release
. tests/vm/hosts.sh
start_hosts
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
python=target/torch/bin/python
models=(target/kv-cache/model-*.pt)
if [ $ROLE = a ]; then
  $python examples/kv-cache/prefill.py --model "${models[0]}" --name p0 &
else
  $python examples/kv-cache/machine.py --model "${models[0]}" --programs "$PROGRAMS" >"$RESULTS/demo.txt" || fail "$(<"$RESULTS/demo.txt")"
fi
WAIT_S=850 barrier over
