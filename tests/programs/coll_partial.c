// Collectives in a job in which some ranks run without the profiling library. Rank 0 prints their result. Each rank
// checks that no message waits for it that the program has not sent.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, found, sum = 0, again = 0;
    MPI_Comm copy;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Iallreduce(&rank, &again, 1, MPI_INT, MPI_SUM, copy, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Barrier(copy);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    if (found) {
        printf("rank %d has got a message\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0) printf("sums %d and %d\n", sum, again);
    MPI_Comm_free(&copy);
    MPI_Finalize();
    return 0;
}
