#!/usr/bin/env bash
# Stands in for ssh as the launcher of MPICH's mpiexec: the host's name is the name of a network namespace.
# Called as `netns-ssh.sh [-x] h1 "command" argument...`; like ssh, it lets a shell join and read the words.
set -euo pipefail
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "$host" bash -c "$*"
