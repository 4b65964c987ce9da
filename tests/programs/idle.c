/* A rank that waits: the processor time of a long wait, and the time from a message to the end of a short one.
 * Usage: idle SECONDS [VARIANT]. The ranks are on one machine, whose monotonic clock they share. Variants: recv
 * (default), any (any source), wait (MPI_Wait), barrier, test (a rank that computes between calls of MPI_Test). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define WAKES 15

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double) at.tv_sec + 1e-9 * (double) at.tv_nsec;
}

static double used(void)
{
    struct rusage all;
    getrusage(RUSAGE_SELF, &all);
    return (double) (all.ru_utime.tv_sec + all.ru_stime.tv_sec) +
           1e-6 * (double) (all.ru_utime.tv_usec + all.ru_stime.tv_usec);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

/* Waits for the time at which the other rank has sent. */
static double receive(const char *variant)
{
    double sent = 0;
    MPI_Request request;
    if (!strcmp(variant, "barrier")) {
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (!strcmp(variant, "any")) {
        MPI_Recv(&sent, 1, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (!strcmp(variant, "wait")) {
        MPI_Irecv(&sent, 1, MPI_DOUBLE, 0, 5, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(&sent, 1, MPI_DOUBLE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return sent;
}

/* The probe lets the provider write the message: it may keep short ones for a millisecond. */
static void send(const char *variant)
{
    int flag;
    double sent = now();
    if (!strcmp(variant, "barrier"))
        MPI_Barrier(MPI_COMM_WORLD);
    else
        MPI_Send(&sent, 1, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD);
    MPI_Iprobe(1, 9, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
}

/* Steps of a computation, with a call of MPI_Test after each. */
static double steps(double seconds)
{
    volatile double sum = 0;
    double count = 0, sent, end = now() + seconds;
    int done = 0;
    MPI_Request request;
    MPI_Irecv(&sent, 1, MPI_DOUBLE, 0, 5, MPI_COMM_WORLD, &request);
    while (now() < end && !done) {
        for (int i = 0; i < 20000; i++)
            sum = sum + i;
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        count++;
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return count / seconds;
}

int main(int argc, char **argv)
{
    int rank;
    double wakes[WAKES];
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    const char *variant = argc > 2 ? argv[2] : "recv";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double cpu = used(), start = now();
    if (!strcmp(variant, "test")) {
        if (rank == 1) {
            printf("steps per second %.0f\n", steps(seconds));
        } else {
            usleep((useconds_t) (1e6 * seconds + 1e5));
            send(variant);
        }
        MPI_Finalize();
        return 0;
    }
    if (rank == 0) {
        usleep((useconds_t) (1e6 * seconds));
        send(variant);
    } else {
        receive(variant);
        double share = 100 * (used() - cpu) / (now() - start);
        printf("waiting used %.2f %% of a core\n", share);
    }
    for (int i = 0; i < WAKES; i++) {
        if (rank == 0) {
            usleep(30000);
            send(variant);
        } else {
            double sent = receive(variant);
            wakes[i] = 1e6 * (now() - sent);
        }
    }
    if (rank == 1 && strcmp(variant, "barrier")) {
        qsort(wakes, WAKES, sizeof *wakes, compare);
        printf("woken after %.1f us (least %.1f, most %.1f)\n", wakes[WAKES / 2], wakes[0], wakes[WAKES - 1]);
    }
    MPI_Finalize();
    return 0;
}
