"""An MPI job whose rank 1 kills itself under traffic: every rank sends and receives long messages in a loop."""

import os
import signal

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
out, back = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
turn = 0
while True:
    turn += 1
    for distance in range(1, world.size):
        request = world.Isend(out, (world.rank + distance) % world.size, 1)
        if world.rank == 1 and turn == 200:
            print("rank 1 dies", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        world.Recv(back, (world.rank - distance) % world.size, 1)
        request.Wait()
