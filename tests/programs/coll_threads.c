// Threads that run collectives at the same time, each on communicators of its own, some of which they make meanwhile.

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, ROUNDS = 200 };

static MPI_Comm base[THREADS];
static int rank, ranks;

static void *run(void *argument) {
    long thread = (long)argument, wrong = 0;
    MPI_Comm comm = base[thread];
    for (int i = 0; i < ROUNDS; i++) {
        long own = rank + thread + i, sum = 0, most = 0;
        MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, comm);
        wrong += sum != ranks * (thread + i) + (long)ranks * (ranks - 1) / 2;
        MPI_Request requests[3];
        int got = -1;
        MPI_Irecv(&got, 1, MPI_INT, (rank + ranks - 1) % ranks, 0, comm, &requests[0]);
        MPI_Ibarrier(comm, &requests[1]);
        MPI_Iallreduce(&own, &most, 1, MPI_LONG, MPI_MAX, comm, &requests[2]);
        MPI_Send(&rank, 1, MPI_INT, (rank + 1) % ranks, 0, comm);
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
        wrong += got != (rank + ranks - 1) % ranks || most != ranks - 1 + thread + i;
        if (i % 20 == 0) {
            MPI_Comm copy;
            MPI_Comm_dup(comm, &copy);
            MPI_Bcast(&own, 1, MPI_LONG, 0, copy);
            wrong += own != thread + i;
            MPI_Comm_free(&copy);
        }
    }
    return (void *)wrong;
}

int main(int argc, char **argv) {
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &base[i]);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, run, (void *)i);
    long wrong = level != MPI_THREAD_MULTIPLE;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    for (int i = 0; i < THREADS; i++) MPI_Comm_free(&base[i]);
    if (wrong) fprintf(stderr, "rank %d: %ld wrong results\n", rank, wrong);
    MPI_Finalize();
    return wrong != 0;
}
