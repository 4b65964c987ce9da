"""`weft run` and the reports of the ranks, under the launchers of three MPI libraries."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal

import harness
import jobs
import pytest

WEFT = str(jobs.DIST / "weft")
PINGPONG = ["-m", "mpi4py.bench", "pingpong", "-n", "64", "--loop", "2", "--skip", "0"]
OPEN_MPI_START = ["--allow-run-as-root", "--oversubscribe"]
# Under MPICH, a remark on node communicators follows.
CARRIED = re.compile(
    r"^weft: 2 of 2 ranks used weft: ([\d,]+) messages? \(.*\) by shm, nothing by TCP, no errors(; MPIR_CVAR_NOLOCAL.*)?$", re.M
)

pytestmark = pytest.mark.skipif(harness.PROVIDER != "weft", reason="the command runs jobs over weft only")


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of a newcomer: no variable of libfabric or of an MPI library is set."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(jobs.FOREIGN_PREFIXES)}
    return {**env, **extra}


LAUNCHES = {
    "mpich": (jobs.MPICH, "mpiexec", [], PINGPONG),
    "open-mpi": (jobs.OPEN_MPI, "mpirun", OPEN_MPI_START, PINGPONG),
    "intel-mpi": (jobs.INTEL_MPI, "mpiexec.hydra", [], ["IMB-MPI1", "PingPong", "-iter", "20", "-time", "0.1"]),
}


def job(name: str, *options: str) -> list[str]:
    """The command of a 2-rank job; `options` go to the launcher."""
    directory, launcher, start, program = LAUNCHES[name]
    if not (directory / ".stamp").exists():
        pytest.skip(f"{directory} is missing: make deps")
    command = [str(directory / "bin" / (program[0] if name == "intel-mpi" else "python")), *program]
    if name == "intel-mpi":
        command.pop(1)
    return [str(directory / "bin" / launcher), *start, *options, "-n", "2", *command]


@pytest.mark.parametrize("name", LAUNCHES)
def test_weft_run_needs_no_variables(runner: harness.Runner, name: str) -> None:
    """The command sets everything, counts the ranks and their messages, and removes the reports from the output."""
    outcome = runner.run([WEFT, "run", "--require", "--", *job(name)], clean_environment(), 60).check()
    carried = CARRIED.search(outcome.output)
    assert carried and int(carried[1].replace(",", "")) >= 40, outcome.output[-3000:]
    assert "shm_messages=" not in outcome.output, outcome.output[-3000:]
    if outcome.left is not None:
        assert not [file for file in outcome.left.files if "weft" in file] and not outcome.left.processes, outcome.left


def test_the_doctor_traces_a_start(runner: harness.Runner) -> None:
    """`weft doctor -- mpiexec …` examines the libfabric of that MPI library, starts the job, and reports the outcome."""
    outcome = runner.run([WEFT, "doctor", "--json", "--", *job("mpich")], clean_environment(), 90)
    report = json.loads(outcome.output[outcome.output.index("\n{\n") if not outcome.output.startswith("{") else 0 :])
    findings = {finding["what"]: finding for finding in report["findings"]}
    assert findings["traced start"]["state"] == "good", findings
    assert "2 of 2 ranks used weft" in findings["traced start"]["detail"], findings
    behind = [what for what in findings if what.endswith("libfabric.so.1") or "libfabric-" in what]
    assert behind and all(findings[what]["state"] in ("good", "note") for what in behind), findings


@pytest.mark.parametrize("name, mark", [("mpich", "-prepend-rank"), ("open-mpi", "--tag-output")])
def test_reports_come_through_the_launcher(runner: harness.Runner, name: str, mark: str) -> None:
    """Ranks that cannot reach the memory of the command, here in process namespaces of their own and otherwise on other
    hosts, report on standard error. The command removes these lines, with the marks that the launcher adds."""
    harness.need_sandbox()
    command = job(name, mark)
    place = command.index(str(LAUNCHES[name][0] / "bin/python"))
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    run = [WEFT, "run", "--require", *command[:place], *apart, *command[place:]]
    outcome = runner.run(run, clean_environment(), 60).check()
    assert CARRIED.search(outcome.output) and "shm_messages=" not in outcome.output, outcome.output[-3000:]
    marks = [line for line in outcome.output.splitlines() if re.fullmatch(r"\[[^ ]*\]\S*\s*", line)]
    assert not marks, outcome.output[-3000:]


TWO_HOSTS = {
    "mpich": ["-launcher", "ssh", "-launcher-exec", "AGENT", "-iface", "wbr0", "-hosts", "h1,h2", "-ppn", "2"],
    "open-mpi": ["--allow-run-as-root", "--prtemca", "plm_ssh_agent", "AGENT", "--host", "h1:2,h2:2"],
}


@pytest.mark.parametrize("name", TWO_HOSTS)
def test_two_hosts_report_both_paths(runner: harness.Runner, name: str) -> None:
    """Four ranks on two hosts with names, processes and environments of their own: the variables reach all ranks, and
    the reports come back. Messages go by shared memory inside a host, and by TCP between the hosts."""
    harness.need_sandbox()
    directory, launcher, *_ = LAUNCHES[name]
    agent = str(harness.SUPPORT / "remote-host.sh")
    place = [agent if word == "AGENT" else word for word in TWO_HOSTS[name]]
    program = [str(directory / "bin/python"), str(harness.PROGRAMS / "all_pairs.py")]
    command = [str(directory / "bin" / launcher), *place, "-n", "4", *program]
    run = [str(harness.SUPPORT / "two-hosts.sh"), WEFT, "run", "--require", "--", *command]
    outcome = runner.run(run, clean_environment(), 60).check()
    traffic = r"[\d,]+ messages \(.*\) by shm, [\d,]+ messages \(.*\) by TCP, no errors(; MPIR_CVAR_NOLOCAL.*)?$"
    assert re.search(rf"weft: 4 of 4 ranks on 2 hosts used weft: {traffic}", outcome.output, re.M), outcome.output[-3000:]
    assert "all pairs: good" in outcome.output and "shm_messages=" not in outcome.output


def test_own_shared_memory_is_named(runner: harness.Runner) -> None:
    """Where MPICH carries the messages of a host itself, the command says so, and --require fails."""
    run = [WEFT, "run", "--require", "--own-shm", *job("mpich")]
    outcome = runner.run(run, clean_environment(), 60)
    assert outcome.status == 1
    assert "weft: nothing was sent over weft: all ranks are on one host, and MPICH carried" in outcome.output


WINDOWS = """
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
shared = MPI.Win.Allocate_shared(8, 8, comm=node)
shared.Free()
memory, data = bytearray(8), bytearray(8)
window = MPI.Win.Create(memory, 8, comm=world)
window.Lock_all()
for _ in range(3000):
    window.Put(data, (world.rank + 1) % world.size)
    window.Flush_all()
