"""libweft-coll.so: the collectives of unmodified MPI programs over weft, in three MPI libraries."""

from __future__ import annotations

import functools
import re
import socket
from pathlib import Path

import harness
import jobs
import pytest

SHIM = str(jobs.DIST / "libweft-coll.so")
LIBRARIES = ["mpich", "ompi", "impi"]
# The modules of mpi4py's tests that call collectives, make communicators, and complete requests. Under MPICH all run.
MODULES = "cco_buf cco_nb_buf comm request".split()
ALL_MODULES = [*MODULES, *"cco_vec cco_obj comm_inter p2p_buf".split()]
FORTRAN = ["libmpifort.so.12", "libmpi.so.12"]
LEFT = "weft-coll: collectives are left to the MPI library: "


def need(library: str) -> None:
    """Skips if an MPI library is not installed, or another provider is tested."""
    if harness.PROVIDER != "weft":
        pytest.skip("the profiling library runs over weft alone")
    if not (jobs.ROOT / f".venv-{library}" / ".stamp").exists():
        pytest.skip(f".venv-{library} is missing: make deps")


def line(
    library: str, ranks: int, command: list[str], provider: str, preload: str = SHIM, **extra: str
) -> tuple[list[str], dict[str, str]]:
    """A run line of a library with the profiling library in each rank, and its environment."""
    extra = {"FI_WEFT_COLL_REPORT": "1", **extra}
    if library == "mpich":
        options = ["-genv", "LD_PRELOAD", preload]
        return jobs.mpich(ranks, command, *options), jobs.mpich_environment(provider, **extra)
    if library == "ompi":
        env = jobs.environment(provider, **extra)
        passed = [word for name in extra if not name.startswith("FI_") for word in ("-x", name)]
        return jobs.open_mpi(ranks, command, env, *passed, "-x", f"LD_PRELOAD={preload}"), env
    env = jobs.intel_mpi_environment(provider, **extra)
    argv = jobs.intel_mpi(ranks, command)
    return [argv[0], "-genv", "LD_PRELOAD", preload, *argv[1:]], env


def mpi4py_over(library: str) -> tuple[str, dict[str, str]]:
    """A Python with mpi4py, and the variables with which mpi4py loads the library."""
    python = jobs.ROOT / (".venv-ompi" if library == "ompi" else ".venv-mpich") / "bin/python"
    return str(python), {"MPI4PY_LIBMPI": str(jobs.INTEL_MPI / "lib/libmpi.so.12")} if library == "impi" else {}


@functools.cache
def program(library: str, name: str = "coll_ops", *extra: str, compiler: str = "mpicc") -> str:
    """A program of tests/programs, which Intel MPI runs as compiled for MPICH."""
    family = "ompi" if library == "ompi" else "mpich"
    built = jobs.TARGET / "tests" / f"{name}-{family}-{compiler}"
    built.parent.mkdir(parents=True, exist_ok=True)
    compiler = str(jobs.ROOT / f".venv-{family}" / "bin" / compiler)
    options = ["-O2", "-g", "-Wall", "-Wextra", "-pthread", *extra, "-o", str(built)]
    jobs.run([compiler, *options, str(harness.PROGRAMS / f"{name}.c")], jobs.environment("weft"), 60).check()
    return str(built)


def digests(output: str) -> list[str]:
    """The digests of all ranks' results, by rank."""
    return sorted(re.findall(r"digest of rank \d+: [0-9a-f]{16}", output))


@pytest.mark.parametrize("name", ["coll_ops", "coll_types", "coll_blocked"])
@pytest.mark.parametrize("library", ["mpich", "impi"])
def test_programs_of_the_standard_interface(runner: harness.Runner, library: str, name: str) -> None:
    """weft runs the collectives of a program of mpicc_abi as those of mpicc, under MPICH and under Intel MPI."""
    need("mpich")
    need(library)
    argv, env = line(library, 3, [program("mpich", name)], "weft")
    usual = runner.run(argv, env, 60).check().output
    argv, env = line(library, 3, [program("mpich", name, compiler="mpicc_abi")], "weft")
    output = runner.run(argv, env, 60).check().output
    assert LEFT not in output and digests(output) == digests(usual), output[-3000:]
    counts = re.search(r"weft-coll: \d+ collectives by weft, \d+ by the MPI library", usual)
    assert counts and counts[0] in output, output[-3000:]


