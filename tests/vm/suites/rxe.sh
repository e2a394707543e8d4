# The machines themselves: both have an RDMA device that works, they reach each other, and what a suite hands back arrives.
ibv_devinfo -d $DEVICE -v >/tmp/devinfo
cat /tmp/devinfo
grep -q PORT_ACTIVE /tmp/devinfo
grep -q 'active_mtu:.*4096' /tmp/devinfo
[ "$(gid_index)" -ge 0 ]
ibv_devinfo -d $DEVICE >"$RESULTS/device-$ROLE.txt"
# Packets of the whole MTU, undivided.
busybox ping -c 3 -i 0.2 -W 5 -s $((MTU - 28)) $PEER_ADDRESS
barrier done