window.Unlock_all()
window.Free()
print(f"node of {node.size};")
"""


@pytest.mark.parametrize("name, ranks", [("mpich", 1), ("open-mpi", 2)])
def test_windows_in_shared_memory(runner: harness.Runner, name: str, ranks: int) -> None:
    """Windows in shared memory work as without the command, except under MPICH, where the closing line says so. Other
    windows use weft."""
    directory, launcher, start, _ = LAUNCHES[name]
    command = [str(directory / "bin" / launcher), *start, "-n", "2", str(directory / "bin/python"), "-c", WINDOWS]
    outcome = runner.run([WEFT, "run", "--require", *command], clean_environment(), 60).check()
    assert outcome.output.count(f"node of {ranks};") == 2, outcome.output
    count = re.search(r"2 of 2 ranks used weft: ([\d,]+) messages", outcome.output)
    assert count and int(count[1].replace(",", "")) >= 6000, outcome.output
    assert ("node communicators had one rank" in outcome.output) == (name == "mpich"), outcome.output


def test_own_shared_memory_is_refused_for_open_mpi(runner: harness.Runner) -> None:
    """Open MPI cannot use its own shared memory beside libfabric. The command says so, and starts nothing."""
    outcome = runner.run([WEFT, "run", "--own-shm", *job("open-mpi")], clean_environment(), 20)
    assert outcome.status == 1 and "--own-shm does not apply to Open MPI" in outcome.output, outcome.output


def test_another_transport_is_named(runner: harness.Runner) -> None:
    """An option of the user that selects another transport is kept, and named as a possible cause."""
    run = [WEFT, "run", "--require", *job("open-mpi", "--mca", "pml", "ob1", "--mca", "btl", "self,sm")]
    outcome = runner.run(run, clean_environment(), 60)
    assert outcome.status == 1
    assert "weft: nothing was sent over weft" in outcome.output and "--mca pml" in outcome.output, outcome.output


def test_status_and_output_are_those_of_the_job(runner: harness.Runner) -> None:
    """A program without launcher: its exit status, its output, and the reason why weft was not used."""
    run = [WEFT, "run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]
    outcome = runner.run(run, clean_environment(), 20)
    assert outcome.status == 7
    lines = outcome.output.splitlines()
    assert "out" in lines and "err" in lines, lines
    assert "no process reported to have loaded weft, and the command ended with status 7" in lines[-1], lines
    assert runner.run([WEFT, "run", "/nonexistent"], clean_environment(), 20).status == 1


def test_signals_and_input_reach_the_job(runner: harness.Runner) -> None:
    """Each signal to the command arrives once at the job, SIGTSTP stops both, and standard input is the job's."""
    run = [harness.PYTHON, str(harness.PROGRAMS / "pass_signals.py"), WEFT]
    outcome = runner.run(run, clean_environment(), 40).check()
    assert "signals: good" in outcome.output, outcome.output


