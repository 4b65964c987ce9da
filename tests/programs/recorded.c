/* Messages, waits, tests and collectives whose recording tests/test_record.py checks. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, ranks, number = 0, sum = 0, flag = 0, index;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

    /* Around a ring, with both ends of the loop in a communicator of reversed ranks. */
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    MPI_Request both[2];
    static char from[100000], into[100000];
    MPI_Irecv(into, sizeof into, MPI_CHAR, ranks - 1 - before, 7, reversed, &both[0]);
    MPI_Isend(from, sizeof from, MPI_CHAR, ranks - 1 - next, 7, reversed, &both[1]);
    usleep(20000);
    MPI_Waitall(2, both, MPI_STATUSES_IGNORE);

    /* Messages of any source and tag, awaited in three ways. */
    if (rank == 0) {
        MPI_Request any[2];
        MPI_Recv(&number, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, reversed, MPI_STATUS_IGNORE);
        MPI_Irecv(&number, 1, MPI_INT, MPI_ANY_SOURCE, 5, reversed, &any[0]);
        any[1] = MPI_REQUEST_NULL;
        MPI_Waitany(2, any, &index, MPI_STATUS_IGNORE);
        MPI_Irecv(&number, 1, MPI_INT, MPI_ANY_SOURCE, 6, reversed, &any[0]);
        while (!flag)
            MPI_Test(&any[0], &flag, MPI_STATUS_IGNORE);
    } else {
        int to_root = rank == 1 ? 3 : 0;
        for (int at = 0; at < to_root; at++) {
            usleep(10000);
            MPI_Send(&rank, 1, MPI_INT, ranks - 1, 4 + at, reversed);
        }
    }
    MPI_Sendrecv(&rank, 1, MPI_INT, next, 1, &number, 1, MPI_INT, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, reversed);
    MPI_Request barrier;
    MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
    MPI_Wait(&barrier, MPI_STATUS_IGNORE);

    /* A ring of persistent requests, which are started twice. */
    MPI_Request kept[2];
    MPI_Recv_init(&number, 1, MPI_INT, before, 8, MPI_COMM_WORLD, &kept[0]);
    MPI_Send_init(&rank, 1, MPI_INT, next, 8, MPI_COMM_WORLD, &kept[1]);
    for (int round = 0; round < 2; round++) {
        MPI_Startall(2, kept);
        MPI_Waitall(2, kept, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&kept[0]);
    MPI_Request_free(&kept[1]);

    /* A collective with a count for each member, which is empty for one, and calls that are not recorded. */
    static int values[64], all[64 * 64], counts[64], places[64];
    for (int at = 0; at < ranks; at++) {
        counts[at] = at;
        places[at] = 64 * at;
    }
    MPI_Allgatherv(values, rank, MPI_INT, all, counts, places, MPI_INT, MPI_COMM_WORLD);
    MPI_Scan(&rank, &number, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Win window;
    MPI_Win_create(all, sizeof all, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_free(&window);
    MPI_Comm_free(&reversed);
    if (rank == 0)
        printf("sum %d\n", sum);
    MPI_Finalize();
    return 0;
}
