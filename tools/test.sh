#!/usr/bin/env bash
# `make test`: every step in order, cheap ones first, stopping at the first that fails. Each step is
# a target of its own, so a failure can be looked at alone.
#
# Some steps only compile and compute: they run beside the others, at the lowest priority, on what the others leave of the processors.
# Their output is printed when they have ended.
#
# A step that hangs is ended after STEP_SECONDS, with a listing of what its processes wait for. A step that
# fails is run once more, so that the later steps run too. What passed only then is named at the end, and the
# whole has failed (RETRY=0: nothing is run once more).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

STEPS=(setup check build unit c-test test-device test-gpu-verbs demo-device python docs-test chaos test-rdma test-netem)
# The kernel module, and NVIDIA's packages of compilers, are for x86-64.
[ "$(uname -m)" != x86_64 ] || STEPS+=(test-kernel test-remote)
BESIDE=(aarch64 docs device-code verbs-code loom)
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
# The shell of the steps that run beside the others.
beside=
end_beside() {
  local steps
  [ -n "$beside" ] || return
  steps=$(ps -o pid= --ppid "$beside")
  kill "$beside" 2>/dev/null
  # shellcheck disable=SC2086
  [ -z "$steps" ] || kill $steps 2>/dev/null
}
trap 'end_beside; end_leftovers' EXIT

start_all=$SECONDS
mkdir -p target
rm -f target/unsteady

# A step, and the processor time of all that it waited for.
run_step() {
  local left=$((TOTAL_SECONDS - (SECONDS - start_all)))
  # shellcheck disable=SC2016
  tools/limit.sh "$((left < STEP_SECONDS ? left : STEP_SECONDS))" bash -c '
    make "$0"
    code=$?
    awk "{ print int((\$16 + \$17) / 100) }" /proc/$$/stat >>"target/cpu/$0"
    exit $code' "$1"
}

# Runs a step, and once more if it fails.
try_step() {
  run_step "$1" && return
  [ "${RETRY:-1}" != 0 ] && [ $((SECONDS - start_all)) -le "$RETRY_SECONDS" ] || return
  printf '\nmake test: step "%s" failed; once more\n' "$1" >&2
  run_step "$1" || return
  printf 'make %s\n' "$1" >>target/unsteady
}

# The sum of what stands in files.
cpu_seconds() { awk '{ n += $1 } END { print n + 0 }' "$@"; }

failed() {
  printf '\nmake test: FAILED in step "%s"; run "WHOLE=1 make %s" to see it alone\n' "$1" "$1" >&2
  exit 1
}

# A step, and how long it took.
timed_step() {
  local start=$SECONDS
  printf '\n==== make %s\n' "$1"
  try_step "$1" || failed "$1"
  printf '%-15s %4d s %5d s of processors\n' "$1" $((SECONDS - start)) "$(cpu_seconds "target/cpu/$1")" >>target/steps
}

run_beside() {
  renice -n 19 "$BASHPID" >/dev/null
  local step
  for step in "${BESIDE[@]}"; do timed_step "$step"; done
}

rm -rf target/steps target/cpu
mkdir target/cpu
for step in "${STEPS[@]}"; do
  timed_step "$step"
  if [ "$step" = check ]; then
    run_beside >target/beside.log 2>&1 &
    beside=$!
  fi
done
wait "$beside"
beside_rc=$?
beside=
cat target/beside.log
[ "$beside_rc" = 0 ] || exit 1

printf '\n==== all steps ran\n'
cat target/steps
printf '%-15s %4d s %5d s of processors, %s of disk\n' all $((SECONDS - start_all)) "$(cpu_seconds target/cpu/*)" "$(du -sh . | cut -f 1)"
if [ -e target/unsteady ]; then
  printf '\nmake test: FAILED: passed only when run once more, which is a bug:\n' >&2
  cat target/unsteady >&2
  exit 1
fi
printf '\n==== every step passed\n'
