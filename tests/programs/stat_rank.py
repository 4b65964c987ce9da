"""One of two ranks that play ping-pong until a file exists, whose name is the argument. Prints its process and
rounds."""

import os
import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
peer = 1 - world.rank
small, long = np.zeros(8, np.uint8), np.zeros(1 << 20, np.uint8)
print(f"rank {world.rank} process {os.getpid()}", flush=True)
rounds, going = 0, np.ones(1, np.int32)
while going[0]:
    rounds += 1
    for buffer in (small, long):
        if world.rank == 0:
            world.Send(buffer, peer, 1)
            world.Recv(buffer, peer, 1)
        else:
            world.Recv(buffer, peer, 1)
            world.Send(buffer, peer, 1)
    if world.rank == 0:
        going[0] = not os.path.exists(sys.argv[1])
    world.Bcast(going, 0)
print(f"rank {world.rank} rounds {rounds}", flush=True)
