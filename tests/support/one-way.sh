#!/usr/bin/env bash
# Blocks connections from one of the two hosts of two-hosts.sh to the other, and lets the reverse pass. Then runs a
# command.
#
#   two-hosts.sh one-way.sh HOSTS DROP|REJECT COMMAND ARGUMENT...
#
# HOSTS: the number of the host whose connections are blocked, or `12` for both.
set -euo pipefail

hosts=$1 action=$2
shift 2
for from in 1 2; do
  if [[ $hosts == *$from* ]]; then
    ip netns exec "h$((3 - from))" iptables -A INPUT -p tcp --syn -s "10.77.0.$from" -j "$action"
  fi
done
exec "$@"
