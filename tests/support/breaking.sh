#!/usr/bin/env bash
# Runs a command between the two hosts of two-hosts.sh and breaks their connections meanwhile. The connections
# are reset repeatedly, and the link is down once for two seconds. The launcher's connections use another
# network.
#
#   two-hosts.sh breaking.sh COMMAND ARGUMENT...
set -euo pipefail

trouble() {
  for round in $(seq 200); do
    sleep 0.3
    ip netns exec h1 ss --kill --tcp --no-header dst 10.77.0.2 >/dev/null
    if [ "$round" = 6 ]; then
      ip link set wve1 down
      sleep 2
      ip link set wve1 up
    fi
  done
}
trouble &
trap 'kill $!' EXIT
"$@"
