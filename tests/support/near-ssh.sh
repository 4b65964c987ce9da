#!/usr/bin/env bash
# Called like ssh, runs the command on this host. A launcher that names two hosts so regards ranks of this one as apart.
set -euo pipefail
while [[ $1 == -* ]]; do shift; done
shift
exec bash -c "$*"
