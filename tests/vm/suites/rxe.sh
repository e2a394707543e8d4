# The machines themselves: both have an RDMA device that works, they reach each other, and what a suite hands back arrives.
ibv_devinfo -d $DEVICE -v >/tmp/devinfo
cat /tmp/devinfo
grep -q PORT_ACTIVE /tmp/devinfo
grep -q 'active_mtu:.*4096' /tmp/devinfo
[ "$(gid_index)" -ge 0 ]
echo "{\"max_qp\": $(awk '$1 == "max_qp:" { print $2 }' /tmp/devinfo)}" >"$RESULTS/device-$ROLE.json"
# Packets of the whole MTU, undivided.
busybox ping -c 3 -W 5 -s $((MTU - 28)) $PEER_ADDRESS
barrier done
