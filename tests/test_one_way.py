"""Hosts that can connect in one direction only, because of a firewall or address translation. Jobs run over the
connections that the other side opens."""

from __future__ import annotations

import re
import shutil

import harness
import jobs
import pytest


def run(runner: harness.Runner, ranks: int, blocked: int, action: str, *arguments: str, **env: str) -> harness.Outcome:
    """Runs programs/one_way.py while connections from host `blocked` do not pass."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("only weft calls back")
    if not shutil.which("iptables"):
        pytest.skip("no iptables")
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", str(ranks // 2), "-prepend-rank"]
    program = [harness.PYTHON, str(harness.PROGRAMS / "one_way.py"), *arguments]
    command = jobs.mpich(ranks, program, *launcher, *place)
    env = jobs.mpich_environment("weft", FI_LOG_LEVEL="info", FI_LOG_PROV="weft", **env)
    hosts = [str(harness.SUPPORT / "two-hosts.sh"), str(harness.SUPPORT / "one-way.sh"), str(blocked), action]
    return runner.run([*hosts, *command], env, timeout_s=60)


@pytest.mark.parametrize("action", ["DROP", "REJECT"])
@pytest.mark.parametrize("blocked", [1, 2])
def test_peers_are_called_back(runner: harness.Runner, blocked: int, action: str) -> None:
    """Whichever host is blocked, and whether its connections are dropped or rejected: both sides send first to a peer
    that only receives."""
    outcome = run(runner, 4, blocked, action).check()
    first = re.search(r"one way: good, first messages ([\d.]+) s", outcome.output)
    assert first, outcome.output[-3000:]
    assert "others are asked to have it connect" in outcome.output, outcome.output[-3000:]
    # Without a call back, the time-out of the attempt would pass first.
    assert float(first[1]) < 8, first[0]


def test_a_peer_that_never_calls_is_an_error(runner: harness.Runner) -> None:
    """Neither direction is open. The send fails within the time-out, and the error names the cause."""
    outcome = run(runner, 2, 12, "DROP", "alone", FI_WEFT_CONNECT_TIMEOUT_MS="2000")
    assert outcome.status not in (0, None), outcome.output[-3000:]
    assert "the peer has not connected to this host" in outcome.output, outcome.output[-3000:]
    assert "weft doctor --to" in outcome.output, outcome.output[-3000:]
