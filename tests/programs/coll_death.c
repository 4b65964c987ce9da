// Rank 1 kills itself among reductions. The other ranks write the error that they get, and how long they waited, to
// files DIRECTORY/rank-N: a launcher may lose the output of ranks that end as it notices a death.
//
//     coll_death DIRECTORY blocking|non-blocking

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, ranks, nonblocking = argc > 2 && !strcmp(argv[2], "non-blocking");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0;; i++) {
        if (rank == 1 && i == 500) kill(getpid(), SIGKILL);
        long one = 1, sum = 0;
        double start = MPI_Wtime();
        int code, class;
        if (nonblocking) {
            MPI_Request request;
            code = MPI_Iallreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &request);
            if (code == MPI_SUCCESS) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            code = MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        }
        if (code == MPI_SUCCESS && sum == ranks) continue;
        MPI_Error_class(code, &class);
        int right = class == MPI_ERR_OTHER && MPI_Wtime() - start < 5;
        char name[4096];
        snprintf(name, sizeof name, "%s/rank-%d", argv[1], rank);
        FILE *file = fopen(name, "w");
        if (!file) abort();
        fprintf(file, "%s after %.3f s in round %d\n", right ? "MPI_ERR_OTHER" : "wrong", MPI_Wtime() - start, i);
        fclose(file);
        _exit(0);
    }
}
