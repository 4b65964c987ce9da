/* Messages of many lengths between two ranks, and collectives over both. Every byte is checked. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check(size == 2, "2 ranks");
    for (size_t bytes = 1; bytes <= 4 << 20; bytes *= 4) {
        unsigned char *out = malloc(bytes), *in = malloc(bytes);
        for (int turn = 0; turn < 50; turn++) {
            memset(out, 16 * rank + turn, bytes);
            MPI_Sendrecv(out, (int)bytes, MPI_BYTE, 1 - rank, turn, in, (int)bytes, MPI_BYTE, 1 - rank, turn, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
            for (size_t at = 0; at < bytes; at++)
                check(in[at] == (unsigned char)(16 * (1 - rank) + turn), "a byte of a message");
        }
        free(out);
        free(in);
    }
    for (int turn = 0; turn < 1000; turn++) {
        int sum = 0, mine = turn + rank;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        check(sum == 2 * turn + 1, "a sum");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("ok\n");
    MPI_Finalize();
    return 0;
}
