#!/usr/bin/env bash
# Replaces ssh as the launcher of MPICH's mpiexec. The host's name is the name of a network namespace. Called as
# `netns-ssh.sh [-x] h1 "command" argument...`. Like ssh, it joins the words and passes them to a shell.
set -euo pipefail
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "$host" bash -c "$*"
