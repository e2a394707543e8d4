# Two hosts for a script that reads this: network namespaces with a cable, where this user may make them; else both on loopback.
# The arrays `one` and `other` are what comes before a command on each host, `addresses` their addresses. `has_cable` is 1 where there is
# a cable, which `cable down` pulls and `cable up` plugs in. `remove_hosts` is for the script's trap.
names=("rgaps-device-$$-1" "rgaps-device-$$-2") addresses=(127.0.0.1 127.0.0.1) one=() other=() has_cable=0

cable() { ip -n "${names[1]}" link set "rd$$b" "$1"; }

remove_hosts() {
  local name
  [ $has_cable = 0 ] || for name in "${names[@]}"; do ip netns del "$name"; done
}

if ip netns add "${names[0]}" 2>/dev/null; then
  ip netns add "${names[1]}"
  has_cable=1
  addresses=(10.77.0.1 10.77.0.2)
  ip link add name "rd$$a" netns "${names[0]}" type veth peer name "rd$$b" netns "${names[1]}"
  ip -n "${names[0]}" addr add "${addresses[0]}/24" dev "rd$$a"
  ip -n "${names[1]}" addr add "${addresses[1]}/24" dev "rd$$b"
  for name in "${names[@]}"; do ip -n "$name" link set lo up; done
  ip -n "${names[0]}" link set "rd$$a" up
  cable up
  one=(ip netns exec "${names[0]}") other=(ip netns exec "${names[1]}")
else
  echo "two hosts on loopback, without a cable to pull: this user may make no network namespaces"
fi
