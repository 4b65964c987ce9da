"""`weft stat` and `weft top` observe a running job: right, growing numbers, no access for others, no disturbance."""

from __future__ import annotations

import json
import subprocess
import sys

import harness
import jobs
import pytest

WEFT = jobs.DIST / "weft"
PATHS = {"shm": {}, "tcp": {"FI_WEFT_SHM": "no"}}


def only_peer(look: dict) -> dict:
    """The only peer with which the job's messages were exchanged."""
    (endpoint,) = look["endpoints"]
    (peer,) = [peer for peer in endpoint["peer_list"] if peer["messages_sent"]]
    return peer


@pytest.mark.parametrize("path", PATHS)
def test_two_ranks(runner: harness.Runner, path: str) -> None:
    """A ping-pong of MPICH with 8 bytes and 1 MiB is observed twice from outside."""
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft alone")
    job = jobs.mpich(2, [harness.PYTHON, str(harness.PROGRAMS / "stat_rank.py")])
    env = jobs.mpich_environment("weft", **PATHS[path])
    watch = [harness.PYTHON, str(harness.PROGRAMS / "stat_watch.py"), str(WEFT), *job]
    outcome = runner.run(watch, env, 120).check()
    found = json.loads(outcome.output.splitlines()[-1])
    assert found["status"] == 0, found
    for rank in (0, 1):
        first, second = (only_peer(look[rank]) for look in found["looks"])
        assert found["looks"][0][rank]["pid"] == found["pids"][rank]
        assert (first["state"], first["device"]) == ("up", path)
        for counter in ("messages_sent", "messages_received", "bytes_sent", "bytes_received", "rendezvous_sent"):
            assert second[counter] > first[counter] > 0, (counter, first, second)
        assert (second["links_up"], second["links_down"], second["calls_failed"]) == (1, 0, 0)
        # One of the two messages of a round is long. All other messages of MPI are short.
        rounds = second["rendezvous_sent"]
        assert second["messages_sent"] >= 2 * rounds - 1
        assert rounds << 20 <= second["bytes_sent"] <= (rounds << 20) + 4096 * second["messages_sent"], second
        (endpoint,) = found["looks"][1][rank]["endpoints"]
        assert endpoint["age_ms"] < 5000 and endpoint["failures"] == 0 and endpoint["rounds"] > 0
    for pid in found["pids"]:
        assert str(pid) in found["top"], found["top"]
    assert "messages" in found["table"] and path in found["table"], found["table"]
    # The command tells three refusals apart, each with its reason: another user, a process that has ended, and
    # a process without weft.
    if found["stranger"] is not None:
        status, out, words = found["stranger"]
        assert status == 1 and out == "" and "another user" in words, found["stranger"]
    for what, words in (("after", "no process"), ("silent", "no open weft endpoint")):
        assert found[what][0] == 1 and words in found[what][2], found[what]
    if outcome.left is not None:
        assert outcome.left.nothing(), outcome.left


# Invalid pages. The head is magic, layout, process, words of an endpoint, words of a peer.
HOSTILE = """
import os, struct, subprocess, sys
weft, kind = sys.argv[1:]
page = os.memfd_create("weft-stats")
ones = b"\\xff" * 4096
def head(endpoint=29, peer=26):
    return b"weftstat" + struct.pack("<7Q", 1, os.getpid(), endpoint, peer, 0, 0, 0) + b"\\x1b[2J" + ones[:59]
body = {
    "empty": b"",
    "short": b"weftstat" + bytes(3),
    "cut": head()[:100],
    "head": head(),
    "noise": head() + os.urandom(8000),
    "wide": head(1 << 40, 1 << 63) + ones,
    "ones": head() + ones * 4,
    "ones of none": head(0, 0) + ones,
}
os.pwrite(page, body.get(kind, head() + ones), 0)
if kind == "huge":
    os.ftruncate(page, 1 << 40)
if kind == "pipe":
    os.dup2(os.pipe()[0], page)
for argv in (["stat", str(os.getpid())], ["stat", str(os.getpid()), "--json"], ["top", "--once", "--interval", "0.1"]):
    done = subprocess.run([weft, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=50)
    print(kind, argv, done.returncode, len(done.stdout))
    shown = argv[0] == "top" or kind in ("ones", "ones of none", "huge")
    assert done.returncode == (0 if shown else 1) and b"\\x1b" not in done.stdout, done.stdout[-2000:]
"""
KINDS = ["empty", "short", "cut", "head", "noise", "wide", "ones", "ones of none", "huge", "pipe"]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_pages(kind: str) -> None:
    """The command ends in time for any page, and shows it or explains why not."""
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(WEFT), kind], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
