// Non-blocking collectives of long buffers progress while no rank calls MPI: after a sleep the first MPI_Test finds
// each of them complete. Rank 0 prints the number of those that it found complete.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LONGS = 1 << 18 };

static long *in, *out;

static void start(int which, MPI_Request *request) {
    switch (which) {
    case 0: MPI_Iallreduce(in, out, LONGS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, request); break;
    case 1: MPI_Ibcast(in, LONGS, MPI_LONG, 0, MPI_COMM_WORLD, request); break;
    case 2: MPI_Ialltoall(in, LONGS, MPI_LONG, out, LONGS, MPI_LONG, MPI_COMM_WORLD, request); break;
    case 3: MPI_Iallgather(in, LONGS, MPI_LONG, out, LONGS, MPI_LONG, MPI_COMM_WORLD, request); break;
    }
}

int main(int argc, char **argv) {
    int rank, ranks, complete = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    in = calloc(ranks, LONGS * sizeof *in), out = calloc(ranks, LONGS * sizeof *out);
    for (int which = 0; which < 4; which++) {
        MPI_Request request;
        int flag;
        start(which, &request);
        usleep(500000);
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        complete += flag;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (rank == 0) printf("%d of 4 complete\n", complete);
    MPI_Finalize();
    return 0;
}
