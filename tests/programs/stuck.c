/* A job that does not end, for one reason of a list. Usage: stuck REASON. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORD(text) (!strcmp(why, text))

/* A rank that makes no call of MPI. */
static void compute(void)
{
    for (volatile unsigned long n = 0;; n++) {
        if (n % 100000 == 0)
            usleep(100);
    }
}

int main(int argc, char **argv)
{
    const char *why = argc > 1 ? argv[1] : "";
    int rank, size, x = 0, word;
    static char big[1 << 20];
    MPI_Comm twin;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    /* All pairs are connected. */
    for (int other = 0; other < size; other++)
        MPI_Sendrecv(&x, 1, MPI_INT, other, 0, &word, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("ready\n");
        fflush(stdout);
    }
    if (WORD("missing send")) {
        if (rank == 0)
            MPI_Recv(&x, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (WORD("wrong tag")) {
        if (rank == 0)
            MPI_Recv(&x, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else if (rank == 1)
            MPI_Send(&x, 1, MPI_INT, 0, 6, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (WORD("wrong communicator")) {
        if (rank == 0)
            MPI_Recv(&x, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else if (rank == 1)
            MPI_Send(&x, 1, MPI_INT, 0, 5, twin);
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (WORD("crossed order")) {
        /* Both send first, and the messages are too long to leave without a receive. */
        if (rank < 2) {
            MPI_Ssend(big, sizeof big, MPI_CHAR, 1 - rank, 7, MPI_COMM_WORLD);
            MPI_Recv(big, sizeof big, MPI_CHAR, 1 - rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (WORD("skipped collective")) {
        if (rank == size - 1)
            MPI_Recv(&x, 1, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Barrier(MPI_COMM_WORLD);
    } else if (WORD("stopped")) {
        if (rank == 1)
            raise(SIGSTOP);
        else if (rank == 0)
            MPI_Recv(&x, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            compute();
    } else if (WORD("ended")) {
        /* The launcher would end the job, so its server on this host is stopped first, once it has passed the
         * line on. */
        if (rank == 1) {
            usleep(300000);
            kill(getppid(), SIGSTOP);
            raise(SIGKILL);
        }
        if (rank == 0)
            MPI_Recv(&x, 1, MPI_INT, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        compute();
    } else if (WORD("ring")) {
        MPI_Recv(&x, 1, MPI_INT, last, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&x, 1, MPI_INT, next, 5, MPI_COMM_WORLD);
    } else if (WORD("no receive")) {
        if (rank == 0)
            MPI_Ssend(big, sizeof big, MPI_CHAR, 1, 7, MPI_COMM_WORLD);
        else if (rank == 1)
            MPI_Recv(&x, 1, MPI_INT, 2, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            compute();
    } else if (WORD("remote access")) {
        MPI_Win window;
        static long memory[1 << 16], result[1 << 16];
        MPI_Win_create(memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            MPI_Win_lock(MPI_LOCK_SHARED, 1, MPI_MODE_NOCHECK, window);
            MPI_Get(result, sizeof result, MPI_CHAR, 1, 0, sizeof result, MPI_CHAR, window);
            MPI_Win_unlock(1, window);
        }
        compute();
    } else if (WORD("any source")) {
        MPI_Recv(&x, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (WORD("computes")) {
        if (rank == 0)
            MPI_Recv(&x, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        compute();
    } else if (WORD("healthy")) {
        for (;;)
            MPI_Sendrecv(&x, 1, MPI_INT, next, 0, &word, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
