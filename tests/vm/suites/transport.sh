# Lanes of the crate `transport` over RDMA on a device, with both ends in one process: what every kind of lane has to do. Each
# guest runs every second test. (The others of the same program have faults of the network within the process.)
# vm: memory_mib=1536 limit_s=300
export RGAPS_TEST_RDMA=$DEVICE
odd=1
[ "$ROLE" = a ] || odd=0
mapfile -t tests < <(sed -n 's/^pub fn \([a-z_]*\)(over: .*/\1/p' crates/transport/tests/lanes/scenarios.rs | awk "NR % 2 == $odd")
target/vm/programs/rdma --exact "${tests[@]}" --test-threads 2 --color never | tee /tmp/tests
# All of these, and not others that have their names no more.
grep -q "test result: ok. ${#tests[@]} passed" /tmp/tests && [ ${#tests[@]} -ge 3 ]