@pytest.mark.parametrize("name", ["coll_ops", "coll_types", "coll_rest"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_results_are_those_of_the_library(runner: harness.Runner, library: str, name: str) -> None:
    """Every operation gives what MPICH alone gives, and weft runs all that it can: no more and no less."""
    need("mpich")
    need(library)
    ranks = 3
    alone = runner.run(jobs.mpich(ranks, [program("mpich", name), "alone"]), jobs.mpich_environment("weft"), 60).check()
    assert len(digests(alone.output)) == ranks, alone.output
    argv, env = line(library, ranks, [program(library, name)], "weft")
    outcome = runner.run(argv, env, 60).check()
    assert digests(outcome.output) == digests(alone.output), outcome.output[-3000:]
    expected = re.search(r"expected: (\d+ collectives by weft, \d+ by the MPI library)", outcome.output)
    assert expected and f"weft-coll: {expected[1]}" in outcome.output, outcome.output[-3000:]
    if outcome.left is not None:
        assert not outcome.left.processes and not outcome.left.sockets, outcome.left


@pytest.mark.parametrize("library", LIBRARIES)
def test_collectives_progress_while_the_program_sleeps(runner: harness.Runner, library: str) -> None:
    """Long non-blocking collectives complete while no rank calls MPI."""
    need(library)
    argv, env = line(library, 2, [program(library, "coll_progress")], "weft")
    outcome = runner.run(argv, env, 60).check()
    assert "4 of 4 complete" in outcome.output, outcome.output[-3000:]


@pytest.mark.parametrize("ranks, processors", [(3, "0,1"), (2, "0")])
@pytest.mark.parametrize("library", LIBRARIES)
def test_blocked_ranks_take_part(runner: harness.Runner, library: str, ranks: int, processors: str) -> None:
    """Where ranks share processors, a rank that is blocked in another call of MPI does its part of a collective."""
    need(library)
    argv, env = line(library, ranks, [program(library, "coll_blocked")], "weft", I_MPI_PIN="0")
    outcome = runner.run(["taskset", "-c", processors, *argv], env, 60).check()
    ended = re.findall(r"^(\w+) ended$", outcome.output, re.M)
    assert ended == "recv ssend probe wait fence left dup own".split(), outcome.output[-3000:]
    # Without the scans, duplicates and fences, which are no collectives of this library.
    assert "weft-coll: 32 collectives by weft, 0 by the MPI library" in outcome.output, outcome.output[-3000:]


@pytest.mark.parametrize("absent", [0, 1, 2])
@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_without_the_library_are_found(runner: harness.Runner, library: str, absent: int) -> None:
    """If a rank was started without the library, one line names it, and the MPI library runs the collectives."""
    need(library)
    built = program(library, "coll_partial")
    commands = [[built] if rank == absent else ["env", f"LD_PRELOAD={SHIM}", built] for rank in range(3)]
    if library == "mpich":
        argv, env = jobs.mpich(1, commands[0]), jobs.mpich_environment("weft")
    elif library == "ompi":
        env = jobs.environment("weft")
        argv = jobs.open_mpi(1, commands[0], env)
    else:
        argv, env = jobs.intel_mpi(1, commands[0]), jobs.intel_mpi_environment("weft")
    others = [word for command in commands[1:] for word in (":", "-n", "1", *command)]
    outcome = runner.run([*argv, *others], env, 60).check()
    assert "sums 3 and 3\n" in outcome.output, outcome.output[-3000:]
    assert outcome.output.count(LEFT) == 1, outcome.output[-3000:]
    assert re.search(f"{LEFT}rank {absent} on host \\S+ was started without", outcome.output), outcome.output[-3000:]


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_runs_collectives_without_weft(runner: harness.Runner, library: str) -> None:
    """Where weft cannot be found, the results are the same, and one line says why."""
    need("mpich")
    need(library)
    # Open MPI 5.0.11 itself crashes with three ranks, when a communicator with a collective under way is freed.
    ranks = 2
    alone = runner.run(jobs.mpich(ranks, [program("mpich")]), jobs.mpich_environment("weft"), 60).check()
    argv, env = line(library, ranks, [program(library)], "tcp")
    if library == "ompi":  # Its own shared memory: the sandbox has no network for libfabric's tcp.
        modules = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm"]
        argv = [*argv[: argv.index("--mca")], *modules, "-x", f"LD_PRELOAD={SHIM}", program(library)]
    outcome = runner.run(argv, env, 60).check()
    assert digests(outcome.output) == digests(alone.output), outcome.output[-3000:]
    assert outcome.output.count(LEFT) == 1 and "FI_PROVIDER_PATH" in outcome.output, outcome.output[-3000:]
    assert re.search(r"weft-coll: 0 collectives by weft, \d+ by the MPI library", outcome.output)


@pytest.mark.parametrize("library", LIBRARIES)
def test_mpi4py_suite(runner: harness.Runner, library: str) -> None:
    """mpi4py's tests of collectives pass on two ranks. mpi4py loads its MPI library where no other one sees it."""
    need("mpich")
    need(library)
    suite = jobs.ROOT / ".cache/mpi4py-4.1.2/test/main.py"
    python, extra = mpi4py_over(library)
    modules = ALL_MODULES if library == "mpich" else MODULES
    chosen = " ".join(f"-i 'test_{module}[.]py'" for module in modules)
    rank = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    script = f"exec {python} {suite} -q -f {chosen} >{runner.directory}/rank-{rank}.log 2>&1"
    argv, env = line(library, 2, ["sh", "-c", script], "weft", **extra)
    outcome = runner.run(argv, env, 150)
    logs = [path.read_text(errors="replace") for path in sorted(Path(runner.directory).glob("rank-*.log"))]
    assert outcome.status == 0, outcome.output[-1000:] + "\n".join(log[-3000:] for log in logs)
    assert len(logs) == 2 and all(re.search(r"^OK", log, re.MULTILINE) for log in logs), logs[0][-2000:]
    report = re.search(r"weft-coll: (\d+) collectives by weft", "".join(logs) + outcome.output)
    assert report and int(report[1]) > 5000, logs[0][-2000:]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_solver_gives_the_same_result(runner: harness.Runner, library: str) -> None:
    """A solver whose reductions run behind its products needs the same iterations with the library's collectives."""
    need("mpich")
    need(library)
    python, extra = mpi4py_over(library)
    argv, env = line(library, 2, [python, str(harness.PROGRAMS / "solver.py")], "weft", **extra)
    outcome = runner.run(argv, env, 60).check()
    alone = runner.run([word.replace(SHIM, "") for word in argv], env, 60)
    found = [re.search(r"^(\d+) iterations, error (.*), ", output, re.M) for output in (outcome.output, alone.output)]
    assert found[0] and found[1] and found[0].groups() == found[1].groups(), outcome.output[-2000:] + alone.output[-2000:]
    report = re.search(r"weft-coll: (\d+) collectives by weft", outcome.output)
    assert report and int(report[1]) > int(found[0][1]), outcome.output[-2000:]


@pytest.mark.parametrize("library", LIBRARIES)
def test_threads_run_collectives_together(runner: harness.Runner, library: str) -> None:
    """Threads (MPI_THREAD_MULTIPLE) use communicators of their own, and make new ones in any order."""
    need(library)
    argv, env = line(library, 2, [program(library, "coll_threads")], "weft")
    outcome = runner.run(argv, env, 60).check()
    report = re.search(r"weft-coll: (\d+) collectives by weft", outcome.output)
    # Threads that make communicators at the same time may have to leave some to the MPI library.
    assert report and int(report[1]) >= 2400, outcome.output[-3000:]


@pytest.mark.parametrize("form", ["blocking", "non-blocking"])
def test_death_ends_collectives_with_an_error(runner: harness.Runner, form: str) -> None:
    """The ranks that survive get an error of MPI within a second."""
    need("mpich")
    # The launcher kills the other ranks when it notices the death, so a shell stands between them for a while.
    script = f"{program('mpich', 'coll_death')} {runner.directory} {form}; sleep 2"
    argv, env = line("mpich", 3, ["sh", "-c", script], "weft")
    outcome = runner.run(argv, env, 30)
    for rank in (0, 2):
        found = runner.directory / f"rank-{rank}"
        assert found.exists() and found.read_text().startswith("MPI_ERR_OTHER after"), outcome.output[-3000:]


def test_an_error_names_the_rank_that_died(runner: harness.Runner) -> None:
    """The text of the error has the call, the communicator, the rank, and the rank and host of the dead member."""
    need("mpich")
    python, _ = mpi4py_over("mpich")
    script = f"{python} {harness.PROGRAMS / 'coll_death_text.py'} {runner.directory}; sleep 2"
    argv, env = line("mpich", 2, ["sh", "-c", script], "weft")
    outcome = runner.run(argv, env, 30)
    found = runner.directory / "text-0"
    text = found.read_text() if found.exists() else "none\n" + outcome.output[-3000:]
    begin, host = "weft-coll: MPI_Allreduce on MPI_COMM_WORLD, rank 0: ", socket.gethostname()
    assert text.startswith(f"{begin}rank 1 on host {host} died"), text


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_calls_end_with_their_error(runner: harness.Runner, library: str) -> None:
    """Wrong calls get the class of the MPI standard and write nothing behind a buffer; the communicator stays sound."""
    need(library)
    argv, env = line(library, 3, [program(library, "coll_errors")], "weft")
    outcome = runner.run(argv, env, 60).check()
    assert re.search(r"^0 errors were not as expected$", outcome.output, re.M), outcome.output[-4000:]
    report = re.search(r"weft-coll: (\d+) collectives by weft", outcome.output)
    assert report and int(report[1]) > 30, outcome.output[-3000:]


@pytest.mark.parametrize("library", [*LIBRARIES, "own"])
def test_one_probe_finds_a_message_after_a_collective(runner: harness.Runner, library: str) -> None:
    """A message that was sent before any collective is found after it by a single MPI_Iprobe. `own`: MPICH with its
    own transport, which notices messages only in its own calls."""
    family = "mpich" if library == "own" else library
    need(family)
    argv, env = line(family, 2, [program(family, "coll_probe")], "weft")
    if library == "own":
        env = {**jobs.mpich_over("own"), "FI_WEFT_COLL_REPORT": "1"}
    outcome = runner.run(argv, env, 60).check()
    assert "missed 0 of 280 messages" in outcome.output, outcome.output[-2000:]
    assert "weft-coll: 280 collectives by weft" in outcome.output, outcome.output[-2000:]


TOOL_REPORT = "tool: allreduce 10 iallreduce 10 wait 10 dup 1"


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_other_tools_see_all_calls(runner: harness.Runner, library: str, place: str) -> None:
    """A profiling tool in front of or behind the library counts the calls, and weft runs them."""
    need(library)
    tool = program(library, "coll_tool", "-shared", "-fPIC")
    preload = f"{tool}:{SHIM}" if place == "first" else f"{SHIM}:{tool}"
    argv, env = line(library, 2, [program(library, "coll_tooled")], "weft", preload)
    outcome = runner.run(argv, env, 60).check()
    assert TOOL_REPORT in outcome.output and "total right" in outcome.output, outcome.output[-2000:]
    assert "weft-coll: 20 collectives by weft, 0 by the MPI library" in outcome.output, outcome.output[-2000:]


@pytest.mark.parametrize("library", ["mpich", "ompi"])
def test_a_tool_that_passes_the_library_by_is_named(runner: harness.Runner, library: str) -> None:
    """A tool that calls the MPI library directly gets one line in the one order, and works in the other."""
    need(library)
    tool, command = program(library, "coll_tool", "-shared", "-fPIC"), [program(library, "coll_tooled")]
    argv, env = line(library, 2, command, "weft", f"{SHIM}:{tool}", TOOL="direct")
    outcome = runner.run(argv, env, 60).check()
    assert TOOL_REPORT in outcome.output and "total right" in outcome.output, outcome.output[-2000:]
    assert outcome.output.count(LEFT) == 1 and "Name it before libweft-coll.so" in outcome.output, outcome.output
    argv, env = line(library, 2, command, "weft", f"{tool}:{SHIM}", TOOL="direct")
    outcome = runner.run(argv, env, 60).check()
    assert TOOL_REPORT in outcome.output and LEFT not in outcome.output, outcome.output[-2000:]
    assert "weft-coll: 20 collectives by weft, 0 by the MPI library" in outcome.output, outcome.output[-2000:]


def over_two_hosts(argv: list[str], per_host: int) -> list[str]:
    """An MPICH run line for two hosts, which are namespaces."""
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", str(per_host)]
    return [str(harness.SUPPORT / "two-hosts.sh"), argv[0], *launcher, *place, *argv[1:]]


def test_death_reaches_ranks_without_a_link_to_the_dead(runner: harness.Runner) -> None:
    """Two hosts with two ranks each: a rank that exchanges nothing with the dead one waits in the next collective."""
    need("mpich")
    harness.need_sandbox()
    script = f"{program('mpich', 'coll_death')} {runner.directory} non-blocking 100000 50; sleep 3"
    argv, env = line("mpich", 4, ["sh", "-c", script], "weft")
    outcome = runner.run(over_two_hosts([argv[0], "-disable-auto-cleanup", *argv[1:]], 2), env, 60)
    for rank in (0, 2, 3):
        found = runner.directory / f"rank-{rank}"
        assert found.exists() and found.read_text().startswith("MPI_ERR_OTHER after"), outcome.output[-3000:]


def test_a_communicator_costs_little(runner: harness.Runner) -> None:
    """Kept communicators share descriptors and memory in a host. Without collectives they have no group at all."""
    need("mpich")
    ranks, count = 4, 200
    costs = {}
    for rounds in (0, 2):
        argv, env = line("mpich", ranks, [program("mpich", "coll_kept"), str(count), str(rounds)], "weft")
        alone = runner.run(jobs.mpich(ranks, argv[-3:]), jobs.mpich_environment("weft"), 60).check()
        outcome = runner.run(argv, env, 60).check()
        form = r"rank \d: (-?\d+) descriptors, (-?\d+) bytes each, .* 0 wrong"
        found = [re.findall(form, output) for output in (outcome.output, alone.output)]
        assert len(found[0]) == len(found[1]) == ranks, outcome.output[-3000:]
        costs[rounds] = [[max(int(one[what]) for one in all_ranks) for what in (0, 1)] for all_ranks in found]
    (fds, resident), (fds_alone, resident_alone) = costs[2]
    assert fds <= fds_alone + 8, costs
    assert resident <= resident_alone + 16 * 1024, costs
    (fds, resident), (fds_alone, resident_alone) = costs[0]
    assert fds <= fds_alone + 2 and resident <= resident_alone + 2048, costs


@pytest.mark.parametrize("library", LIBRARIES)
def test_windows_over_allocated_memory(runner: harness.Runner, library: str) -> None:
    """MPI_Alloc_mem gives memory that ranks map. Windows over it have their flavour and their data."""
    need(library)
    argv, env = line(library, 2, [program(library, "alloc_window")], "weft")
    outcome = runner.run(argv, env, 60).check()
    assert "alloc_window: good" in outcome.output, outcome.output[-3000:]


def test_hosts_share_collectives(runner: harness.Runner) -> None:
    """Two hosts with two ranks each: shared memory inside a host, TCP between them."""
    need("mpich")
    harness.need_sandbox()
    alone = runner.run(jobs.mpich(4, [program("mpich")]), jobs.mpich_environment("weft"), 60).check()
    argv, env = line("mpich", 4, [program("mpich")], "weft")
    outcome = runner.run(over_two_hosts(argv, 2), env, 90).check()
    assert digests(outcome.output) == digests(alone.output), outcome.output[-3000:]
    assert re.search(r"weft-coll: \d{4} collectives by weft, 4 by the MPI library", outcome.output)


def test_a_host_without_the_library_is_found(runner: harness.Runner) -> None:
    """If the library is missing on one host, one line names a rank there, and the MPI library runs the collectives."""
    need("mpich")
    harness.need_sandbox()
    script = f'[ "$PMI_HOSTNAME" = h2 ] || export LD_PRELOAD={SHIM}; exec {program("mpich", "coll_partial")}'
    argv, env = jobs.mpich(4, ["sh", "-c", script]), jobs.mpich_environment("weft")
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", "2"]
    hosts = str(harness.SUPPORT / "two-hosts.sh")
    outcome = runner.run([hosts, argv[0], *launcher, *place, *argv[1:]], env, 60).check()
    assert "sums 6 and 6\n" in outcome.output, outcome.output[-3000:]
    assert outcome.output.count(LEFT) == 1, outcome.output[-3000:]
    assert re.search(f"{LEFT}rank [23] on host 1 of the launcher's list", outcome.output), outcome.output[-3000:]


def test_fortran_calls_pass_through(runner: harness.Runner) -> None:
    """The Fortran functions of Intel MPI call those of C, in which the library takes part: mpif.h and mpi_f08."""
    need("impi")
    built = harness.compile_c("coll_fortran", *(str(jobs.INTEL_MPI / "lib" / name) for name in FORTRAN))
    argv, env = line("impi", 2, [str(built)], "weft")
    outcome = runner.run(argv, env, 30).check()
    assert "sum 3\n" in outcome.output
    assert "weft-coll: 4 collectives by weft, 0 by the MPI library" in outcome.output, outcome.output


def test_program_without_mpi_runs(runner: harness.Runner) -> None:
    """A process that never loads MPI does not notice the library."""
    env = jobs.environment("weft", LD_PRELOAD=SHIM)
    outcome = runner.run([harness.PYTHON, "-c", "import ctypes; print('fine')"], env, 30).check()
    assert outcome.output == "fine\n"
