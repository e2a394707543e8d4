# Lanes of the crate `transport` over RDMA on a device, with both ends in one process: its tests, which otherwise run over
# a network within the process.
# vm: guests=1 cpus=2 memory_mib=1536 limit_s=300
export RGAPS_TEST_RDMA=$DEVICE
target/vm/programs/rdma --test-threads 2 --color never
