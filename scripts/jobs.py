"""The run lines of jobs over a libfabric provider, for the demo and the tests.

All jobs are bounded in time: a job that does not end is killed with all its descendants. Of the caller's variables of
libfabric and of MPI libraries, only those of logging (`FI_LOG_*`) reach a job. This makes runs reproducible.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
DIST = TARGET / "dist"
MPICH = ROOT / ".venv-mpich"
OPEN_MPI = ROOT / ".venv-ompi"
INTEL_MPI = ROOT / ".venv-impi"

FOREIGN_PREFIXES = ("FI_", "MPIR_", "MPICH_", "HYDRA_", "OMPI_", "PMIX_", "PRTE_", "I_MPI_", "UCX_")


@dataclass
class Finished:
    """The end of a job. `status` is None if the job was killed after its time limit."""

    argv: list[str]
    status: int | None
    output: str

    def check(self) -> "Finished":
        """Raises an error with the end of the output, unless the job succeeded."""
        if self.status != 0:
            how = "did not end in time" if self.status is None else f"ended with status {self.status}"
            raise RuntimeError(f"{' '.join(self.argv)}\n{how}; its last output:\n{self.output[-6000:]}")
        return self


def environment(provider: str, **extra: str) -> dict[str, str]:
    """The environment in which a libfabric client uses only `provider`."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN_PREFIXES) or name.startswith("FI_LOG_")
    }
    env["FI_PROVIDER"] = provider
    if provider == "weft":
        env["FI_PROVIDER_PATH"] = str(DIST)
    if provider == "tcp":
        env["FI_TCP_IFACE"] = "lo"  # as near as weft's own peers inside a host; no other network is used
    env.update(extra)
    return env


def mpich(ranks: int, command: list[str], *options: str) -> list[str]:
    """A run line for MPICH; `options` go to mpiexec."""
    return [str(MPICH / "bin/mpiexec"), *options, "-n", str(ranks), *command]


def mpich_environment(provider: str, **extra: str) -> dict[str, str]:
    """The environment of MPICH over `provider`, also inside a host (NOLOCAL), with its choice logged
    (DEBUG_SUMMARY)."""
    choice = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_DEBUG_SUMMARY": "1"}
    return environment(provider, **choice, **extra)


def mpich_over(subject: str) -> dict[str, str]:
    """The environment of MPICH over a provider, over its own shared memory (`own`) or over UCX (`ucx`)."""
    if subject not in ("own", "ucx"):
        return mpich_environment(subject)
    env = environment(subject)
    del env["FI_PROVIDER"]
    if subject == "ucx":
        env |= {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"}
    return env


def mpich_provider(output: str) -> str | None:
    """The provider that MPICH reports in the output of a job with DEBUG_SUMMARY."""
    for line in output.splitlines():
        head, found, name = line.partition("libfabric provider: ")
        if found:
            return name.split(" - ")[0].strip()
    return None


def open_mpi(ranks: int, command: list[str], env: dict[str, str], *options: str) -> list[str]:
    """A run line for Open MPI with its matching transport layer on libfabric; `env` reaches the ranks by -x."""
    passed = [word for name in env if name.startswith("FI_") for word in ("-x", name)]
    modules = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "osc", "^sm,ucx"]
    include = ["--mca", "opal_common_ofi_provider_include", env["FI_PROVIDER"]]
    start = [str(OPEN_MPI / "bin/mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    return [*start, *passed, *modules, *include, *options, *command]


def intel_mpi(ranks: int, command: list[str]) -> list[str]:
    """A run line for Intel MPI."""
    return [str(INTEL_MPI / "bin/mpiexec.hydra"), "-n", str(ranks), *command]


def intel_mpi_environment(provider: str, **extra: str) -> dict[str, str]:
    """The environment of Intel MPI over `provider`, also inside a host."""
    env = environment(provider, I_MPI_ROOT=str(INTEL_MPI), I_MPI_FABRICS="ofi", **extra)
    env["PATH"] = f"{INTEL_MPI / 'bin'}:{env['PATH']}"
    env["LD_LIBRARY_PATH"] = str(INTEL_MPI / "lib")
    return env


def run(argv: list[str], env: dict[str, str], timeout_s: float, cwd: Path | None = None) -> Finished:
    """Runs a job to its end or its time limit. Standard output and error are returned as one text."""
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return Finished(argv, process.returncode, output)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        output, _ = process.communicate()
        return Finished(argv, None, output)
    except BaseException:
        kill_tree(process.pid)
        raise


def kill_tree(root: int) -> None:
    """Kills a process and its descendants. Launchers put ranks in sessions of their own."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    pending = [root]
    while pending:
        pid = pending.pop()
        pending += parents.get(pid, [])
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
