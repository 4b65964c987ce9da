"""Rank 1 kills itself among reductions. The others write the text of the error that they get to DIRECTORY/text-RANK."""

import os
import signal
import sys
from pathlib import Path

from mpi4py import MPI

comm = MPI.COMM_WORLD
mine, all_bits = bytearray(8), bytearray(8)
for turn in range(10_000_000):
    if comm.rank == 1 and turn == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.Allreduce([mine, MPI.BYTE], [all_bits, MPI.BYTE], MPI.BOR)
    except MPI.Exception as error:
        Path(sys.argv[1], f"text-{comm.rank}").write_text(error.Get_error_string())
        os._exit(0)
