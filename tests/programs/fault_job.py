"""Plays one cell of the fault matrix several times: starts ranks (fault_rank.c), strikes one of them with a
fault, and judges the run.

    fault_job.py PROGRAM PATH FAULT SEED RUNS

PATH is `shm` or `tcp` (on one host), `any` (of the two), `hosts` (ranks on h1 and h2 in turn, two-hosts.sh),
`hosts6` (hosts with IPv6), or `hosts-encrypted`. `shm-auto` and `hosts-auto` have automatic progress.

All waits are bounded. A process that does not end is killed, which counts as wrong. Prints one JSON object per run:
- `seed`, `ranks`, `victim`, `messages`
- `slowest_ms`: from the death to the last failure
- `arrival_ms`: from the end of sending to the last arrival
- `resumed`: links that continued over another connection, counted on both sides
- `measured`: whether the machine ran smoothly enough to judge the time from the death; null without a death
- `wrong`: the error, or empty
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

BOUND_MS = 1000.0  # time limit for failures of operations with the dead rank
RETRY_MS = 1000.0  # later operations retry a refused connection for this time (FI_WEFT_CONNECT_RETRY_MS)
PATIENCE_S = 15.0  # time limit for anything else
STANDSTILL_S = 0.3  # longer stalls of the machine invalidate measured times
SECOND_LIFE = 8
NOISE = 4000  # characters of each rank's output in the report of a failed run
PATHS = {
    "shm": {"FI_WEFT_TCP": "no"},
    "shm-auto": {"FI_WEFT_TCP": "no", "FAULT_AUTO": "yes"},
    "tcp": {"FI_WEFT_SHM": "no"},
    "hosts": {},
    "hosts-auto": {"FAULT_AUTO": "yes"},
    "hosts6": {},
    "hosts-encrypted": {},
    "any": {},
}
DEADLY = ("kill", "exit", "freeze-kill", "restart", "early-kill")
# Connections break. No rank may notice.
BREAKING = ("reset", "link", "lossy", "forget")
RESUMED = "is restored"
FORWARDER = Path(__file__).parent.parent / "support" / "forwarder.py"
# The victim may lose some peers, or end. Both sides are told, and no other rank may notice.
CUTTING = ("descriptors", "late-descriptors", "late-memory")
# Without memory a victim aborts with this message (fi_weft(7)), or ends in order. Any other end, such as SIGSEGV,
# is wrong.
OUT_OF_MEMORY = "memory allocation of"
GONE = {104, 108, 111}  # connection reset, endpoint shut down, connection refused: errors of operations with the dead


class Wrong(Exception):
    """An error that ends the run."""


class Clock(threading.Thread):
    """Detects stalls of the machine."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.worst = 0.0
        self.over = False
        self.start()

    def run(self) -> None:
        before = time.monotonic()
        while not self.over:
            time.sleep(0.01)
            now = time.monotonic()
            self.worst = max(self.worst, now - before)
            before = now


class Rank:
    """One process of the job."""

    def __init__(self, number: int, argv: list[str], env: dict[str, str]) -> None:
        self.number = number
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(argv, env=env, **pipes)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rest = b""
        self.name = ""
        self.ready: set[int] = set()
        self.lost: dict[int, list[int]] = {}
        self.messages: int | None = None
        self.closed = False
        self.noise: list[str] = []
        self.dead = False

    def say(self, line: str) -> None:
        """Sends a line to the rank."""
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def hear(self) -> bool:
        """Handles the rank's output. Returns False at its end."""
        data = self.process.stdout.read()
        if data == b"":
            return False
        *lines, self.rest = (self.rest + (data or b"")).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "name":
                self.name = rest
            elif word == "ready":
                self.ready.add(int(rest))
            elif word == "lost":
                peer, *numbers = map(int, rest.split())
                self.lost[peer] = numbers
            elif word == "done":
                self.messages = int(rest.split()[0])
            elif word in ("closed", "refused"):
                self.closed = True
            else:
                self.noise.append(f"{word} {rest}")
                if word == "wrong":
                    raise Wrong(f"rank {self.number}: {rest}")
        return True


