"""A peer is killed. Pending operations with it fail within a second, nothing hangs, and no resource of weft stays."""

from __future__ import annotations

import json

import harness
import jobs
import pytest

BOUND_NS = 1_000_000_000
PATHS = {"default": {}, "tcp": {"FI_WEFT_SHM": "no"}, "shm": {"FI_WEFT_TCP": "no"}}


@pytest.mark.parametrize("path", PATHS)
def test_libfabric_peer(runner: harness.Runner, path: str) -> None:
    """Without MPI: a receive from the dead peer, a long pending send to it, and a later send fail in time."""
    program = harness.compile_c("peer_death", "-lfabric")
    env = jobs.environment(harness.PROVIDER, **PATHS[path])
    outcome = runner.run([harness.PYTHON, str(harness.PROGRAMS / "kill_pair.py"), str(program)], env, 90).check()
    seen = json.loads(outcome.output.splitlines()[-1])
    assert seen["status"] == 0, seen
    ended = dict(line.split(maxsplit=1) for line in seen["lines"])
    assert set(ended) == {"receive", "send", "late", "closed"}, seen
    for what in ("receive", "send", "late"):
        assert ended[what] != "nothing", f"the {what} never ended: {seen}"
        error, at_ns = map(int, ended[what].split())
        assert error != 0, f"the {what} succeeded: {seen}"
        assert 0 <= at_ns - seen["killed_ns"] < BOUND_NS, f"the {what} failed too late: {seen}"
    assert int(ended["closed"]) - seen["killed_ns"] < 2 * BOUND_NS, f"closing took too long: {seen}"
    if outcome.left is not None:
        assert outcome.left.nothing(), outcome.left


def test_mpi_rank(runner: harness.Runner) -> None:
    """Under MPICH, which ends the whole job. No process, socket or file of weft stays."""
    command = [harness.PYTHON, str(harness.PROGRAMS / "mpi_death.py")]
    outcome = runner.run(jobs.mpich(2, command), jobs.mpich_environment(harness.PROVIDER), 60)
    assert "rank 1 dies" in outcome.output, outcome.output[-3000:]
    assert outcome.status not in (0, None), f"status {outcome.status}: {outcome.output[-3000:]}"
    if outcome.left is not None:
        assert not outcome.left.processes and not outcome.left.sockets, outcome.left
        # MPICH's own segments, which exist with NOLOCAL, too, and a file of its launcher outlive a killed rank.
        theirs = ("/dev/shm/mpich_shm_", "/tmp/hydra_hwloc_xmlfile_")
        assert all(name.startswith(theirs) for name in outcome.left.files), outcome.left
