# Links between two hosts, which are network namespaces, over a cable that is slow, loses packets and mixes them up, and
# is pulled. In a virtual machine, since not every machine's kernel has netem. Three hosts (the test `triangle`) are more
# than an emulated processor can do in time.
# vm: guests=1 cpus=2 memory_mib=2048
export RGAPS_DAEMON=$REPOSITORY/target/debug/rgapsd

# The kernel does as it is told, or what follows would show nothing.
ip link add netem0 type veth peer name netem1
tc qdisc add dev netem0 root netem delay 5ms loss 1%
tc qdisc show dev netem0 | grep 'delay 5ms loss 1%'
ip link del netem0

for how in "delay 10ms 5ms loss 1%" "delay 5ms reorder 25% duplicate 1%"; do
  say "netem $how"
  RGAPS_TEST_NETEM=$how target/vm/programs/namespaces --nocapture
done
