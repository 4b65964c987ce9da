"""A conjugate gradient solver for Poisson's equation that hides its reductions behind its products.

    mpiexec -n RANKS python solver.py [POINTS]      points of each side of the square; 256 by default

Each rank has a strip of rows. This is the pipelined method of Ghysels and Vanroose ("Hiding global synchronization
latency in the preconditioned conjugate gradient algorithm", 2014): one MPI_Iallreduce an iteration is under way during
the product of the matrix and a vector. Rank 0 prints the number of iterations, the error and the time.
"""

from __future__ import annotations

import sys

import numpy
from mpi4py import MPI

TOLERANCE = 1e-8
MOST_ITERATIONS = 2000

world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
points = int(sys.argv[1]) if len(sys.argv) > 1 else 256
rows = points * (rank + 1) // ranks - points * rank // ranks


def product(vector: numpy.ndarray) -> numpy.ndarray:
    """Multiplies by the matrix of the five-point formula. Neighbours exchange their border rows."""
    padded = numpy.zeros((rows + 2, points + 2))
    padded[1:-1, 1:-1] = vector
    up, down = (rank - 1 if rank else MPI.PROC_NULL), (rank + 1 if rank + 1 < ranks else MPI.PROC_NULL)
    world.Sendrecv(padded[1], up, 0, padded[-1], down, 0)
    world.Sendrecv(padded[-2], down, 1, padded[0], up, 1)
    inner = padded[1:-1, 1:-1]
    return 4 * inner - padded[:-2, 1:-1] - padded[2:, 1:-1] - padded[1:-1, :-2] - padded[1:-1, 2:]


def solve(right: numpy.ndarray) -> tuple[numpy.ndarray, int]:
    """Returns the solution and the number of iterations."""
    x = numpy.zeros_like(right)
    r = right - product(x)
    w = product(r)
    z = s = p = numpy.zeros_like(right)
    gamma_before = alpha = first = 0.0
    for iteration in range(MOST_ITERATIONS):
        sums = numpy.array([numpy.vdot(r, r), numpy.vdot(w, r)])
        request = world.Iallreduce(MPI.IN_PLACE, sums)
        q = product(w)
        request.Wait()
        gamma, delta = sums
        first = first or gamma
        if gamma <= TOLERANCE**2 * first:
            return x, iteration
        beta = gamma / gamma_before if iteration else 0.0
        alpha = gamma / (delta - beta * gamma / alpha) if iteration else gamma / delta
        z, s, p = q + beta * z, w + beta * s, r + beta * p
        x, r, w = x + alpha * p, r - alpha * s, w - alpha * z
        gamma_before = gamma
    return x, MOST_ITERATIONS


def main() -> None:
    """Solves for a known solution, and compares with it."""
    first_row = points * rank // ranks
    across = numpy.sin(numpy.pi * numpy.arange(1, points + 1) / (points + 1))
    along = numpy.arange(first_row + 1, first_row + rows + 1) / (points + 1)
    known = numpy.outer(along * (1 - along) * numpy.exp(along), across * (1 + across**3))
    world.Barrier()
    start = MPI.Wtime()
    found, iterations = solve(product(known))
    elapsed = MPI.Wtime() - start
    error = numpy.array(numpy.abs(found - known).max())
    world.Allreduce(MPI.IN_PLACE, error, MPI.MAX)
    if rank == 0:
        print(f"{iterations} iterations, error {error:.1e}, {elapsed:.3f} s")


main()
