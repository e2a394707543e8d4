#!/usr/bin/env bash
# `make test`: every step, in two tracks that run side by side, cheap ones first. Most steps of the second wait: for virtual
# machines, or for one processor. Each step is a target of its own, so a failure can be looked at alone. Once a step has
# failed, no other one begins.
#
# A step that hangs is ended after STEP_SECONDS, with a listing of what its processes wait for. A step that
# fails is run once more, so that the later steps run too. What passed only then is named at the end, and the
# whole has failed (RETRY=0: nothing is run once more).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

FIRST=(check docs unit build c-test test-device test-gpu-verbs demo-device python docs-test chaos)
SECOND=(loom aarch64 test-rdma test-netem)
# The kernel module, and NVIDIA's packages of compilers, are for x86-64.
[ "$(uname -m)" != x86_64 ] || SECOND=(test-kernel "${SECOND[@]}" test-remote)
# On one kernel, with fewer kills than `make test-kernel` alone.
export KERNEL_SERIES=${KERNEL_SERIES:-6.1} KERNEL_KILLS=${KERNEL_KILLS:-100} KERNEL_FUZZ_S=${KERNEL_FUZZ_S:-10}
# A shorter crash test than `make chaos` alone; the seed is printed with every result.
export KILLS=${TEST_KILLS:-200} SEED=${SEED:-1}
STEP_SECONDS=${STEP_SECONDS:-1800}
# What one step builds, the next ones use.
export WHOLE=1
# After this long nothing is run once more.
RETRY_SECONDS=2400
# The whole, so that a run that goes wrong ends and says so.
TOTAL_SECONDS=${TOTAL_SECONDS:-4800}

# What a fresh clone needs, in GB: built programs, virtual machines, the kernel's sources.
DISK_GB=${DISK_GB:-30}
free_gb() { df --output=avail --block-size=1G . | tail -n 1 | tr -d ' '; }
if [ ! -d target/debug ] && [ "$(free_gb)" -lt "$DISK_GB" ]; then
  printf 'make test: %s has %s GB free, and the tests need %s GB; free some, or clone to another disk (DISK_GB=0 tries all the same)\n' \
    "$PWD" "$(free_gb)" "$DISK_GB" >&2
  exit 1
fi

# Processes of this run that are there when it ends would keep its output open, and whoever reads
# that to its end would wait for them. A daemon's environment is scrubbed, but its program is ours.
export RGAPS_TEST_RUN=$$-$RANDOM
end_leftovers() {
  local proc pid exe
  for proc in /proc/[0-9]*; do
    pid=${proc#/proc/}
    [ "$pid" = $$ ] || [ "$pid" = $PPID ] && continue
    exe=$(readlink "$proc/exe" 2>/dev/null) || continue
    case $exe in "$PWD"/target/*) ;; *)
      grep -qzFx "RGAPS_TEST_RUN=$RGAPS_TEST_RUN" "$proc/environ" 2>/dev/null || continue
      [ "$(ps -o ppid= -p "$pid" | tr -d ' ')" = 1 ] || continue ;;
    esac
    printf 'make test: left behind, ended now: %s\n' "$(ps -o pid,etimes,args -p "$pid" | tail -n 1)"
    kill -KILL "$pid" 2>/dev/null
  done
}
trap end_leftovers EXIT

start_all=$SECONDS
mkdir -p target/test
rm -f target/unsteady target/test/*

run_step() {
  local left=$((TOTAL_SECONDS - (SECONDS - start_all)))
  tools/limit.sh "$((left < STEP_SECONDS ? left : STEP_SECONDS))" make "$1"
}

# Runs a step, and once more if it fails.
try_step() {
  local step=$1
  printf '\n==== make %s\n' "$step"
  run_step "$step" && return
  [ "${RETRY:-1}" != 0 ] && [ $((SECONDS - start_all)) -le "$RETRY_SECONDS" ] || return
  printf '\nmake test: step "%s" failed; once more\n' "$step" >&2
  run_step "$step" || return
  printf 'make %s\n' "$step" >>target/unsteady
}

# Of all processes that a shell has waited for.
cpu_seconds() { awk '{ print int(($16 + $17) / 100) }' "/proc/$1/stat"; }

# One step after the other, until one fails in any track.
track() {
  local step start cpu_before shell=$BASHPID
  for step; do
    [ ! -e target/test/failed ] || return 1
    start=$SECONDS
    cpu_before=$(cpu_seconds "$shell")
    if ! try_step "$step"; then
      printf '%s\n' "$step" >>target/test/failed
      return 1
    fi
    printf '%-15s %4d s %5d s of processors\n' "$step" $((SECONDS - start)) $(($(cpu_seconds "$shell") - cpu_before)) >>target/test/summary
  done
}

# What a track prints comes in one piece.
quiet_track() {
  local code=0
  track "$@" >target/test/second.log 2>&1 || code=$?
  cat target/test/second.log
  return "$code"
}

track setup || exit 1
quiet_track "${SECOND[@]}" &
second=$!
track "${FIRST[@]}"
wait "$second"
if [ -e target/test/failed ]; then
  while read -r step; do
    printf '\nmake test: FAILED in step "%s"; run "make %s" to see it alone\n' "$step" "$step" >&2
  done <target/test/failed
  exit 1
fi

printf '\n==== all steps ran\n'
cat target/test/summary
printf '%-15s %4d s %5d s of processors, %s of disk\n' all $((SECONDS - start_all)) "$(cpu_seconds $$)" "$(du -sh . | cut -f 1)"
if [ -e target/unsteady ]; then
  printf '\nmake test: FAILED: passed only when run once more, which is a bug:\n' >&2
  cat target/unsteady >&2
  exit 1
fi
printf '\n==== every step passed\n'
