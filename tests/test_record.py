"""Recordings of MPI jobs, and their replay on other machines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import harness
import jobs
import pytest
import test_coll

RANKS = 4
WEFT = str(jobs.DIST / "weft")


def sim(*arguments: str) -> str:
    """The output of `weft sim`."""
    return jobs.run([WEFT, "sim", *arguments], jobs.environment("weft"), 60).check().output


@pytest.mark.parametrize("library", test_coll.LIBRARIES)
def test_a_recorded_job_is_replayed(runner: harness.Runner, library: str, tmp_path: Path) -> None:
    """Every message and collective of the program is in the recording, each with its partner."""
    test_coll.need(library)
    # A sandbox has a /tmp of its own.
    directory = jobs.TARGET / "tests" / f"record-{library}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    file = str(directory / "job")
    argv, env = test_coll.line(library, RANKS, [test_coll.program(library, "recorded")], "weft", FI_WEFT_RECORD=file)
    outcome = runner.run(argv, env, 60).check()
    assert f"sum {sum(range(RANKS))}\n" in outcome.output, outcome.output[-3000:]
    # The provider leaves it to the library.
    assert not list(directory.glob("job.fi.*"))
    found = json.loads(sim("replay", file, "--profile", "ethernet-100g", "--json"))
    # A ring, three messages to rank 0, a ring, two rounds each of an allreduce and a barrier, two rings of persistent
    # requests, and the blocks of an allgather that are not empty.
    messages = RANKS + 3 + RANKS + 4 * RANKS + 2 * RANKS + (RANKS - 1) ** 2
    assert (found["ranks"], found["unmatched"], found["messages"]) == (RANKS, 0, messages), found
    assert (found["scans"], found["windows"]) == (RANKS, RANKS), found
    assert f"{RANKS} scans are left out" in sim("replay", file)
    # The sleeps are computation, the loop that waits is not.
    assert 0.05 <= found["computed_s"] <= found["predicted_s"] <= found["recorded_s"] < 5, found
    goal = tmp_path / "job.goal"
    assert "trace hash" in sim("replay", file, "--profile", "ethernet-100g", "--goal", str(goal))
    again = json.loads(sim("replay", str(goal), "--profile", "ethernet-100g", "--json"))
    assert again["messages"] == found["messages"], again
    assert again["predicted_s"] == pytest.approx(found["predicted_s"], rel=0.01), again
    ranking = json.loads(sim("tune", file, "--profile", "ethernet-25g", "--json"))["settings"]
    shutil.rmtree(directory)
    times = [setting["predicted_s"] for setting in ranking]
    assert times == sorted(times) and any(setting["setting"] == "present settings" for setting in ranking), ranking


@pytest.mark.parametrize("library", test_coll.LIBRARIES)
def test_the_provider_records_a_job_without_the_library(runner: harness.Runner, library: str) -> None:
    """Messages of the MPI library itself are in the recordings of the processes, and their times follow."""
    test_coll.need(library)
    directory = jobs.TARGET / "tests" / f"record-provider-{library}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    file, command = str(directory / "job"), [test_coll.program(library, "recorded")]
    argv, env = test_coll.line(library, RANKS, command, "weft", preload="", FI_WEFT_RECORD=file)
    runner.run(argv, env, 60).check()
    assert len(list(directory.glob("job.fi.*"))) == RANKS
    found = json.loads(sim("replay", file, "--profile", "ethernet-100g", "--json"))
    shutil.rmtree(directory)
    # The program's own messages, and those of its collectives.
    assert found["ranks"] == RANKS and found["messages"] >= 2 * RANKS + 3, found
    assert found["unmatched"] == 0, found
    assert 0.05 <= found["computed_s"] <= found["predicted_s"] <= found["recorded_s"] < 5, found
