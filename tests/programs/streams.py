"""An MPI program of two ranks: streams of 1 MiB messages, puts and gets, whose rates rank 0 prints.

    streams.py SECONDS [check]

Each kind runs for SECONDS. The first batch, during which connections are made, is not timed. All received data of the last batch is compared with the expected data; with `check`, that of
every batch. At the end, rank 0 prints the bytes that each of its network interfaces has sent and received.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

SIZE, BATCH = 1 << 20, 8

world = MPI.COMM_WORLD
rank, peer = world.rank, 1 - world.rank
seconds, always = float(sys.argv[1]), "check" in sys.argv
memory = np.empty((BATCH, SIZE), np.uint8)
window = MPI.Win.Create(memory, 1, comm=world)
local = np.empty((BATCH, SIZE), np.uint8)


def fill(into: np.ndarray, turn: int) -> None:
    """Writes the data of a batch."""
    for n in range(BATCH):
        into[n, :] = (turn * 7 + n) % 251
        into[n, ::4099] = n


def compare(found: np.ndarray, turn: int, kind: str) -> None:
    """Ends the job if a batch differs from its data."""
    expected = np.empty_like(found)
    fill(expected, turn)
    if not np.array_equal(found, expected):
        sys.exit(f"rank {rank}: wrong data, {kind} batch {turn}")


def send() -> None:
    """Rank 0 sends, and rank 1 receives."""
    start = world.Isend if rank == 0 else world.Irecv
    rows = local if rank == 0 else memory
    MPI.Request.Waitall([start(rows[n], peer, n) for n in range(BATCH)])


def access(start: Callable[..., None]) -> None:
    """Rank 0 puts into the memory of rank 1, or gets from it."""
    if rank == 0:
        for n in range(BATCH):
            start(local[n], peer, n * SIZE)
        window.Flush(peer)


def stream(kind: str, batch: Callable[[], None], source: int, target_rows: np.ndarray) -> None:
    """Runs batches for a time. Rank `source` has the data, which goes to `target_rows` of the other rank."""
    turn, moved_s, until = 0, 0.0, time.monotonic() + seconds
    again = True
    while again:
        again = world.bcast(time.monotonic() < until or turn == 0)
        checked = always or not again
        if checked:
            if rank == source:
                fill(local if source == 0 else memory, turn)
            world.Barrier()
        begin = time.monotonic()
        batch()
        world.Barrier()
        moved_s += time.monotonic() - begin if turn > 0 else 0
        if checked and rank != source:
            compare(target_rows, turn, kind)
        turn += 1
    if rank == 0:
        print(f"{kind}: {(turn - 1) * BATCH * SIZE / moved_s / 1e6:.1f} MB/s", flush=True)


window.Lock_all()
stream("send", send, 0, memory)
stream("put", lambda: access(window.Put), 0, memory)
stream("get", lambda: access(window.Get), 1, local)
window.Unlock_all()
window.Free()
if rank == 0:
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counts = line.partition(":")
        fields = counts.split()
        print(f"interface {name.strip()}: {fields[0]} received, {fields[8]} sent", flush=True)
    print("streams: good", flush=True)
