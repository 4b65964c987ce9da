#!/usr/bin/env bash
# Gives the hosts of two-hosts.sh an interface that takes the default route and does not reach the other host. Then runs
# a command.
#
#   two-hosts.sh odd-interfaces.sh cold|vpn|apart|crowd COMMAND ARGUMENT...
#
# cold: a card without a cable, and 20 bridges without carrier, as of containers. vpn: a tunnel to one other host.
# apart: a network of each host alone. crowd: a default route that leads nowhere, 20 bridges with a carrier and the same
# addresses on both hosts, and a card without a cable.
set -euo pipefail

tunnel='
import fcntl, os, struct, time
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"tun0", 0x1001))
print(flush=True)
time.sleep(600)
'

# Adds 20 bridges whose addresses do not depend on the host. $1: up, or the state in which they have no carrier.
bridges() {
  for bridge in {0..19}; do
    on ip link add "docker$bridge" type bridge
    on ip link add "port$bridge" type veth peer name "end$bridge"
    on ip link set "port$bridge" master "docker$bridge" up
    on ip link set "end$bridge" "$1"
    on ip address add "172.17.$bridge.1/24" dev "docker$bridge"
    on ip link set "docker$bridge" up
  done
}

kind=$1
shift
for number in 1 2; do
  on() { ip netns exec "h$number" "$@"; }
  case $kind in
    cold)
      on ip link add odd0 type veth peer name cable0
      on ip link set odd0 up
      bridges down
      ;;
    vpn)
      exec 3< <(on python3 -c "$tunnel")
      read -r <&3
      on ip link set tun0 name odd0 up
      ;;
    crowd)
      # The log names the first cards of each kind, and bridges gain their carrier after a while.
      on ip link add cold0 type veth peer name cable0
      on ip address add "10.99.0.$number/24" dev cold0
      on ip link set cold0 up
      bridges up
      on ip link add odd0 type veth peer name wire0
      on ip link set wire0 up
      on ip link set odd0 up
      ;;
    apart)
      on ip link add odd0 type veth peer name wire0
      on ip link set wire0 up
      on ip link set odd0 up
      ;;
  esac
  on ip address add "10.88.0.$number/24" dev odd0
  on ip route add default via 10.88.0.254
done
exec "$@"
