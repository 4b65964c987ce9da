#!/usr/bin/env bash
# Makes two hosts out of network namespaces, h1 and h2, joined by a bridge in the namespace it is started in, and runs
# a command there. With WEFT_TEST_HOSTS=6, they know each other by IPv6 only. To be run inside a sandbox (support/sandbox.py), which takes
# everything away again.
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
  # Whatever this machine prefers: BBR, after the link was down, takes it for one of less than a Mbit/s for a long while.
  ip netns exec "h$number" sh -c 'echo reno > /proc/sys/net/ipv4/tcp_congestion_control'
  ip -n "h$number" link set eth0 up
  ip -n "h$number" link set lo up
done
exec "$@"
