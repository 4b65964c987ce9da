#!/usr/bin/env bash
# Runs a command in a world in which a directory can be changed without effect outside. Must run inside a sandbox
# (support/sandbox.py), which removes everything afterwards. Exits with 77 where overlays are not possible.
#
#   overlay.sh venv DIRECTORY COMMAND ARGUMENT...     the directory keeps its place
#   overlay.sh system KEEP COMMAND ARGUMENT...        a chroot with a copy of the system, in which KEEP is as outside
set -euo pipefail
kind=$1 directory=$2
shift 2
layers=/run/overlay
mkdir -p $layers
mount -t tmpfs tmpfs $layers
mkdir -p $layers/{changes,work,root}
case $kind in
  venv) below=$directory place=$directory ;;
  system) below=/ place=$layers/root ;;
esac
mount -t overlay overlay -o "lowerdir=$below,upperdir=$layers/changes,workdir=$layers/work" "$place" || exit 77
if [ "$kind" = venv ]; then
  exec "$@"
fi
# The directory is mounted last, since it may lie below /tmp.
mount -t tmpfs tmpfs "$place/tmp"
for mounted in /proc /dev /sys "$directory"; do
  mkdir -p "$place$mounted"
  mount --rbind "$mounted" "$place$mounted"
done
cd "$directory"
exec chroot "$place" "$@"
