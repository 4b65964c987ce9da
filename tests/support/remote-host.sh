#!/usr/bin/env bash
# Replaces ssh as the agent of a launcher, as netns-ssh.sh does, with more of another host: the command gets a host name
# and processes of its own, and nothing of the caller's environment.
set -euo pipefail
while [[ $1 == -* ]]; do shift; done
host=$1
shift
clean=(env -i "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" "HOME=$HOME")
exec ip netns exec "$host" unshare --uts --pid --fork --mount-proc --ipc "${clean[@]}" bash -c "hostname $host; $*"
