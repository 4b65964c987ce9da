#!/usr/bin/env bash
# Makes two hosts, h1 and h2, out of network namespaces. A bridge in the current namespace joins them. Then runs
# a command there. With WEFT_TEST_HOSTS=6 the hosts use IPv6 only. Must run inside a sandbox
# (support/sandbox.py), which removes everything afterwards.
#
#   two-hosts.sh COMMAND ARGUMENT...
set -euo pipefail

mkdir -p /run/netns
ip link add wbr0 type bridge
ip address add 10.77.0.254/24 dev wbr0
ip link set wbr0 up
for number in 1 2; do
  ip netns add "h$number"
  ip link add "wve$number" type veth peer name eth0 netns "h$number"
  ip link set "wve$number" master wbr0 up
  if [ "${WEFT_TEST_HOSTS:-4}" = 6 ]; then
    ip -n "h$number" address add "fd77::$number/64" dev eth0 nodad
  else
    ip -n "h$number" address add "10.77.0.$number/24" dev eth0
  fi
  # Use reno, whatever the machine prefers: after an outage BBR assumes a very slow link for a long time.
  ip netns exec "h$number" sh -c 'echo reno > /proc/sys/net/ipv4/tcp_congestion_control'
  ip -n "h$number" link set eth0 up
  ip -n "h$number" link set lo up
done
exec "$@"
