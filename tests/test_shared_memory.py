"""Node communicators and shared windows by libweft-coll.so, where the MPI library regards ranks as alone on their host."""

from __future__ import annotations

import re

import harness
import jobs
import pytest
import test_coll
from test_containers import RANKS

WEFT = str(jobs.DIST / "weft")
GOOD = "shared windows: good"
# A table that one rank of each host fills and all of them read.
TABLE = """
from mpi4py import MPI
import sys
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
window = MPI.Win.Allocate_shared((1 << 20) if node.rank == 0 else 0, 1, comm=node)
memory = window.Shared_query(MPI.PROC_NULL)[0]
if node.rank == 0:
    memory[:] = bytes([65 + node.size]) * (1 << 20)
window.Fence()
good = len(memory) == 1 << 20 and bytes(memory[-3:]) == bytes([65 + node.size]) * 3
flavor = window.flavor == MPI.WIN_FLAVOR_SHARED
window.Fence()
window.Free()
sys.stdout.write(f"node of {node.size}, table {good and flavor};\\n")
"""

pytestmark = pytest.mark.skipif(harness.PROVIDER != "weft", reason="the profiling library runs over weft alone")


def by_weft_run(command: list[str], *options: str) -> tuple[list[str], dict[str, str]]:
    """A run line of the command with the profiling library, and its environment."""
    env = jobs.environment("weft")
    del env["FI_PROVIDER"], env["FI_PROVIDER_PATH"]
    return [WEFT, "run", "--require", "--collectives", *options, *command], env


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("compiler", ["mpicc", "mpicc_abi"])
def test_windows_of_mpich(runner: harness.Runner, compiler: str, ranks: int) -> None:
    """Under MPICH, by its own interface and that of the standard, the library makes node communicators and windows."""
    test_coll.need("mpich")
    built = test_coll.program("mpich", "shared_windows", compiler=compiler)
    argv, env = test_coll.line("mpich", ranks, [built, "1", "1"], "weft")
    output = runner.run(argv, env, 90).check().output
    assert GOOD in output, output[-3000:]
    refusal = r"too much memory: .*MPI_Win_allocate_shared on .*: rank 0: the members ask for \d+ bytes .* has \d+ left; "
    assert re.search(refusal, output), output[-3000:]


def test_windows_of_intel_mpi_are_replaced(runner: harness.Runner) -> None:
    """Intel MPI without its own shared memory makes windows whose remote accesses fail, also over other providers."""
    test_coll.need("impi")
    command = [test_coll.program("impi", "shared_windows"), "1", "1"]
    argv, env = test_coll.line("impi", 3, command, "weft")
    assert env["I_MPI_FABRICS"] == "ofi"
    output = runner.run(argv, env, 60).check().output
    assert GOOD in output, output[-3000:]


@pytest.mark.parametrize("library, ranks", [("mpich", 3), ("ompi", 2)])
def test_windows_of_the_library_stay(runner: harness.Runner, library: str, ranks: int) -> None:
    """Where the library knows the ranks of the host, it makes the windows itself: MPICH with its own shared memory, and
    Open MPI."""
    test_coll.need(library)
    command = [test_coll.program(library, "shared_windows"), "1", "0"]
    argv, env = test_coll.line(library, ranks, command, "weft")
    if library == "mpich":
        env["MPIR_CVAR_NOLOCAL"] = "0"
    if library == "ompi":
        argv[argv.index("^sm,ucx")] = "^ucx"
    outcome = runner.run(argv, env, 60).check()
    assert GOOD in outcome.output, outcome.output[-3000:]


def on_fake_hosts(library: str, per_host: int, command: list[str], **extra: str) -> tuple[list[str], dict[str, str]]:
    """A run line for two hosts that are this one. The library then regards their ranks as apart."""
    argv, env = test_coll.line(library, 2 * per_host, command, "weft", **extra)
    name = "bootstrap" if library == "impi" else "launcher"
    launcher = [f"-{name}", "ssh", f"-{name}-exec", str(harness.SUPPORT / "near-ssh.sh")]
    return [argv[0], *launcher, "-hosts", "h1,h2", "-ppn", str(per_host), *argv[1:]], env


@pytest.mark.parametrize("library, per_host", [("mpich", 2), ("impi", 1)])
def test_ranks_that_the_library_separates_share(runner: harness.Runner, library: str, per_host: int) -> None:
    """Also where MPI libraries use their own shared memory, node communicators get all ranks of the host."""
    test_coll.need(library)
    command = [test_coll.program(library, "shared_windows"), "1", "1"]
    argv, env = on_fake_hosts(library, per_host, command)
    if library == "mpich":
        env["MPIR_CVAR_NOLOCAL"] = "0"
    output = runner.run(argv, env, 60).check().output
    assert GOOD in output, output[-3000:]


