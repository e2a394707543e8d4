# What a guest runs from the time that it has the host's files: one suite after the other, each with nothing left of the one
# before. How a suite ended is in a file of the host's, which tests/vm/run.py looks at.
. /run/vm/machine # REPOSITORY, TERMINAL, SUITES
cd "$REPOSITORY" || exit
ulimit -c 0

for SUITE in $SUITES; do
  export SUITE
  . /run/vm/"$SUITE"/about # GUESTS, LIMIT_S
  [ "$ROLE" = a ] || [ "$GUESTS" = 2 ] || continue
  sync=/run/vm/$SUITE/sync
  # The peer may be in the suite before, as long as tests/vm/run.py lets it.
  : >"$sync/begun.$ROLE"
  until [ "$GUESTS" = 1 ] || { [ -e "$sync/begun.a" ] && [ -e "$sync/begun.b" ]; }; do sleep 0.1; done
  printf '\nvm-suite %s\n' "$SUITE"
  timeout --kill-after 10 "$LIMIT_S" bash -eu -o pipefail tests/vm/suite.sh
  status=$?
  # But for this and the machine's first process.
  kill -KILL -1
  wait
  rm -rf /tmp/* /run/rgaps* /dev/shm/*
  # The peer waits for nothing more of it from here.
  echo $status >"$sync/new.$ROLE"
  mv "$sync/new.$ROLE" "$sync/ended.$ROLE"
done
