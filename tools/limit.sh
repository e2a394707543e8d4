#!/usr/bin/env bash
# Runs a command that may hang: tools/limit.sh SECONDS COMMAND...
# After SECONDS it prints what every process of the command is doing, kills them all and exits with 124.
set -uo pipefail

seconds=$1
shift
# A group of its own, so that all of it can be looked at and ended.
setsid -- "$@" &
leader=$!
sleep "$seconds" </dev/null >/dev/null 2>&1 &
timer=$!
trap 'end; exit 130' INT TERM HUP
trap 'kill "$timer" 2>/dev/null' EXIT

# The process and all that it started, whatever session they made for themselves.
family() {
  local pid child
  for pid; do
    echo "$pid"
    for child in $(ps -o pid= --ppid "$pid" 2>/dev/null); do family "$child"; done
  done
}

end() {
  local pids
  mapfile -t pids < <(family "$leader")
  kill -KILL "${pids[@]}" 2>/dev/null
  kill -KILL -- "-$leader" 2>/dev/null
}

# What they wait for.
show() {
  local pids pid task
  mapfile -t pids < <(family "$leader")
  ps -o pid,ppid,stat,etimes,args -p "$(IFS=,; echo "${pids[*]}")" 2>/dev/null
  for pid in "${pids[@]}"; do
    for task in /proc/"$pid"/task/*; do
      printf '%s %s: %s %s\n' "$pid" "$(cat "$task/comm" 2>/dev/null)" \
        "$(cat "$task/wchan" 2>/dev/null)" "$(cat "$task/syscall" 2>/dev/null)"
    done
    if command -v gdb >/dev/null; then
      timeout 60 gdb -p "$pid" -batch -nx -ex 'set pagination off' -ex 'thread apply all bt 24' 2>/dev/null |
        grep -E '^(Thread|#)' | sed -n 1,400p
    fi
  done
}

# Whichever of the two ends first.
wait -n
code=$?
kill -0 "$timer" 2>/dev/null && exit "$code"
printf 'limit: not done after %d s: %s\n' "$seconds" "$*" >&2
show >&2
end
wait "$leader" 2>/dev/null
exit 124
