"""An MPI program: both ranks start all sends before any receive, as the standard allows, then receive and wait
for all.

Arguments are pairs of a count and a size in bytes. Rank 0 prints "sends first: good" at the end.
"""

import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank = world.rank
peer = 1 - rank

for count, size in zip(map(int, sys.argv[1::2]), map(int, sys.argv[2::2]), strict=True):
    mine = np.full(size, rank + 1, np.uint8)
    theirs = np.zeros(size, np.uint8)
    requests = [world.Isend(mine, peer, 5) for _ in range(count)]
    requests += [world.Irecv(theirs, peer, 5) for _ in range(count)]
    MPI.Request.Waitall(requests)
    assert np.all(theirs == peer + 1), "wrong data"

if rank == 0:
    print("sends first: good")
