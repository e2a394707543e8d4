# Lanes of the crate `transport` over RDMA on a device, with both ends in one process: its tests, which otherwise run over
# a network within the process. Each guest runs every second one.
# vm: memory_mib=1536 limit_s=300
export RGAPS_TEST_RDMA=$DEVICE
odd=1
[ "$ROLE" = a ] || odd=0
mapfile -t tests < <(target/vm/programs/rdma --list --format terse | sed -n 's/: test$//p' | awk "NR % 2 == $odd")
target/vm/programs/rdma --exact "${tests[@]}" --test-threads 2 --color never