class Job:
    """One run."""

    def __init__(self, program: str, path: str, fault: str, seed: int) -> None:
        self.program, self.path, self.fault, self.seed = program, path, fault, seed
        self.random = random.Random(f"{path} {fault} {seed}")
        self.size = self.random.randint(2, 8)
        self.victim = self.random.randrange(self.size)
        self.env = {**os.environ, **PATHS[path], "FI_WEFT_CONNECT_TIMEOUT_MS": "4000"}
        if fault == "restart":
            self.env["FAULT_PORTS"] = "yes"
        # Debian's libfabric includes a handler (PSM's) that would write a file when the victim aborts.
        self.env |= {"HFI_NO_BACKTRACE": "1", "IPATH_NO_BACKTRACE": "1"}
        if fault in BREAKING:  # the log counts the replaced connections
            self.env |= {"FI_LOG_LEVEL": "info", "FI_LOG_PROV": "weft"}
        if fault in CUTTING:  # a lost rank may come back
            self.env["FAULT_CUTS"] = "yes"
        if fault in ("undumpable", "untraceable", "other-user"):
            self.env["FAULT_USER"] = "65534"
        self.selector = selectors.DefaultSelector()
        self.ranks: list[Rank] = []
        self.slowest_ms = 0.0
        self.measured: bool | None = None
        self.arrival_ms = 0.0
        self.forwarder: subprocess.Popen | None = None

    def start(self, number: int, fault: str) -> Rank:
        """Starts a rank."""
        argv = [self.program, str(number), str(self.seed), fault]
        if self.path.startswith("hosts"):
            argv = ["ip", "netns", "exec", f"h{number % SECOND_LIFE % 2 + 1}", *argv]
        if fault == "namespace":
            argv = ["unshare", "--user", "--map-root-user", *argv]
        rank = Rank(number, argv, self.env)
        self.ranks.append(rank)
        self.selector.register(rank.process.stdout, selectors.EVENT_READ, rank)
        return rank

    def wait(self, what: str, condition, limit_s: float = PATIENCE_S) -> None:
        """Waits until the condition holds, and handles the ranks' output meanwhile."""
        deadline = time.monotonic() + limit_s
        while not condition():
            for key, _ in self.selector.select(0.02):
                rank = key.data
                if not rank.hear():
                    self.selector.unregister(key.fileobj)
                    self.ended(rank)
            if time.monotonic() > deadline:
                raise Wrong(f"not in {limit_s} s: {what}")

    def settle(self, seconds: float) -> None:
        """Handles the ranks' output for a time."""
        end = time.monotonic() + seconds
        self.wait("", lambda: time.monotonic() > end)

    def ended(self, rank: Rank) -> None:
        """Checks that a rank that has ended was told to, or is the victim."""
        status = rank.process.wait()
        victim = rank is self.ranks[self.victim] and (self.fault in DEADLY or self.fault in CUTTING)
        aborts = self.fault == "late-memory" and status == -signal.SIGABRT and any(line.startswith(OUT_OF_MEMORY) for line in rank.noise)
        fair = self.fault in DEADLY or (rank.closed and status == 0) or aborts
        if victim and fair and not rank.dead:
            rank.dead = True
            for other in self.living():
                if self.fault not in DEADLY:
                    other.say(f"gone {rank.number}")
        elif not (rank.closed and status == 0) and not rank.dead:
            raise Wrong(f"rank {rank.number} ended with {status}: {' '.join(rank.noise)[-2000:]}")

    def living(self) -> list[Rank]:
        """The ranks that have not died."""
        return [rank for rank in self.ranks if not rank.dead]

    def introduce(self, rank: Rank) -> None:
        """Tells a rank and all earlier ranks of each other."""
        for other in self.living():
            if other is not rank:
                other.say(f"peer {rank.number} {rank.name}")
                rank.say(f"peer {other.number} {other.name}")

    def all_ready(self) -> bool:
        """Whether all ranks have received from all others, except from lost ones."""
        living = self.living()
        for rank in living:
            for other in living:
                if rank is not other and other.number not in rank.ready and other.number not in rank.lost:
                    return False
        return True

    def cut(self) -> None:
        """Tells each lost peer about its loss, since it may not notice by itself."""
        for rank in self.living():
            for peer in rank.lost:
                others = [other for other in self.living() if other.number == peer]
                if others and rank.number not in others[0].lost:
                    others[0].say(f"gone {rank.number}")

    def die(self) -> None:
        """Kills the victim. All ranks must notice in time."""
        victim = self.ranks[self.victim]
        pid = victim.process.pid
        if self.fault == "freeze-kill":
            os.kill(pid, signal.SIGSTOP)
            self.settle(self.random.uniform(0.05, 0.5))
        clock = Clock()
        at_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGUSR1 if self.fault == "exit" else signal.SIGKILL)
        self.wait("death of the victim", lambda: victim.dead)
        number = victim.number
        self.wait("notice of the death by all ranks", lambda: all(number in rank.lost for rank in self.living()))
        clock.over = True
        late_ms = 0.0
        for rank in self.living():
            last_ns, late_ns, *errors = rank.lost[number]
            if not set(errors) <= GONE:
                raise Wrong(f"rank {rank.number}: operations with the dead rank failed with {errors}")
            self.slowest_ms = max(self.slowest_ms, (last_ns - at_ns) / 1e6)
            late_ms = max(late_ms, late_ns / 1e6)
        # A rank without a link to the victim is still connecting. It accepts a refusal only after repeated
        # attempts.
        bound_ms = BOUND_MS + (RETRY_MS if self.fault == "early-kill" else 0)
        self.measured = clock.worst < STANDSTILL_S
        if self.measured and (self.slowest_ms >= bound_ms or late_ms >= RETRY_MS + BOUND_MS):
            raise Wrong(f"operations with the dead rank failed after {self.slowest_ms:.0f} ms, later ones after {late_ms:.0f} ms")

    def stand_between(self) -> None:
        """Routes all frames between the hosts through the forwarder."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.forwarder = subprocess.Popen([sys.executable, str(FORWARDER), str(self.seed)], **pipes)
        if self.forwarder.stdout.readline() != "ready\n":
            raise Wrong("the forwarder has not started")

    def order(self, line: str) -> None:
        """Sends an order to the forwarder."""
        self.forwarder.stdin.write(line + "\n")
        self.forwarder.stdin.flush()

    def breaks(self) -> None:
        """Breaks or disturbs the connections between the hosts."""
        for turn in range(self.random.randint(1, 3)):
            if self.fault == "reset":
                self.reset("h1")
                self.reset("h2")
            elif self.fault == "link":
                self.unplug(self.random.choice(("h1", "h2")) if (self.seed + turn) % 2 else "")
            elif self.fault == "lossy":
                self.order(f"lossy {self.random.uniform(0, 0.05)} {self.random.uniform(0, 5)}")
            else:
                self.order("forget")
            self.settle(self.random.uniform(0.1, 1))
        if self.fault == "lossy":
            self.order("lossy 0 0")

    def reset(self, host: str) -> None:
        """Resets the connections from a host to others."""
        command = ["ip", "netns", "exec", host, "ss", "--kill", "--tcp", "--no-header", "not", "src", "127.0.0.1"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def unplug(self, host: str) -> None:
        """Takes a link down for some seconds: at the bridge, or at the host, which then loses its routes and
        IPv6 addresses."""
        link = ["ip", "-n", host, "link", "set", "eth0"] if host else ["ip", "link", "set", "wve1"]
        subprocess.run([*link, "down"], check=True)
        if host and self.random.random() < 0.5:  # pending operations and new connections meet an address that does not exist
            self.reset(host)
        self.settle(self.random.uniform(0.05, 3))
        subprocess.run([*link, "up"], check=True)
        if host and self.path == "hosts6":
            subprocess.run(["ip", "-n", host, "address", "add", f"fd77::{host[1:]}/64", "dev", "eth0", "nodad"], check=True)

    def strike(self) -> None:
        """Applies the fault."""
        victim = self.ranks[self.victim]
        if self.fault in BREAKING:
            self.breaks()
        elif self.fault in DEADLY:
            self.die()
        elif self.fault == "freeze":
            for _ in range(2):
                os.kill(victim.process.pid, signal.SIGSTOP)
                self.settle(self.random.uniform(0.02, 0.6))
                os.kill(victim.process.pid, signal.SIGCONT)
                self.settle(0.1)
        elif self.fault.startswith("late-"):
            os.kill(victim.process.pid, signal.SIGUSR1)

    def play(self) -> None:
        """Plays the whole run."""
        if self.fault in ("lossy", "forget"):
            self.stand_between()
        for number in range(self.size):
            own = "none" if self.fault in BREAKING else {"exit": "late-exit", "freeze": "none"}.get(self.fault, self.fault)
            self.start(number, own if number == self.victim else "none")
        may_refuse = self.fault in CUTTING
        self.wait("names of all ranks", lambda: all(rank.name for rank in self.living()))
        living = self.living()
        for rank in living:
            for other in living:
                if rank is not other:
                    rank.say(f"peer {other.number} {other.name}")
        if self.fault != "early-kill":
            if may_refuse:
                self.wait("readiness or loss of all ranks", lambda: self.cut() or self.all_ready())
            else:
                self.wait("readiness of all ranks", self.all_ready)
        self.settle(self.random.uniform(0, 0.25) if self.fault != "early-kill" else self.random.uniform(0, 0.02))
        self.strike()
        self.settle(0.1)
        if not may_refuse:
            self.judge()
        if self.fault == "restart":
            again = self.start(self.victim + SECOND_LIFE, "none")
            self.wait("restart of the victim", lambda: bool(again.name))
            self.introduce(again)
            self.wait("readiness of all ranks after the restart", self.all_ready)
            self.settle(0.1)
        for rank in self.living():
            rank.say("stop")
        stopped = time.monotonic()
        self.wait("arrival of all messages", lambda: (self.cut() if may_refuse else None) or all(rank.messages is not None for rank in self.living()))
        self.arrival_ms = (time.monotonic() - stopped) * 1000
        self.judge()
        for rank in self.living():
            rank.say("close")
        self.wait("end of all ranks", lambda: all(rank.process.poll() is not None for rank in self.living()))
        self.wait("", lambda: not self.selector.get_map())
        for rank in self.living():
            if not rank.closed or rank.process.returncode != 0:
                raise Wrong(f"rank {rank.number} did not close: {rank.process.returncode} {' '.join(rank.noise)[-2000:]}")

    def judge(self) -> None:
        """Checks that no rank has lost a peer other than the victim."""
        for rank in self.living():
            strange = set(rank.lost) - ({self.victim} if self.fault in DEADLY else set())
            if self.fault in CUTTING:
                strange = set() if rank.number == self.victim else strange - {self.victim}
            if strange:
                raise Wrong(f"rank {rank.number} has lost {[(peer, rank.lost[peer]) for peer in strange]}, which live")

    def inquest(self) -> str:
        """Describes the state of a failed run."""
        try:
            for rank in self.living():
                rank.say("tell")
            self.settle(0.5)
        except Wrong:
            pass
        found = [f"{rank.number}: ready {sorted(rank.ready)} lost {rank.lost} done {rank.messages}" for rank in self.ranks]
        found += [f"{rank.number} says: " + "; ".join(rank.noise)[-NOISE:] for rank in self.ranks]
        for host in ("h1", "h2") if self.path.startswith("hosts") else ():
            sockets = subprocess.run(["ip", "netns", "exec", host, "ss", "-tinop"], capture_output=True, text=True, check=False)
            found.append(f"{host} has: {sockets.stdout}")
        return "\n".join(found)

    def run(self) -> dict:
        """Plays the run, and ends all its processes."""
        wrong = ""
        try:
            self.play()
        except Wrong as why:
            wrong = f"{why} | {self.inquest()}"
        finally:
            for rank in self.ranks:
                rank.process.kill()
                rank.process.wait()
            if self.forwarder:
                self.forwarder.kill()
                self.forwarder.wait()
        messages = sum(rank.messages or 0 for rank in self.ranks)
        return {
            "seed": self.seed,
            "ranks": self.size,
            "victim": self.victim,
            "messages": messages,
            "slowest_ms": round(self.slowest_ms, 1),
            "arrival_ms": round(self.arrival_ms, 1),
            "measured": self.measured,
            "resumed": sum(RESUMED in line for rank in self.ranks for line in rank.noise),
            "wrong": wrong,
        }


def main() -> int:
    """Plays all runs."""
    program, path, fault, seed, runs = sys.argv[1:]
    good = True
    for number in range(int(runs)):
        result = Job(program, path, fault, int(seed) + number).run()
        print(json.dumps(result), flush=True)
        good &= not result["wrong"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
