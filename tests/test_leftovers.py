"""After a successful job the machine is unchanged: no process, no socket, no file in /dev/shm or /tmp."""

from __future__ import annotations

import harness
import jobs
import pytest


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpich(runner: harness.Runner, ranks: int) -> None:
    """The job of MPICH exchanges messages of every size, reduces, and uses windows."""
    harness.need_sandbox()
    outcome = runner.mpich(ranks, [harness.PYTHON, str(harness.PROGRAMS / "all_pairs.py")], timeout_s=120).check()
    assert "all pairs: good" in outcome.output
    assert outcome.left is not None and outcome.left.nothing(), outcome.left


def test_little_shared_memory(runner: harness.Runner) -> None:
    """weft needs no /dev/shm. Jobs run with 64 KiB of it, where providers with segments in it would fail."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft alone")
    program = harness.compile_c("peer_death", "-lfabric")
    script = 'mount -o remount,size=64k /dev/shm && exec "$@"'
    pair = [harness.PYTHON, str(harness.PROGRAMS / "kill_pair.py"), str(program)]
    outcome = runner.run(["sh", "-c", script, "sh", *pair], jobs.environment(harness.PROVIDER), 60).check()
    assert '"status": 0' in outcome.output, outcome.output
    assert outcome.left is not None and outcome.left.nothing(), outcome.left
