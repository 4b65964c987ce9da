#!/usr/bin/env bash
# Starts Debian's Slurm with one node, which is this host, then runs a command. Must run inside a system overlay
# (support/overlay.sh), after the packages were unpacked. Exits with 77 if the node does not become idle.
#
#   slurm.sh COMMAND ARGUMENT...
set -euo pipefail

# The packages' scripts would make the users and the names of the programs.
getent passwd munge >/dev/null || useradd -r munge
for program in slurmctld slurmd slurmstepd; do
  ln -sf "$program-wlm" "/usr/sbin/$program"
done
mkdir -p /etc/munge /etc/slurm /run/munge /var/{lib,log}/munge /var/spool/slurm{ctld,d}
head -c 1024 /dev/urandom > /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
chmod 700 /etc/munge
chmod 755 /run/munge
chown -R munge /etc/munge /run/munge /var/{lib,log}/munge

# Slurm resolves names only if an interface other than loopback has an address.
ip link add slurm0 type veth peer name slurm1
ip address add 10.78.0.1/24 dev slurm0
ip link set slurm0 up
ip link set slurm1 up
host=$(hostname -s)
printf '127.0.0.1 localhost\n10.78.0.1 %s\n' "$host" > /etc/hosts
cat > /etc/slurm/slurm.conf <<END
ClusterName=test
SlurmctldHost=$host(10.78.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=10.78.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP
END
setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged
slurmctld
slurmd
for _ in $(seq 60); do
  [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && exec "$@"
  sleep 0.25
done
tail -n 20 /tmp/slurmctld.log /tmp/slurmd.log
exit 77
