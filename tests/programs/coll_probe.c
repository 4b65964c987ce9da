// A message that was sent before a collective is found after it by one MPI_Iprobe. Rank 0 sends it to the last rank,
// which comes late: its collective ends at once, without a chance for the MPI library to notice the message.

#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

enum { ROUNDS = 40, KINDS = 7 };

int main(int argc, char **argv) {
    int rank, ranks, missed = 0, found, value = 7;
    static long from[64], into[64];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int round = 0; round < ROUNDS * KINDS; round++) {
        MPI_Request request;
        if (rank == 0) MPI_Send(&value, 1, MPI_INT, ranks - 1, round, MPI_COMM_WORLD);
        else usleep(500);
        switch (round % KINDS) {
        case 0: MPI_Barrier(MPI_COMM_WORLD); break;
        case 1: MPI_Allreduce(from, into, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD); break;
        case 2: MPI_Bcast(from, 1, MPI_LONG, 0, MPI_COMM_WORLD); break;
        case 3: MPI_Allgather(from, 1, MPI_LONG, into, 1, MPI_LONG, MPI_COMM_WORLD); break;
        case 4: MPI_Alltoall(from, 1, MPI_LONG, into, 1, MPI_LONG, MPI_COMM_WORLD); break;
        case 5: MPI_Reduce(from, into, 1, MPI_LONG, MPI_SUM, ranks - 1, MPI_COMM_WORLD); break;
        default:
            MPI_Ibarrier(MPI_COMM_WORLD, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        if (rank == ranks - 1) {
            MPI_Iprobe(0, round, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
            missed += !found;
            MPI_Recv(&value, 1, MPI_INT, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    if (rank == ranks - 1) printf("missed %d of %d messages\n", missed, ROUNDS * KINDS);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
