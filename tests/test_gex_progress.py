"""weft-gex: progress while the client computes, and endpoints with progress of their own."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest
from test_gex import build, clean_environment, each_rank_succeeds, prefix  # noqa: F401 (a fixture)

# Ways to reach ranks: by shared memory, and by the engine over either device.
REACH = {
    "host": {},
    "shm": {"GASNET_SUPERNODE_MAXSIZE": "1"},
    "tcp": {"GASNET_SUPERNODE_MAXSIZE": "1", "FI_WEFT_SHM": "0"},
}


@pytest.fixture(scope="module")
def attended(prefix: Path) -> dict[str, Path]:  # noqa: F811
    """abi_attend.c by mode: `allowed` is SEQ whose handlers may run in a thread of the library."""
    made = {mode: build(prefix, "attend", mode) for mode in ("seq", "par")}
    return made | {"allowed": build(prefix, "attend", "seq", defines=("GEXW_RCV_THREAD=1",))}


@pytest.mark.parametrize("reach", REACH)
@pytest.mark.parametrize(
    ("mode", "how"),
    [("par", "thread"), ("par", "defer"), ("par", "none"), ("allowed", "thread"), ("seq", "none")],
)
def test_a_rank_that_computes_is_served(
    runner: harness.Runner, prefix: Path, attended: dict[str, Path], mode: str, how: str, reach: str  # noqa: F811
) -> None:
    """Ranks use the memory and the handlers of one that makes no call, if there is a thread that serves them."""
    script = 'for n in 1 2 3; do "$1" -n $n "$2" "$3" || exit; done'
    command = ["sh", "-c", script, "sh", str(prefix / "bin/gasnetrun_smp"), str(attended[mode]), how]
    thread = "0" if (mode, how) == ("par", "none") else "1"
    outcome = runner.run(command, clean_environment(GASNET_RCV_THREAD=thread, **REACH[reach]), 90)
    each_rank_succeeds(outcome, 1 + 2 + 3)
    assert ("GASNET_RCV_THREAD has no effect" in outcome.output) == (mode == "seq")


def test_a_setting_that_is_neither_yes_nor_no(runner: harness.Runner, attended: dict[str, Path]) -> None:
    """The program names the variable."""
    outcome = runner.run([str(attended["par"])], clean_environment(GASNET_RCV_THREAD="maybe", GASNET_PSHM_NODES="2"), 30)
    assert "GASNET_RCV_THREAD=maybe is not yes or no" in outcome.output


@pytest.fixture(scope="module")
def with_endpoints(prefix: Path) -> dict[str, Path]:  # noqa: F811
    """Programs whose endpoints have progress of their own, by name and mode."""
    wanted = [("own", "seq"), ("own", "par"), ("lanes", "par")]
    return {f"{name}-{mode}": build(prefix, name, mode) for name, mode in wanted}


@pytest.mark.parametrize("reach", REACH)
@pytest.mark.parametrize("name", ["own-seq", "own-par", "lanes-par"])
def test_endpoints_with_progress(
    runner: harness.Runner, prefix: Path, with_endpoints: dict[str, Path], name: str, reach: str  # noqa: F811
) -> None:
    """Endpoints have handlers, links and teams of their own, and threads use one each without a lock."""
    script = 'for n in 1 2 3; do "$1" -n $n "$2" || exit; done'
    command = ["sh", "-c", script, "sh", str(prefix / "bin/gasnetrun_smp"), str(with_endpoints[name])]
    each_rank_succeeds(runner.run(command, clean_environment(**REACH[reach]), 90), 1 + 2 + 3)


def test_endpoints_beside_a_thread(runner: harness.Runner, with_endpoints: dict[str, Path]) -> None:
    """The thread that serves peers leaves serial endpoints alone."""
    env = clean_environment(GASNET_RCV_THREAD="1", GASNET_PSHM_NODES="2")
    each_rank_succeeds(runner.run([str(with_endpoints["lanes-par"])], env, 60), 2)
