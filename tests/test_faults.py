"""The fault matrix: jobs of 2 to 8 ranks under load. A real fault strikes one of the ranks at a random moment.

Each cell is a path and a fault. programs/fault_rank.c describes the exchanged and checked data,
programs/fault_job.py the requirements. WEFT_FAULT_RUNS (or `make faults RUNS=100`) sets the number of runs of
each cell. The default is two runs, and one run for the cells of LONG. WEFT_FAULT_SEED is the first seed. The
same seed draws the same ranks, victim and sizes, but not the same interleaving.
"""

from __future__ import annotations

import json
import os

import harness
import jobs
import pytest

ASKED = os.environ.get("WEFT_FAULT_RUNS")
RUNS = int(ASKED or "2")
SEED = int(os.environ.get("WEFT_FAULT_SEED", "1"))
RUN_S = 40  # at most

DEATHS = ["kill", "exit", "freeze", "freeze-kill", "restart", "early-kill"]
CELLS = [(path, fault) for path in ("shm", "hosts") for fault in DEATHS] + [
    ("shm", "attach"),  # cross-memory attach is forbidden from the start (seccomp)
    ("shm", "late-attach"),  # or all at once, with transfers under way
    ("shm", "undumpable"),  # prctl
    ("shm", "untraceable"),  # prctl
    ("shm", "tiny-shm"),  # 64 KiB of /dev/shm
    ("shm", "read-only-shm"),
    ("any", "other-user"),
    ("any", "namespace"),  # of users
    ("any", "files"),  # RLIMIT_FSIZE, which counts for shared memory, too
    ("any", "locked"),  # RLIMIT_MEMLOCK
    ("any", "descriptors"),  # RLIMIT_NOFILE, from the start: up to 24 more
    ("any", "late-descriptors"),  # the same at a random moment
    ("hosts", "late-descriptors"),
    ("any", "late-memory"),  # RLIMIT_AS: not one page more
    ("hosts", "late-memory"),
    ("hosts", "reset"),  # all connections, again and again
    ("hosts6", "reset"),
    ("hosts", "link"),  # down for up to three seconds
    ("hosts6", "link"),
    ("hosts-encrypted", "link"),
    ("hosts", "lossy"),  # frames are lost and late
    ("hosts", "forget"),  # a middle box forgets the connections
    ("hosts6", "forget"),
    ("hosts-encrypted", "reset"),
    ("hosts-encrypted", "forget"),
    ("shm-auto", "kill"),  # with automatic progress
    ("hosts-auto", "kill"),
    ("hosts-auto", "reset"),
]
# A run of these cells takes several seconds, so they run once by default.
LONG = [("any", "descriptors"), ("hosts6", "link"), ("hosts-encrypted", "link")]
HOSTS = {"hosts6": {"WEFT_TEST_HOSTS": "6"}, "hosts-encrypted": {"FI_WEFT_TCP_ENCRYPT": "1"}}
SMALL = {"tiny-shm": "mount -o remount,size=64k /dev/shm", "read-only-shm": "mount -o remount,ro /dev/shm"}


@pytest.mark.timeout(60 + RUNS * RUN_S)
@pytest.mark.parametrize(("path", "fault"), CELLS, ids=[f"{path}-{fault}" for path, fault in CELLS])
def test_cell(runner: harness.Runner, path: str, fault: str) -> None:
    """Every run of the cell is right and leaves nothing on the machine."""
    harness.need_sandbox()
    program = harness.compile_c("fault_rank", "-lfabric")
    own = "none" if fault in SMALL else fault
    count = 1 if (path, fault) in LONG and not ASKED else RUNS
    job = [harness.PYTHON, str(harness.PROGRAMS / "fault_job.py"), str(program), path, own, str(SEED), str(count)]
    if path.startswith("hosts"):
        job = [str(harness.SUPPORT / "two-hosts.sh"), *job]
    if fault in SMALL:
        job = ["sh", "-c", f'{SMALL[fault]} && exec "$@"', "sh", *job]
    outcome = runner.run(job, jobs.environment(harness.PROVIDER, **HOSTS.get(path, {})), 30 + RUNS * RUN_S)
    runs = [json.loads(line) for line in outcome.output.splitlines() if line.startswith("{")]
    wrong = [run for run in runs if run["wrong"]]
    messages, slowest = sum(run["messages"] for run in runs), max((run["slowest_ms"] for run in runs), default=0)
    measured = [run["measured"] for run in runs if run["measured"] is not None]
    resumed, arrival = sum(run["resumed"] for run in runs), max((run["arrival_ms"] for run in runs), default=0)
    print(
        f"{path}-{fault}: {len(runs)} runs, {len(wrong)} wrong, {messages} messages, slowest failure after {slowest} ms "
        f"({sum(measured)} of {len(measured)} measured), {resumed} links resumed, last messages after {arrival} ms"
    )
    assert not wrong, "\n".join(f"seed {run['seed']}: {run['wrong']}" for run in wrong)
    assert 2 * sum(measured) >= len(measured), "the machine stalled in most runs, so nothing was measured"
    assert resumed or fault not in ("reset", "forget")
    assert outcome.status == 0 and len(runs) == count, outcome.output[-3000:]
    assert outcome.left is not None and outcome.left.nothing(), outcome.left