def test_signals_end_the_job(runner: harness.Runner) -> None:
    """SIGTERM goes to the launcher, which ends its ranks. The command still reports, and nothing is left."""
    launch = " ".join(jobs.mpich(2, ["sleep", "50"]))
    script = f"{WEFT} run {launch} & sleep 1; kill -TERM $!; wait $!; echo status $?"
    outcome = runner.run(["bash", "-c", script], clean_environment(), 30)
    assert re.search(r"^status [1-9]", outcome.output, re.M) and "weft: nothing was sent" in outcome.output, outcome.output
    if outcome.left is not None:
        assert not outcome.left.processes, outcome.left


ENDINGS_PROGRAM = str(harness.PROGRAMS / "endings.py")
LEAST = r"weft: 2 of 2 ranks used weft: (at least )?([\d,]+) messages? .*"
UNCLOSED = r"(1 rank ended without closing its endpoint|\d+ ranks ended without closing their endpoints)"


def ending(how: str, ranks: int = 2, launcher: str = "mpich", program: str = ENDINGS_PROGRAM) -> str:
    """A launch of `endings.py`, for a shell."""
    directory, name, start, _ = LAUNCHES[launcher]
    return shlex.join([str(directory / "bin" / name), *start, "-n", str(ranks), str(directory / "bin/python"), program, how])


def over(launch: str, **extra: object) -> dict:
    """A job for `run_together.py`."""
    return {"argv": [WEFT, "run", "--require", *shlex.split(launch)], **extra}


def script(*launches: str) -> dict:
    """A script with several launches, as a job."""
    return {"argv": [WEFT, "run", "--require", "sh", "-c", "; ".join(launches)]}


KEYED = ending("return", 1).replace(" -n 1 ", " -n 1 -env FI_WEFT_JOB_KEY red ") + " : -n 1 " + ending("return", 1).split(" -n 1 ")[1]
OTHER_TRANSPORT = {"MPIR_CVAR_CH4_NETMOD": "ucx", "FI_PROVIDER": "tcp"}
WITHOUT = " ".join(f"{name}={value}" for name, value in OTHER_TRANSPORT.items())

