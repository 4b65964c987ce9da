"""Memory checkers report no false errors for data received from peers."""

from __future__ import annotations

import json
import shutil

import harness
import jobs
import pytest

SUPPRESSIONS = f"--suppressions={harness.SUPPORT / 'memcheck.supp'}"
MEMCHECK = ["valgrind", "--tool=memcheck", "--quiet", "--error-exitcode=9", SUPPRESSIONS]


def run(runner: harness.Runner, program: str, tool: list[str], **env: str) -> dict:
    """A process under the tool receives long messages, writes, and answers to reads. Returns the output of both
    processes."""
    built = harness.compile_c(program, "-lfabric", "-rdynamic")
    command = [harness.PYTHON, str(harness.PROGRAMS / "carry_names.py"), *tool, str(built)]
    outcome = runner.run(command, jobs.environment(harness.PROVIDER, **env), 90).check()
    found = json.loads(outcome.output.splitlines()[-1])
    receiver, sender = found["receiver"], found["sender"]
    assert (receiver["status"], receiver["out"]) == (0, "received\n"), found
    assert (sender["status"], sender["out"]) == (0, "sent\n"), found
    return receiver


@pytest.mark.parametrize("path", [{"FI_WEFT_TCP": "no"}, {"FI_WEFT_SHM": "no"}], ids=["shm", "tcp"])
def test_memcheck(runner: harness.Runner, path: dict[str, str]) -> None:
    """The receiver branches on every received byte, in memory fresh from malloc."""
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    run(runner, "checked", MEMCHECK, **path)


def test_record_and_replay(runner: harness.Runner) -> None:
    """rr does not record writes of other processes to shared memory. A process under rr reaches its own host
    over TCP."""
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft alone")
    said = run(runner, "checked", ["RUNNING_UNDER_RR=1"], FI_LOG_LEVEL="info")["err"]
    assert "over tcp" in said and "over shm" not in said, said
    # A process that may use shared memory only still uses it.
    said = run(runner, "checked", ["RUNNING_UNDER_RR=1"], FI_LOG_LEVEL="info", FI_WEFT_TCP="no")["err"]
    assert "over shm" in said, said


def test_memory_sanitizer(runner: harness.Runner) -> None:
    """A program built with the memory sanitizer is recognized by its symbols."""
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft alone")
    said = run(runner, "checked_msan", [], FI_LOG_LEVEL="info", FI_WEFT_TCP="no")["err"]
    assert "MemorySanitizer follows this process" in said and "over shm" in said, said
