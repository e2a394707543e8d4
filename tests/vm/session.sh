# What a guest runs from the time that it has the host's files: network, RDMA device, suite, status.
. "$(dirname "${BASH_SOURCE[0]}")/guest.sh"
cd "$REPOSITORY" || exit

(
  set -eu -o pipefail
  connect_guest
  wait_for_peer
  . /run/vm/suite.sh
)
status=$?
# The peer waits for nothing more from here; the marker is what tests/vm/run.py believes.
echo $status >"$SYNC/ended.$ROLE"
printf '\nvm-status %s %d\n' "$ROLE" $status