# Each ending: the job, its exit status (None: not zero), and a pattern of the closing line.
ENDINGS = {
    "_exit": (over(ending("_exit")), 0, LEAST + UNCLOSED),
    "killed by themselves": (over(ending("kill all")), None, LEAST + UNCLOSED),
    "MPI_Abort": (over(ending("abort")), 5, LEAST),
    "one killed": (over(ending("kill")), None, LEAST + UNCLOSED),
    "one crashes": (over(ending("crash")), None, LEAST + UNCLOSED),
    "exit status": (over(ending("status")), 7, LEAST),
    "SIGINT": (over(ending("wait"), signal=signal.SIGINT), None, LEAST + UNCLOSED),
    "SIGTERM": (over(ending("wait"), signal=signal.SIGTERM), None, LEAST + UNCLOSED),
    "a peer out of reach": (
        over(KEYED, env={"FI_WEFT_SHM": "0", "FI_WEFT_CONNECT_RETRY_MS": "50"}),
        None,
        "^weft: nothing was sent over weft: 2 ranks opened endpoints; cannot reach .*; give all processes the same user",
    ),
    "a wrong interface": (
        over(ending("return"), env={"FI_WEFT_IFACE": "nonesuch"}),
        None,
        "^weft: nothing was sent over weft: [12] ranks? loaded weft and opened no endpoint of it; .*nonesuch",
    ),
    "a wrong option": (
        over(f"{jobs.MPICH}/bin/mpiexec -nonesuch 2 /bin/true"),
        None,
        "^weft: nothing was sent over weft: no process reported to have loaded weft, and the launcher ended with status",
    ),
    "no program": (
        over(f"{jobs.MPICH}/bin/mpiexec -n 2 /nonexistent"),
        None,
        "^weft: nothing was sent .* reported to have loaded weft, and the launcher ended with status",
    ),
    "two jobs": (
        script(ending("return"), ending("return", 3)),
        0,
        r"^weft: 5 of 5 ranks in 2 jobs used weft: [\d,]+ messages",
    ),
    "a second job without weft": (
        script(ending("return"), f"{WITHOUT} {ending('return', 3)}"),
        1,
        r"^weft: 2 of 5 ranks in 2 jobs used weft: [\d,]+ messages .*\(1 job did not use weft at all\)",
    ),
    "spawned worlds": (over(ending("spawn")), 0, r"^weft: 8 of 8 ranks in 3 jobs used weft: [\d,]+ messages"),
}


def test_every_ending_is_told_truly(runner: harness.Runner) -> None:
    """The closing line has the messages of ranks that crash, are killed, or do not close their endpoints, and names a
    cause only where it is known. A good job that ends by _exit passes --require."""
    plan = runner.directory / "plan.json"
    plan.write_text(json.dumps({name: job for name, (job, *_) in ENDINGS.items()}))
    together = str(harness.PROGRAMS / "run_together.py")
    outcome = runner.run([harness.PYTHON, together, str(plan)], clean_environment(), 120).check()
    results = json.loads(outcome.output.splitlines()[-1].removeprefix("RESULTS "))
    wrong = {}
    for name, (_, status, pattern) in ENDINGS.items():
        found, output = results[name]
        carried = re.search(pattern, output, re.M)
        few = pattern.startswith(LEAST) and carried and int(carried[2].replace(",", "")) < 1000
        if not carried or few or (found != status if status is not None else found == 0):
            wrong[name] = (found, output[-1500:])
    assert not wrong, "\n".join(f"{name}: {found[0]}\n{found[1]}" for name, found in wrong.items())
    if outcome.left is not None:
        assert not outcome.left.processes, outcome.left


def test_killed_ranks_of_other_hosts_have_reported(runner: harness.Runner) -> None:
    """Ranks that cannot reach the memory of the command report while they run. Here they kill themselves."""
    harness.need_sandbox()
    agent = str(harness.SUPPORT / "remote-host.sh")
    place = [agent if word == "AGENT" else word for word in TWO_HOSTS["mpich"]]
    command = [str(jobs.MPICH / "bin/mpiexec"), *place, "-n", "4", harness.PYTHON, ENDINGS_PROGRAM, "kill all"]
    run = [str(harness.SUPPORT / "two-hosts.sh"), WEFT, "run", *command]
    outcome = runner.run(run, clean_environment(PAUSE="0.3"), 60)
    assert outcome.status not in (0, None), outcome.output[-3000:]
    told = re.search(r"weft: 4 of 4 ranks on 2 hosts used weft: .* at least ([\d,]+) messages \(.*\) by TCP", outcome.output)
    assert told and int(told[1].replace(",", "")) >= 8000 and "shm_messages=" not in outcome.output, outcome.output[-3000:]


