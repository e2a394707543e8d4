#!/usr/bin/env bash
# Shows that no test depends on how fast the machine is: runs the unit tests ROUNDS times alone, then beside a load that
# takes all processors, then while their processes are stopped and continued at random. The first failure ends it.
# PACKAGES="-p rgaps-links" narrows it down; WAYS="alone load stop_and_continue" are the three ways.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${ROUNDS:-10}
packages=${PACKAGES:---workspace --exclude rgaps-python --exclude rgaps-chaos}
RGAPS_TEST_STOPS=$(mktemp -d)
export RETRY=0 RGAPS_DAEMON=$PWD/target/debug/rgapsd RGAPS_TEST_STOPS

run_tests() {
  # shellcheck disable=SC2086 # several words
  tools/unit.sh $packages
}

# A busy loop per processor, until it is killed.
load() {
  for _ in $(seq "$(nproc)"); do (while :; do :; done) & done
  wait
}

# Stops one of the tests' processes for up to 300 ms, again and again: to it, time jumps.
# What a test itself has stopped (rgaps_testkit::stop) stays as it is.
stop_and_continue() {
  local pid
  while :; do
    pid=$(pgrep -f "$PWD/target/debug/" | shuf -n 1) || { sleep 0.1; continue; }
    (
      # Until it goes on: a process that waits for this lock, or has it, is never stopped by us with it.
      flock 9
      [ ! -e "$RGAPS_TEST_STOPS/$pid" ] || exit 0
      kill -STOP "$pid" 2>/dev/null || exit 0
      sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
      kill -CONT "$pid" 2>/dev/null
    ) 9<"$RGAPS_TEST_STOPS"
  done
}

beside=''
end_beside() {
  [ -z "$beside" ] || kill -- -"$beside" 2>/dev/null || true
  pkill -CONT -f "$PWD/target/debug/" 2>/dev/null || true
  beside=''
}
trap 'end_beside; rm -rf "$RGAPS_TEST_STOPS"' EXIT

passed=0
for how in ${WAYS:-alone load stop_and_continue}; do
  if [ "$how" != alone ]; then
    set -m
    "$how" &
    beside=$!
    set +m
  fi
  for round in $(seq "$rounds"); do
    start=$SECONDS
    run_tests >target/steady.log 2>&1 || {
      tail -n 60 target/steady.log
      printf 'steady: round %d (%s) failed after %d s; the whole log is target/steady.log\n' "$round" "$how" $((SECONDS - start))
      exit 1
    }
    passed=$((passed + 1))
    printf 'steady: round %d (%s) passed in %d s\n' "$round" "$how" $((SECONDS - start))
  done
  end_beside
done
printf '%d passed, 0 failed\n' "$passed"
