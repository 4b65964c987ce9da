"""`weft why` names the cause of a job that does not end, and ranks that wait use little processor time."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import time

import harness
import jobs
import pytest

WEFT = jobs.DIST / "weft"
LIBRARIES = ["mpich", "openmpi", "intel"]


@functools.cache
def program(library: str, name: str) -> str:
    """Builds an MPI program for a library."""
    if library == "intel":
        # Intel MPI's wheel has no compiler script. Its interface is that of MPICH.
        options = ["-I", str(jobs.MPICH / "include"), str(jobs.INTEL_MPI / "lib/libmpi.so.12")]
        built = harness.compile_c(name, *options)
    else:
        compiler = {"mpich": jobs.MPICH, "openmpi": jobs.OPEN_MPI}[library] / "bin/mpicc"
        built = harness.compile_c(name, compiler=str(compiler))
    own = built.with_name(f"{name}-{library}")
    built.replace(own)
    return str(own)


def job(library: str, ranks: int, command: list[str], **env: str) -> tuple[list[str], dict[str, str]]:
    """The run line of a job over weft, and its environment."""
    if library == "mpich":
        return jobs.mpich(ranks, command), jobs.mpich_environment("weft", **env)
    if library == "intel":
        return jobs.intel_mpi(ranks, command), jobs.intel_mpi_environment("weft", **env)
    environment = jobs.environment("weft", OPAL_PREFIX=str(jobs.OPEN_MPI), **env)
    return jobs.open_mpi(ranks, command, environment), environment


def explained(library: str, reason: str, ranks: int) -> dict:
    """What `weft why --json` says about a job that is stuck for a reason."""
    command, env = job(library, ranks, [program(library, "stuck"), reason])
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and "ready" not in line:
            pass
        time.sleep(1)
        times = [time.monotonic()]
        why = [str(WEFT), "why", str(process.pid)]
        done = subprocess.run([*why, "--json"], capture_output=True, text=True, timeout=20, check=False)
        times.append(time.monotonic())
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)["jobs"]
        found["text"] = subprocess.run(why, capture_output=True, text=True, timeout=20, check=True).stdout
        times.append(time.monotonic())
        # One of the two may have waited for a processor.
        assert min(times[1] - times[0], times[2] - times[1]) < 1, times
        return found
    finally:
        jobs.kill_tree(process.pid)
        process.communicate(timeout=20)


def kinds(found: dict) -> list[tuple[str, list[int]]]:
    """The findings, by kind and ranks."""
    return [(finding["kind"], sorted(finding["ranks"])) for finding in found["findings"]]


# The reason, the number of ranks, a finding, and words of the text.
STUCK = [
    ("missing send", 2, ("deadlock", [0, 1]), "receives from rank 1, tag 5 in MPI_COMM_WORLD"),
    ("wrong tag", 2, ("near miss", [0]), "differs in the tag"),
    ("wrong communicator", 2, ("near miss", [0]), "differs in the communicator"),
    ("crossed order", 2, ("deadlock", [0, 1]), "sends to rank 1, tag 7"),
    ("skipped collective", 3, ("deadlock", None), "barrier in MPI_COMM_WORLD"),
    ("stopped", 2, ("stopped", [0, 1]), "rank 1 is stopped by a signal"),
    ("ended", 3, ("ended", [0, 1]), "rank 1 has ended"),
    ("ring", 3, ("deadlock", [0, 1, 2]), "receives from rank 2, tag 5"),
    ("no receive", 3, ("no receive", [0, 1]), "has no receive for the message"),
    ("remote access", 2, ("computes", [0, 1]), "the memory of rank 1"),
    ("any source", 2, ("deadlock", [0, 1]), "receives from any rank, any tag"),
    ("computes", 2, ("computes", [0, 1]), "rank 1 computes"),
]


@pytest.mark.parametrize(("reason", "ranks", "finding", "words"), STUCK, ids=[case[0] for case in STUCK])
def test_stuck_jobs_are_explained(reason: str, ranks: int, finding: tuple, words: str) -> None:
    """Each planted fault is named in a second, with nothing stopped."""
    if harness.PROVIDER != "weft":
        pytest.skip("a command of weft")
    found = explained("mpich", reason, ranks)
    kind, of = finding
    assert any(found_kind == kind and of in (None, found_of) for found_kind, found_of in kinds(found)), found["text"]
    assert words in found["text"], found["text"]


@pytest.mark.parametrize("library", ["openmpi", "intel"])
def test_stuck_jobs_of_other_libraries(library: str) -> None:
    """Communicators and tags of the other libraries are read."""
    if harness.PROVIDER != "weft":
        pytest.skip("a command of weft")
    found = explained(library, "wrong communicator", 2)
    assert ("near miss", [0]) in kinds(found) and "differs in the communicator" in found["text"], found["text"]
    assert "tag 5 in MPI_COMM_WORLD" in found["text"], found["text"]


def test_a_healthy_job_has_no_findings() -> None:
    """Ranks that exchange messages are active."""
    if harness.PROVIDER != "weft":
        pytest.skip("a command of weft")
    found = explained("mpich", "healthy", 2)
    assert kinds(found) == [] and [rank["state"] for rank in found["ranks"]] == ["active"] * 2, found["text"]


def test_an_unknown_job_is_an_error() -> None:
    """The error names the remedy."""
    done = subprocess.run([WEFT, "why", "no such job"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1 and "weft top --once" in done.stderr, done.stderr


@pytest.mark.parametrize("shm", ["yes", "no"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_waiting_uses_no_core(library: str, shm: str) -> None:
    """A rank that waits for two seconds sleeps almost all the time, and wakes at once."""
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft")
    command, env = job(library, 2, [program(library, "idle"), "2"], FI_WEFT_SHM=shm)
    output = jobs.run(command, env, 60).check().output
    share = re.search(r"waiting used ([\d.]+) %", output)
    woken = re.search(r"woken after ([\d.]+) us", output)
    # The bounds leave room for other work of the machine. docs/benchmarking.md has the figures.
    assert share and float(share[1]) < 10, output
    assert woken and float(woken[1]) < 1000, output


def test_waiting_in_a_collective_uses_no_core() -> None:
    """The same in a barrier of the profiling library."""
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft")
    command, env = job("mpich", 2, [program("mpich", "idle"), "2", "barrier"])
    output = jobs.run([str(WEFT), "run", "--", *command], env, 60).check().output
    share = re.search(r"waiting used ([\d.]+) %", output)
    assert share and float(share[1]) < 10, output


def test_waiting_can_keep_its_core() -> None:
    """The variable ends the sleeps, and a program that computes between its calls is not delayed by them."""
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft")
    command, env = job("mpich", 2, [program("mpich", "idle"), "1"], FI_WEFT_NAP_US="0")
    share = re.search(r"waiting used ([\d.]+) %", jobs.run(command, env, 60).check().output)
    assert share and float(share[1]) > 15, share
    rates = []
    for longest in ("0", "2000"):
        command, env = job("mpich", 2, [program("mpich", "idle"), "0.5", "test"], FI_WEFT_NAP_US=longest)
        steps = re.search(r"steps per second (\d+)", jobs.run(command, env, 60).check().output)
        assert steps
        rates.append(int(steps[1]))
    assert rates[1] > rates[0] / 3, rates
