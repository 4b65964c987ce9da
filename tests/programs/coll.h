// The digest of a program's results, and the numbers of its collectives. Programs that include this end with the same
// digest whichever library has run the collectives.

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static long weft, library;  // Calls that weft-coll runs, and those that it leaves to the MPI library.
static uint64_t digest = 14695981039346656037u;

static void note(const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ at[i]) * 1099511628211u;
}

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}
