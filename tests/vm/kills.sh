# 10,000 messages over RDMA, from nothing to 64 MiB, while what carries them is killed (tests/vm/crossing.sh).
# vm: limit_s=600 memory_mib=1280
. tests/vm/hosts.sh
. tests/vm/crossing.sh
start_hosts
all_sizes 4000 64
links_there 1000 16
daemon_there 1000 16
publisher 1000 16
subscriber 1000 16
cable 1000 16
links_here 1000 16
rgaps peers --json >"$RESULTS/peers-$ROLE.json"
