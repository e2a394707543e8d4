# Lanes of the crate `transport` over RDMA on a device, with both ends in one process: what every kind of lane has to do. Guest a
# runs the first test, which moves most bytes, b the others, which wait more than they work. (The others of the same program
# have faults of the network within the process.)
# vm: memory_mib=1536
export RGAPS_TEST_RDMA=$DEVICE
mapfile -t tests < <(sed -n 's/^pub fn \([a-z_]*\)(over: .*/\1/p' crates/transport/tests/lanes/scenarios.rs)
# So many there are at least.
[ ${#tests[@]} -ge 7 ]
if [ "$ROLE" = a ]; then tests=("${tests[0]}"); else tests=("${tests[@]:1}"); fi
target/vm/programs/rdma --exact "${tests[@]}" --test-threads 2 --color never | tee /tmp/tests
# All of these, and not others that have their names no more.
grep -q "test result: ok. ${#tests[@]} passed" /tmp/tests
