# The demo's camera and three subscribers on one machine, and three on the other, over RDMA; the cable is pulled for 2 s.
# vm: limit_s=600 memory_mib=1536
PROGRAMS=$REPOSITORY/target/release
. tests/vm/hosts.sh
start_hosts
# What the processes write of themselves; the repository is read-only.
mount -t tmpfs tmpfs target/demo
.venv/bin/python demo/machines.py $ROLE --frames 30 --programs "$PROGRAMS" --shared "$RESULTS"
barrier over
