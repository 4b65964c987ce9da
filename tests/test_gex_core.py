"""Jobs of weft-gex: messages, memory and collectives between all ranks, and the ends of jobs under a launcher.

The programs tests/gex/core_*.c check what arrives, and end with status 99 at the first difference.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness
import jobs
import pytest

SOURCES = Path(__file__).resolve().parent / "gex"
INCLUDE = jobs.ROOT / "crates/weft-gex-c/include"
PROGRAMS = ["am", "more", "rma"]
MODES = ["seq", "par"]


def environment(**more: str) -> dict[str, str]:
    """The environment without a launcher's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GASNET_", "PMI_", "PMIX_"))}
    return kept | more


@pytest.fixture(scope="module")
def built() -> Iterator[dict[tuple[str, str], Path]]:
    """The programs, by name and mode. Their directory is in the target directory, since sandboxes hide /tmp."""
    library = jobs.DIST / "gex"
    parent = jobs.TARGET / "tests"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="gex-core-") as directory:

        def build(name: str, mode: str) -> Path:
            binary = Path(directory) / f"{name}-{mode}"
            source = SOURCES / f"{'abi_exit' if name == 'exit' else f'core_{name}'}.c"
            flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "-DGASNET_CONDUIT_SMP"]
            libraries = [f"-L{library}", f"-lgasnet-smp-{mode}", "-lweft-gex", "-pthread", f"-Wl,-rpath,{library}"]
            command = ["gcc", *flags, f"-DGASNET_{mode.upper()}", "-o", str(binary), str(source), *libraries]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return binary

        wanted = [(name, mode) for name in [*PROGRAMS, "exit", "hold"] for mode in MODES]
        with ThreadPoolExecutor(2) as pool:
            yield dict(zip(wanted, pool.map(lambda one: build(*one), wanted)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_by_fork(runner: harness.Runner, built: dict[tuple[str, str], Path], name: str, mode: str) -> None:
    """All pairs of 1 to 4 ranks, and of more ranks than processors."""
    script = 'for n in 1 2 3 4 9; do GASNET_PSHM_NODES=$n "$1" || exit; done'
    outcome = runner.run(["sh", "-c", script, "sh", str(built[name, mode])], environment(), 60).check()
    assert re.findall(r"done: (\d+) ranks", outcome.output) == ["1", "2", "3", "4", "9"], outcome.output
    assert outcome.left is None or outcome.left.nothing(), outcome.left


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_by_a_launcher(runner: harness.Runner, built: dict[tuple[str, str], Path], ranks: int) -> None:
    """MPICH's launcher starts the ranks, which meet over a socket."""
    outcome = runner.run(jobs.mpich(ranks, [str(built["am", "seq"])]), environment(), 60).check()
    assert f"done: {ranks} ranks" in outcome.output
    assert outcome.left is None or outcome.left.nothing(), outcome.left


@pytest.mark.parametrize("end", ["all", "return", "one", "one-others-sleep", "handler", "signal-handler"])
def test_ends_under_a_launcher(runner: harness.Runner, built: dict[tuple[str, str], Path], end: str) -> None:
    """The launcher returns the code of the rank that ended the job."""
    outcome = runner.run(jobs.mpich(3, [str(built["exit", "par"]), end, "37"]), environment(), 30)
    assert outcome.status == 37, outcome.output
    assert outcome.left is None or outcome.left.nothing(), outcome.left


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_the_supervisor_takes_its_ranks_along(built: dict[tuple[str, str], Path], name: str) -> None:
    """No rank outlives the process that started the job."""
    env = environment(GASNET_PSHM_NODES="3")
    job = subprocess.Popen([built["hold", "seq"]], env=env, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None and job.stdout.readline() == "up\n"
    ranks = [int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
    assert len(ranks) == 3
    job.send_signal(getattr(signal, name))
    job.wait(timeout=20)
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in ranks if is_alive(pid)]


def test_ranks_end_with_their_terminal(built: dict[tuple[str, str], Path]) -> None:
    """A terminal that closes sends SIGHUP to the supervisor, and the whole job ends."""
    terminal, other = pty.openpty()
    job = subprocess.Popen(
        # Under nohup, tests inherit that the signal is ignored.
        ["env", "--default-signal=HUP", "setsid", "--ctty", "--wait", built["hold", "seq"]],
        env=environment(GASNET_PSHM_NODES="3"),
        stdin=other,
        stdout=other,
        stderr=other,
    )
    os.close(other)
    try:
        assert os.read(terminal, 100).startswith(b"up")
        processes = [job.pid, *descendants(job.pid)]
        assert len(processes) >= 4, processes
    finally:
        os.close(terminal)
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [pid for pid in processes if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    job.wait(timeout=20)
    assert not left


def descendants(pid: int) -> list[int]:
    """The processes below a process."""
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
