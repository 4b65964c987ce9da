"""Programs that start thousands of sends before their receives complete, however many messages wait at the peer."""

from __future__ import annotations

import harness
import jobs
import pytest

PROGRAM = str(harness.PROGRAMS / "sends_first.py")
# More sends than the transmit queue holds: by rendezvous, announced for lack of window, and long.
SENDS = ["4500", "20000", "8000", "1500", "4500", "100000"]


@pytest.mark.parametrize("shm", ["1", "0"], ids=["shm", "tcp"])
def test_mpich(runner: harness.Runner, shm: str) -> None:
    """MPICH, over shared memory and over TCP."""
    env = jobs.mpich_environment(harness.PROVIDER, FI_WEFT_SHM=shm)
    outcome = runner.run(jobs.mpich(2, [str(harness.PYTHON), PROGRAM, *SENDS]), env, 60).check()
    assert "sends first: good" in outcome.output and jobs.mpich_provider(outcome.output) == harness.PROVIDER


def test_open_mpi(runner: harness.Runner) -> None:
    """Open MPI."""
    env = jobs.environment(harness.PROVIDER)
    command = [str(jobs.OPEN_MPI / "bin/python"), PROGRAM, *SENDS]
    outcome = runner.run(jobs.open_mpi(2, command, env), env, 60).check()
    assert "sends first: good" in outcome.output
