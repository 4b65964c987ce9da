"""Containers as namespaces: the network namespace alone decides whether ranks share memory (fi_weft(7), CONTAINERS)."""

from __future__ import annotations

import re

import harness
import jobs
import pytest

# The namespaces of each rank. Containers of one pod, or with --network=host, have all but that of the network.
RANKS = {
    "one container": [],
    "ipc and processes": ["unshare", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"],
    "users": ["unshare", "--user", "--map-root-user", "--ipc", "--pid", "--fork", "--kill-child"],
}
LINE = re.compile(r"^weft: 2 of 2 ranks used weft: [\d,]+ messages \(.*\) by shm, nothing by TCP", re.M)

pytestmark = pytest.mark.skipif(harness.PROVIDER != "weft", reason="a property of weft alone")


@pytest.mark.parametrize("kind", RANKS)
def test_containers_with_a_common_network_share_memory(runner: harness.Runner, kind: str) -> None:
    """Neither an IPC, nor a process, nor a user namespace of each rank makes weft use TCP. Messages of all sizes pass,
    long ones without cross-memory attach where the kernel refuses it."""
    harness.need_sandbox()
    pingpong = [harness.PYTHON, "-m", "mpi4py.bench", "pingpong", "-n", "1048576", "--loop", "2", "--skip", "0"]
    command = [str(jobs.DIST / "weft"), "run", "--require", *jobs.mpich(2, [*RANKS[kind], *pingpong])]
    env = jobs.environment("weft")
    del env["FI_PROVIDER"], env["FI_PROVIDER_PATH"]
    output = runner.run(command, env, timeout_s=60).check().output
    assert LINE.search(output), output[-3000:]


def test_shared_memory_needs_no_files(runner: harness.Runner) -> None:
    """Windows of 32 MiB each, for which MPICH alone would need 128 MiB in /dev/shm, where a container has 64."""
    harness.need_sandbox()
    program = (
        "from mpi4py import MPI; w = MPI.Win.Allocate(32 << 20); m = w.tomemory(); m[:] = bytes(32 << 20);"
        "MPI.COMM_WORLD.Barrier(); w.Free()"
    )
    run = [str(jobs.DIST / "weft"), "run", "--require", *jobs.mpich(4, [harness.PYTHON, "-c", program])]
    env = jobs.environment("weft")
    del env["FI_PROVIDER"], env["FI_PROVIDER_PATH"]
    script = ["sh", "-c", 'mount -o remount,size=64m /dev/shm && exec "$@"', "sh", *run]
    output = runner.run(script, env, timeout_s=60).check().output
    assert "4 of 4 ranks used weft" in output, output[-3000:]