@pytest.mark.parametrize("how, launcher", [
    ("terminal", "mpich"),
    ("terminal", "open-mpi"),
    ("command", "mpich"),
    *[("command", "open-mpi")] * 3,  # The launcher missed one of two signals.
])
def test_no_job_survives_the_command(runner: harness.Runner, launcher: str, how: str) -> None:
    """A closed terminal, and SIGKILL of the command, end the launcher and its ranks."""
    harness.need_sandbox()
    launch = shlex.split(ending("wait", launcher=launcher))
    run = [harness.PYTHON, str(harness.PROGRAMS / "hang_up.py"), how, WEFT, "run", *launch]
    runner.run(run, clean_environment(), 60).check()


def test_collectives_are_preloaded(runner: harness.Runner) -> None:
    """--collectives preloads the library into the ranks, whose collectives then pass weft as well."""
    program = """
from mpi4py import MPI
loaded = "libweft-coll" in open("/proc/self/maps").read()
print(f"sum {MPI.COMM_WORLD.allreduce(1)}, preloaded: {loaded};")
"""
    run = [WEFT, "run", "--require", "--collectives", *jobs.mpich(2, [harness.PYTHON, "-c", program])]
    outcome = runner.run(run, clean_environment(), 60).check()
    assert outcome.output.count("sum 2, preloaded: True;") == 2, outcome.output
    assert re.search(r"no errors; 2 collectives a rank by weft, 0 left to the MPI library", outcome.output), outcome.output


def test_missing_collectives_are_an_error(runner: harness.Runner) -> None:
    """--collectives without the library fails before the job starts, and names the file."""
    for name in ["weft", "libweft-fi.so"]:
        os.link(jobs.DIST / name, runner.directory / name)
    run = [str(runner.directory / "weft"), "run", "--collectives", *job("mpich")]
    outcome = runner.run(run, clean_environment(), 20)
    assert outcome.status == 1 and "libweft-coll.so does not exist" in outcome.output, outcome.output


@pytest.mark.parametrize("value", ["1", "token@/proc/self/fd/0"])
def test_ranks_report_without_the_command(runner: harness.Runner, value: str) -> None:
    """FI_WEFT_REPORT=1 makes each rank print one line. A line for a program on another host takes the same way."""
    env = jobs.mpich_environment("weft", FI_WEFT_REPORT=value)
    outcome = runner.run(jobs.mpich(2, [harness.PYTHON, *PINGPONG]), env, 60).check()
    pattern = r"^weft: rank \d of 2, .* sent [\d,]+ messages .* by shm" if value == "1" else r"^token host=(?!.* open=1 ).* shm_messages=\d\d"
    assert len(re.findall(pattern, outcome.output, re.M)) == 2, outcome.output[-3000:]


# Variables of rank 0 alone, and parts of the line that explains why the ranks do not reach each other.
ONE_SIDED = {
    "encryption": ({"FI_WEFT_TCP_ENCRYPT": "1"}, ("only one of the two sides encrypts", "; set FI_WEFT_TCP_ENCRYPT")),
    "job key": ({"FI_WEFT_JOB_KEY": "red"}, ("denied", "; give all processes the same user and the same FI_WEFT_JOB_KEY")),
}


@pytest.mark.parametrize("name", ONE_SIDED)
def test_one_sided_settings_are_explained(runner: harness.Runner, name: str) -> None:
    """Each process prints once, at the default log level, why it does not reach its peer."""
    variables, parts = ONE_SIDED[name]
    options = [word for variable, value in variables.items() for word in ("-env", variable, value)]
    program = [harness.PYTHON, *PINGPONG]
    command = [str(jobs.MPICH / "bin/mpiexec"), "-n", "1", *options, *program, ":", "-n", "1", *program]
    env = jobs.mpich_environment("weft", FI_WEFT_SHM="0", FI_WEFT_CONNECT_RETRY_MS="50")
    for _ in range(3):
        outcome = runner.run(command, env, 60)
        assert outcome.status != 0, outcome.output[-3000:]
        lines = [line for line in outcome.output.splitlines() if line.startswith("weft: cannot reach ")]
        # On a busy machine a process may connect after its peer has ended: that run shows nothing.
        if not any("connection refused" in line for line in lines):
            break
    assert 1 <= len(lines) <= 2, outcome.output[-3000:]
    assert all(part in line for line in lines for part in parts), lines
