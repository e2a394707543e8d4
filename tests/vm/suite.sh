# One suite in a guest: network, RDMA device, peer, and then what is to be tested.
. tests/vm/guest.sh
connect_guest
wait_for_peer
. /run/vm/"$SUITE"/suite.sh
