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


# A page of an endpoint with two peers and large counters, and `weft stat` on a terminal of 80 columns.
NARROW = """
import fcntl, os, pty, struct, subprocess, sys, termios
def block(*words):
    return struct.pack(f"<{len(words) + 2}Q", 1, *words, 1)
page = os.memfd_create("weft-stats")
head = b"weftstat" + struct.pack("<7Q", 1, os.getpid(), 9, 26, 0, 4, 128) + b"1.0".ljust(16, b"\\0") + b"node0117".ljust(48, b"\\0")
os.pwrite(page, head, 0)
os.pwrite(page, block(0, 0xffff0a000007, 40001, 7, 1, 1, 10**9, 0, 2), 128)
for number in range(2):
    name = (0, 0xffff0a000008, 40100 + number, 9, number, 2, int.from_bytes(b"shm", "little"))
    os.pwrite(page, block(*name, *(10**5 * 5**n for n in range(19))), 1024 + 256 * number)
terminal, side = pty.openpty()
fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
done = subprocess.Popen([sys.argv[1], "stat", str(os.getpid())], stdin=side, stdout=side, stderr=side)
os.close(side)
output = b""
try:
    while piece := os.read(terminal, 4096):
        output += piece
except OSError:
    pass
sys.stdout.write(output.decode().replace("\\r", ""))
sys.exit(done.wait())
"""


def test_tables_hold_at_80_columns() -> None:
    """Each peer has one line in each table, and no line is longer than the terminal."""
    done = subprocess.run(
        [sys.executable, "-c", NARROW, str(WEFT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[1:])) <= 80, done.stdout
    peers = [line for line in lines if "10.0.0.8:4010" in line]
    heads = [line for line in lines if line.lstrip().startswith("peer ")]
    assert len(heads) >= 2 and len(peers) == 2 * len(heads), done.stdout
    for head in ("messages", "rendezvous", "access bytes", "waiting"):
        assert any(head in line for line in heads), done.stdout


@pytest.mark.parametrize("word", ["abc", "0", "-1", "7x"])
def test_a_wrong_process_id_is_explained(word: str) -> None:
    """The command says what a process id is, and where to find one."""
    done = subprocess.run([WEFT, "stat", "--", word], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2 and "a process id is a number" in done.stderr and "weft top" in done.stderr, done.stderr


HANG_UP = """
import fcntl, os, pty, resource, struct, subprocess, sys, termios
terminal, side = pty.openpty()
fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
start = ["setsid", "--ctty"] if sys.argv[2] == "controlling" else ["setsid"]
env = {**os.environ, "TERM": "xterm"}
top = subprocess.Popen([*start, "--wait", sys.argv[1], "top"], stdin=side, stdout=side, stderr=side, env=env)
os.close(side)
output = b""
while b"weft top" not in output:
    output += os.read(terminal, 4096)
os.close(terminal)
top.wait(20)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print("seconds of processor time:", used.ru_utime + used.ru_stime)
sys.exit(used.ru_utime + used.ru_stime > 3)
"""


@pytest.mark.parametrize("how", ["controlling", "other"])
def test_top_ends_with_its_terminal(how: str) -> None:
    """With its controlling terminal `weft top` gets SIGHUP; from another terminal it learns the end by reading."""
    done = subprocess.run(
        [sys.executable, "-c", HANG_UP, str(WEFT), how], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
