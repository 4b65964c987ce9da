#!/usr/bin/env bash
# Joins the two hosts of two-hosts.sh by two more networks, eth1 and eth2, each with a limited rate. Then runs a
# command there. With RAIL_DOWN=1 the second network fails after its first megabytes, and is back three seconds later.
#
#   two-hosts.sh two-rails.sh RATE COMMAND ARGUMENT...
set -euo pipefail

rate=$1
shift
for number in 1 2; do
  ip -n h1 link add "eth$number" type veth peer name "eth$number" netns h2
  for host in 1 2; do
    ip -n "h$host" address add "10.78.$number.$host/24" dev "eth$number"
    ip -n "h$host" link set "eth$number" up
    tc -n "h$host" qdisc add dev "eth$number" root tbf rate "$rate" burst 128kb latency 20ms
  done
done
# The carrier comes a moment after both ends are up.
for host in h1 h2; do
  for name in eth1 eth2; do
    for _ in $(seq 100); do
      [ "$(ip netns exec "$host" cat "/sys/class/net/$name/operstate")" = up ] && break
      sleep 0.05
    done
  done
done
if [ "${RAIL_DOWN:-0}" = 1 ]; then
  (
    until [ "$(ip netns exec h1 cat /sys/class/net/eth2/statistics/tx_bytes)" -gt 5000000 ]; do sleep 0.1; done
    ip -n h1 link set eth2 down
    sleep 3
    ip -n h1 link set eth2 up
  ) &
  trap 'kill $! 2>/dev/null || true' EXIT
fi
"$@"
