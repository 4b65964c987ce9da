"""An MPI program of four ranks, of which 0 and 1 are on one host and 2 and 3 on another.

Rank 0 sends to rank 2, and rank 3 sends to rank 1. These are the first messages of each pair, and the receiver sends
none. Barriers, rings and a reduction follow. Rank 0 prints "one way: good" and the seconds of the first messages.
With the argument `alone` there are two ranks, and rank 0 sends to rank 1, which only receives.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

SIZE = 1 << 20

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size


def data(source: int) -> np.ndarray:
    """The message from `source`."""
    return (np.arange(SIZE, dtype=np.uint32) * 7 + source).astype(np.uint8)


def transfer(source: int, target: int) -> None:
    """One message in one direction."""
    if rank == source:
        world.Send(data(source), target, 5)
    elif rank == target:
        received = np.empty(SIZE, np.uint8)
        world.Recv(received, source, 5)
        assert np.array_equal(received, data(source)), f"rank {rank}: wrong data"


def ring() -> None:
    """Each rank sends to its successor."""
    received = np.empty(SIZE, np.uint8)
    before = (rank - 1) % ranks
    world.Sendrecv(data(rank), (rank + 1) % ranks, 6, received, before, 6)
    assert np.array_equal(received, data(before)), f"rank {rank}: wrong data in the ring"


if "alone" in sys.argv:
    transfer(0, 1)
    sys.exit(0)
world.sendrecv(rank, rank ^ 1, 4, None, rank ^ 1, 4)
begin = time.monotonic()
transfer(0, 2)
transfer(3, 1)
first_s = world.gather(time.monotonic() - begin)
for _ in range(3):
    world.Barrier()
    ring()
assert world.allreduce(rank) == ranks * (ranks - 1) // 2
if rank == 0:
    print(f"one way: good, first messages {max(first_s):.2f} s", flush=True)
