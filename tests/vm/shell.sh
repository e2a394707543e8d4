# `make vm-shell`: a shell in guest a, on the terminal; guest b does what `b COMMAND` there says, until a is left.
# vm: limit_s=0
serve_peer() {
  local number=0
  until [ -e "$SYNC/ended.$PEER" ]; do
    if [ -e "$SYNC/command.$number" ]; then
      (. "$SYNC/command.$number") >"$SYNC/output.$number" 2>&1 </dev/null || echo "status $?" >>"$SYNC/output.$number"
      : >"$SYNC/done.$number"
      number=$((number + 1))
    fi
    pause 0.1
  done
}

shell() {
  cat >/tmp/bashrc <<END
. $REPOSITORY/tests/vm/guest.sh
number=0
b() {
  echo "\$*" >$SYNC/command.new && mv $SYNC/command.new $SYNC/command.\$number
  until [ -e $SYNC/done.\$number ]; do pause 0.1; done
  cat $SYNC/output.\$number
  number=\$((number + 1))
}
stty rows $TERMINAL_ROWS cols $TERMINAL_COLUMNS
PS1='vm-a:\w# '
END
  say "a shell in guest a, $ADDRESS, with $DEVICE; 'b COMMAND' runs a command in guest b, $PEER_ADDRESS; leave with 'exit'"
  setsid --wait --ctty bash --rcfile /tmp/bashrc -i <>/dev/ttyS0 >&0 2>&1 || true
}

if [ "$ROLE" = a ]; then shell; else serve_peer; fi
