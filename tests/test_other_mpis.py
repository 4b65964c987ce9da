"""Open MPI and Intel MPI over weft: smoke tests."""

from __future__ import annotations

import re

import harness
import jobs
import pytest


def need(directory: object) -> None:
    """Skips if an MPI library is not installed."""
    if not (jobs.ROOT / str(directory) / ".stamp").exists():
        pytest.skip(f"{directory} is missing: make deps")


@pytest.mark.parametrize("ranks", [2, 3])
def test_open_mpi(runner: harness.Runner, ranks: int) -> None:
    """Open MPI with its matching layer on libfabric (pml cm, mtl ofi): messages of every size, reductions,
    windows."""
    need(jobs.OPEN_MPI)
    env = jobs.environment(harness.PROVIDER)
    command = [str(jobs.OPEN_MPI / "bin/python"), str(harness.PROGRAMS / "all_pairs.py")]
    choice = ["--mca", "mtl_base_verbose", "100", "--mca", "opal_common_ofi_verbose", "100"]
    outcome = runner.run(jobs.open_mpi(ranks, command, env, *choice), env, 60).check()
    assert "all pairs: good" in outcome.output
    assert re.search(rf"mtl:ofi:provider: {harness.PROVIDER}\b", outcome.output), outcome.output[:4000]
    if outcome.left is not None:
        assert not outcome.left.processes and not outcome.left.sockets, outcome.left
        assert not [name for name in outcome.left.files if "weft" in name], outcome.left


@pytest.mark.parametrize(
    ("program", "benchmarks"),
    [("IMB-MPI1", ["PingPong", "Sendrecv", "Allreduce", "Alltoall"]), ("IMB-RMA", ["Unidir_put", "Unidir_get"])],
)
def test_intel_mpi(runner: harness.Runner, program: str, benchmarks: list[str]) -> None:
    """The benchmarks of Intel MPI. They do not verify data, so the test is that they complete over the provider."""
    need(jobs.INTEL_MPI)
    env = jobs.intel_mpi_environment(harness.PROVIDER, I_MPI_DEBUG="5")
    command = [program, *benchmarks, "-iter", "100", "-time", "0.3", "-npmin", "2"]
    outcome = runner.run(jobs.intel_mpi(2, command), env, 60).check()
    assert re.search(rf"libfabric provider: {harness.PROVIDER}\b", outcome.output), outcome.output[:4000]
    assert outcome.output.count("# Benchmarking") >= len(benchmarks), outcome.output[-3000:]
    assert "All processes entering MPI_Finalize" in outcome.output
    if outcome.left is not None:
        assert not outcome.left.processes and not outcome.left.sockets, outcome.left
