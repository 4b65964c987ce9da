"""An MPI program: every pair of ranks exchanges messages of many sizes, then all ranks reduce and use windows.

All received data is compared with the expected data. Rank 0 prints "all pairs: good" at the end. An argument
gives the seconds for which the program repeats everything.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

SIZES = (0, 1, 8, 200, 4096, 16384, 65536, 100_003, 1 << 20, (4 << 20) + 7)

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size


def pattern(source: int, target: int, size: int) -> np.ndarray:
    """The message from `source` to `target`."""
    return (np.arange(size, dtype=np.uint64) * 131 + source * 17 + target * 5 + size).astype(np.uint8)


def exchange(peer: int, size: int) -> None:
    """Both ranks send at once."""
    received = np.empty(size, np.uint8)
    world.Sendrecv(pattern(rank, peer, size), peer, 3, received, peer, 3)
    if not np.array_equal(received, pattern(peer, rank, size)):
        sys.exit(f"rank {rank}: wrong data from rank {peer}, {size} bytes")


def windows() -> None:
    """Each rank writes to its successor's window, reads its data from two ranks away, and adds to rank 0's window."""
    # All buffers have names, since they must live until the fence.
    memory, ones = np.zeros(50_000, np.int64), np.ones(10, np.int64)
    out, seen = np.arange(50_000, dtype=np.int64) + rank, np.empty(50_000, np.int64)
    window = MPI.Win.Create(memory, disp_unit=8, comm=world)
    window.Fence()
    window.Put(out, (rank + 1) % ranks)
    window.Fence()
    window.Get(seen, (rank + 2) % ranks)
    window.Fence()
    assert np.array_equal(seen, np.arange(50_000) + (rank + 1) % ranks), "get"
    window.Accumulate(ones, 0)
    window.Fence()
    if rank == 0:
        assert np.array_equal(memory[:10], np.arange(10) + ranks - 1 + ranks), "accumulate"
    window.Free()


def everything() -> None:
    """Runs all parts once."""
    for peer in range(ranks):
        for size in SIZES:
            exchange(rank ^ peer if (rank ^ peer) < ranks else rank, size)
    total = np.empty(1000)
    world.Allreduce(np.full(1000, rank + 1.0), total)
    assert np.all(total == ranks * (ranks + 1) / 2), "allreduce"
    windows()
    world.Barrier()


until = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else 0)
again = True
while again:
    everything()
    again = world.bcast(time.monotonic() < until)
if rank == 0:
    print("all pairs: good", flush=True)
