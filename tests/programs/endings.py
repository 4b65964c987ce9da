"""A rank that exchanges messages with another one, and then ends as the argument says.

With PAUSE in the environment, it waits for so many seconds and exchanges messages again. The first rank prints a line before the end, so that a test knows when to send a signal.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from mpi4py import MPI

MESSAGES = 2000

how = sys.argv[1]
world = MPI.COMM_WORLD
data = bytearray(64)


def exchange() -> None:
    """Exchanges messages with the rank that is half of the ranks away."""
    other = (world.rank + world.size // 2) % world.size
    for _ in range(MESSAGES if world.size % 2 == 0 else 0):
        world.Sendrecv(bytes(64), other, recvbuf=data, source=other)


exchange()
if "PAUSE" in os.environ:
    time.sleep(float(os.environ["PAUSE"]))
    exchange()
if world.rank == 0:
    print("READY", flush=True)
if how == "_exit":
    world.Barrier()
    os._exit(0)
if how == "kill all":
    world.Barrier()
    os.kill(os.getpid(), signal.SIGKILL)
if how == "abort" and world.rank == 1:
    world.Abort(5)
if how == "kill" and world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if how == "crash" and world.rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
if how == "wait":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would end the rank in an orderly way.
    time.sleep(60)
if how == "status":
    MPI.Finalize()
    os._exit(7)
if how == "spawn":
    parent = MPI.Comm.Get_parent()
    if parent == MPI.COMM_NULL:
        child = MPI.COMM_SELF.Spawn(sys.executable, [__file__, how], 3)
        child.gather(None, MPI.ROOT)
    else:
        child = parent
        child.gather(child.rank, 0)
    child.Disconnect()
