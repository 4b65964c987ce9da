// Rank 1 kills itself among reductions. The other ranks write the error that they get, and how long after the death it
// came, to files DIRECTORY/rank-N: a launcher may lose the output of ranks that end as it notices a death. After an
// error a rank calls nothing more in the communicator of all ranks. A communicator without the dead rank works.
//
//     coll_death DIRECTORY blocking|non-blocking [COUNT [ROUNDS]]

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, ranks, nonblocking = argc > 2 && !strcmp(argv[2], "non-blocking");
    int count = argc > 3 ? atoi(argv[3]) : 1, rounds = argc > 4 ? atoi(argv[4]) : 500;
    char name[4096];
    MPI_Comm others;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 1 ? MPI_UNDEFINED : 0, rank, &others);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    long *one = malloc(count * sizeof *one), *sum = malloc(count * sizeof *sum);
    for (int i = 0; i < count; i++) one[i] = 1;
    for (int i = 0;; i++) {
        if (rank == 1 && i == rounds) {
            snprintf(name, sizeof name, "%s/death", argv[1]);
            FILE *file = fopen(name, "w");
            if (!file) abort();
            fprintf(file, "%.6f\n", MPI_Wtime());
            fclose(file);
            kill(getpid(), SIGKILL);
        }
        sum[count - 1] = 0;
        int code, class;
        if (nonblocking) {
            MPI_Request request;
            code = MPI_Iallreduce(one, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &request);
            if (code == MPI_SUCCESS) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            code = MPI_Allreduce(one, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        }
        if (code == MPI_SUCCESS && sum[count - 1] == ranks) continue;
        double death = 0, now = MPI_Wtime();
        snprintf(name, sizeof name, "%s/death", argv[1]);
        FILE *file = fopen(name, "r");
        if (!file || fscanf(file, "%lf", &death) != 1) abort();
        fclose(file);
        MPI_Error_class(code, &class);
        int right = code != MPI_SUCCESS && class == MPI_ERR_OTHER && now - death < 1.5, mine = 1, all = 0;
        // The others may not have noticed the death yet.
        MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, others);
        snprintf(name, sizeof name, "%s/rank-%d", argv[1], rank);
        file = fopen(name, "w");
        if (!file) abort();
        fprintf(file, "%s after %.3f s in round %d\n", right && all == ranks - 1 ? "MPI_ERR_OTHER" : "wrong", now - death, i);
        fclose(file);
        _exit(0);
    }
}
