"""Shared parts of the tests: the provider under test, sandboxes, and jobs in sandboxes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import jobs  # noqa: E402  (scripts/jobs.py: the run lines that the demo uses, too)

# Another provider in place of weft shows whether a fault is in the test or in weft.
PROVIDER = os.environ.get("WEFT_TEST_PROVIDER", "weft")
SUPPORT = Path(__file__).resolve().parent / "support"
PROGRAMS = Path(__file__).resolve().parent / "programs"
PYTHON = str(jobs.MPICH / "bin/python")


@dataclass
class Left:
    """The resources that a job has left behind."""

    files: list[str] = field(default_factory=list)
    sockets: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)

    def nothing(self) -> bool:
        """Whether the job has left nothing."""
        return not (self.files or self.sockets or self.processes)


@dataclass
class Outcome:
    """The end of a job: its status (None after a timeout), its output, and its leftovers (None if unknown)."""

    status: int | None
    output: str
    left: Left | None

    def check(self) -> "Outcome":
        """Fails the test unless the job succeeded."""
        if self.status != 0:
            how = "did not end in time" if self.status is None else f"ended with status {self.status}"
            pytest.fail(f"the job {how}; its last output:\n{self.output[-6000:]}", pytrace=False)
        return self


UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


@functools.cache
def sandbox_refusal() -> str | None:
    """The reason why sandboxes are impossible here, or None."""
    try:
        probe = subprocess.run(
            [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no sandbox: {error}"
    return None if probe.returncode == 0 else f"no sandbox: {probe.stderr.strip()} (sandboxes need root and unshare)"


def need_sandbox() -> None:
    """Skips a test that proves nothing outside a sandbox."""
    why = sandbox_refusal()
    if why is not None:
        pytest.skip(why)


class Runner:
    """Runs the jobs of one test, in sandboxes if the machine permits them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = 0

    def run(self, argv: list[str], env: dict[str, str], timeout_s: float, cwd: Path | None = None) -> Outcome:
        """Runs one job."""
        if sandbox_refusal() is not None:
            plain = jobs.run(argv, env, timeout_s, cwd)
            return Outcome(plain.status, plain.output, None)
        self.count += 1
        report = self.directory / f"sandbox-{self.count}.json"
        inside = [sys.executable, str(SUPPORT / "sandbox.py"), str(jobs.ROOT), str(report), *argv]
        job = jobs.run([*UNSHARE, *inside], env, timeout_s, cwd)
        if job.status is None or not report.exists():
            return Outcome(job.status, job.output, None)
        found = json.loads(report.read_text())
        return Outcome(found["status"], job.output, Left(found["files"], found["sockets"], found["processes"]))

    def mpich(self, ranks: int, command: list[str], timeout_s: float, *options: str, **env: str) -> Outcome:
        """Runs an MPI job under MPICH over the provider under test, and checks that MPICH used that provider."""
        outcome = self.run(jobs.mpich(ranks, command, *options), jobs.mpich_environment(PROVIDER, **env), timeout_s)
        if outcome.status == 0:
            assert jobs.mpich_provider(outcome.output) == PROVIDER, outcome.output[:4000]
        return outcome


@functools.cache
def compile_c(name: str, *options: str, compiler: str = "cc") -> Path:
    """Compiles tests/programs/NAME.c into the target directory."""
    built = jobs.TARGET / "tests" / name
    built.parent.mkdir(parents=True, exist_ok=True)
    source = PROGRAMS / f"{name}.c"
    # Parallel tests may start the program, so a finished file replaces it.
    fresh = built.with_name(f"{name}.{os.getpid()}")
    command = [compiler, "-O2", "-g", "-Wall", "-Wextra", "-o", str(fresh), str(source), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    fresh.replace(built)
    return built
