#!/usr/bin/env bash
# Limits the rate of each TCP connection between the two hosts of two-hosts.sh, and of four together, as clouds limit
# flows. Then runs a command.
#
#   two-hosts.sh flow-caps.sh MBIT COMMAND ARGUMENT...
set -euo pipefail

mbit=$1
shift
classes=16
for number in 1 2; do
  on() { ip netns exec "h$number" "$@"; }
  other=10.77.0.$((3 - number))
  limit() { on tc class add dev eth0 parent "$1" classid "$2" htb rate "$3mbit" ceil "$4mbit" burst 16kb cburst 16kb quantum 3000; }
  on tc qdisc add dev eth0 root handle 1: htb default 2
  limit 1: 1:1 $((4 * mbit)) $((4 * mbit))
  limit 1:1 1:2 1 "$mbit"
  for n in $(seq 0 $((classes - 1))); do
    class=$(printf '1:%x' $((n + 16)))
    limit 1:1 "$class" 1 "$mbit"
    on tc qdisc add dev eth0 parent "$class" pfifo limit 200
    # Connections get the classes in turn, by their first packet in either direction.
    for place in "OUTPUT -d" "PREROUTING -s"; do
      # shellcheck disable=SC2086
      on iptables -t mangle -A $place "$other" -p tcp --syn -m statistic --mode nth --every $classes --packet "$n" \
        -j CONNMARK --set-mark $((n + 1))
    done
    on iptables -t mangle -A OUTPUT -p tcp -m connmark --mark $((n + 1)) -j CLASSIFY --set-class "$class"
  done
done
exec "$@"
