"""Many ranks of one host: the descriptors and the memory that each of their links costs."""

from __future__ import annotations

import re

import harness
import jobs
import pytest

RANKS = 24
REPORT = re.compile(r"descriptors (\d+) next (\d+) pages (\d+) KiB")


def crowd(runner: harness.Runner, limit: str, *arguments: float, **env: str) -> harness.Outcome:
    """Runs a job whose ranks have this limit of descriptors (ulimit)."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("weft's own costs")
    program = harness.compile_c("crowd", compiler=str(jobs.MPICH / "bin/mpicc"))
    ranks = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", str(program), *map(str, arguments)]
    return runner.run(jobs.mpich(RANKS, ranks), jobs.mpich_environment(harness.PROVIDER, **env), timeout_s=90)


def test_few_descriptors(runner: harness.Runner) -> None:
    """The soft limit of descriptors is too low for the job, and weft raises it. The client keeps the low numbers, which
    select(2) can name."""
    outcome = crowd(runner, "-Sn 60", 1).check()
    report = REPORT.search(outcome.output)
    assert report, outcome.output
    descriptors, following, _ = map(int, report.groups())
    # MPICH's launcher passes one descriptor of each rank to the ranks that it starts later.
    assert descriptors < 3 * RANKS + 40 and following < 60, report.group()


def test_no_descriptors(runner: harness.Runner) -> None:
    """The hard limit is too low. The error gives the number and the remedy."""
    outcome = crowd(runner, "-n 50", 1, FI_LOG_LEVEL="warn", FI_LOG_PROV="weft")
    assert outcome.status != 0 and "ulimit -n" in outcome.output, outcome.output


def test_links_that_talk_little(runner: harness.Runner) -> None:
    """A pair that has been quiet for a second occupies little more than its first pages."""
    outcome = crowd(runner, "-n 1024", 40, 5).check()
    report = REPORT.search(outcome.output)
    assert report, outcome.output
    descriptors, _, pages_kib = map(int, report.groups())
    assert descriptors < 2 * RANKS + 40, report.group()
    assert pages_kib <= 24 * RANKS, report.group()