def test_fortran_programs_share(runner: harness.Runner) -> None:
    """The Fortran functions of Intel MPI (mpif.h, and mpi_f08 with c_ptr) make the windows of this library."""
    test_coll.need("impi")
    libraries = [str(jobs.INTEL_MPI / "lib" / name) for name in test_coll.FORTRAN]
    argv, env = on_fake_hosts("impi", 1, [str(harness.compile_c("shared_fortran", *libraries))])
    output = runner.run(argv, env, 30).check().output
    assert output.count("node of 2 from Fortran: good;") == 2, output[-3000:]


def test_hosts_have_their_own_windows(runner: harness.Runner) -> None:
    """Two hosts with two ranks each: node communicators and windows are those of a host."""
    test_coll.need("mpich")
    harness.need_sandbox()
    command = [test_coll.program("mpich", "shared_windows"), "2", "1"]
    argv, env = test_coll.line("mpich", 4, command, "weft")
    output = runner.run(test_coll.over_two_hosts(argv, 2), env, 90).check().output
    assert GOOD in output, output[-3000:]


def test_a_killed_rank_leaves_nothing(runner: harness.Runner) -> None:
    """The memory of a window ends with the processes of the job."""
    test_coll.need("mpich")
    harness.need_sandbox()
    argv, env = test_coll.line("mpich", 3, [test_coll.program("mpich", "shared_windows")], "weft")
    outcome = runner.run(argv, env, 60)
    assert outcome.status not in (0, None) and "all have the window" in outcome.output, outcome.output[-3000:]
    # MPICH's own files stay, with and without weft.
    left = outcome.left
    assert left is not None and not left.sockets and not left.processes, left
    assert all(name.startswith("/dev/shm/mpich_shm_") for name in left.files), left


@pytest.mark.parametrize("kind", RANKS)
def test_weft_run_restores_tables(runner: harness.Runner, kind: str) -> None:
    """mpi4py shares a table under `weft run --collectives`, in containers, too. The closing line has no remark."""
    test_coll.need("mpich")
    harness.need_sandbox()
    argv, env = by_weft_run(jobs.mpich(3, [*RANKS[kind], harness.PYTHON, "-c", TABLE]))
    output = runner.run(argv, env, 60).check().output
    assert output.count("node of 3, table True;") == 3, output[-3000:]
    closing = next(line for line in output.splitlines() if line.startswith("weft: 3 of 3"))
    assert "node communicator" not in closing, closing


def test_memory_that_cannot_be_shared_is_named(runner: harness.Runner) -> None:
    """A rank of another user shares no memory. The node communicators are those of the MPI library. One line and the
    closing line say so."""
    test_coll.need("mpich")
    harness.need_sandbox()
    script = '[ "$PMI_RANK" = 0 ] && exec "$@"; exec setpriv --reuid=12345 --clear-groups "$@"'
    argv, env = by_weft_run(jobs.mpich(2, ["sh", "-c", script, "sh", harness.PYTHON, "-c", TABLE]))
    output = runner.run(argv, env, 60).check().output
    assert output.count("node of 1, table True;") == 2, output[-3000:]
    line = "weft-coll: node communicators are left to the MPI library: rank 1 of the node: "
    assert output.count(line) == 1 and "the first rank of the host has another user" in output, output[-3000:]
    assert "; 2 node communicators were smaller than their hosts" in output, output[-3000:]


def test_mpi4py_suite_of_windows(runner: harness.Runner) -> None:
    """mpi4py's tests of windows and communicators pass on two ranks."""
    test_coll.need("mpich")
    suite = jobs.ROOT / ".cache/mpi4py-4.1.2/test/main.py"
    chosen = " ".join(f"-i 'test_{module}[.]py'" for module in ("win", "comm"))
    script = f"exec {harness.PYTHON} {suite} -q -f {chosen} >{runner.directory}/rank-$PMI_RANK.log 2>&1"
    argv, env = by_weft_run(jobs.mpich(2, ["sh", "-c", script]))
    outcome = runner.run(argv, env, 120)
    logs = [path.read_text(errors="replace") for path in sorted(runner.directory.glob("rank-*.log"))]
    assert outcome.status == 0, outcome.output[-1000:] + "\n".join(log[-3000:] for log in logs)
    assert len(logs) == 2 and all(re.search(r"^OK", log, re.MULTILINE) for log in logs), logs[0][-2000:]
