// A program whose calls a tool counts: ten blocking and ten non-blocking reductions on a duplicate of the world.

#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, ranks;
    long sum = 0, total = 0;
    MPI_Comm comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (long i = 0; i < 10; i++) {
        MPI_Request request;
        MPI_Allreduce(&i, &sum, 1, MPI_LONG, MPI_SUM, comm);
        total += sum;
        MPI_Iallreduce(&i, &sum, 1, MPI_LONG, MPI_SUM, comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        total += sum;
    }
    MPI_Comm_free(&comm);
    if (rank == 0) printf("total %s\n", total == 90 * ranks ? "right" : "wrong");
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
