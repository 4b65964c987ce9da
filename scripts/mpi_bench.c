/* Ping-pong and allreduce between the ranks of an MPI job, for scripts/demo.py.
 *
 * Prints one line per measurement on rank 0: kind, message size in bytes, time in microseconds. The time is the
 * half round trip for "pingpong" (ranks 0 and 1) and the time of one call for "allreduce" (sum of doubles, all
 * ranks). What is received is compared with what was sent; a difference ends the job. Every measurement runs for
 * about so many milliseconds as the only argument says.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (1 << 20)
static const int sizes[] = {8, 64, 512, 4096, 16384, 65536, 262144, MAX_BYTES};
enum { SIZES = sizeof sizes / sizeof sizes[0] };
static unsigned char out_bytes[MAX_BYTES], in_bytes[MAX_BYTES];
static double out_values[MAX_BYTES / 8], in_values[MAX_BYTES / 8];
static int rank, ranks;

static void fail(const char *what, int bytes) {
    fprintf(stderr, "mpi_bench: rank %d: %s of %d bytes brought wrong data\n", rank, what, bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static double pingpong(int bytes, long count) {
    double start = MPI_Wtime();
    for (long i = 0; i < count; i++) {
        if (rank == 0) {
            MPI_Send(out_bytes, bytes, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
            MPI_Recv(in_bytes, bytes, MPI_BYTE, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(in_bytes, bytes, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out_bytes, bytes, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - start) / 2;
}

static double allreduce(int bytes, long count) {
    double start = MPI_Wtime();
    for (long i = 0; i < count; i++) MPI_Allreduce(out_values, in_values, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

static void check(const char *kind, int bytes) {
    if (kind[0] == 'p') {
        for (int i = 0; rank < 2 && i < bytes; i++)
            if (in_bytes[i] != (unsigned char)(i * 31 + (1 - rank) * 7 + bytes)) fail(kind, bytes);
    } else {
        for (int i = 0; i < bytes / 8; i++)
            if (in_values[i] != (double)i * ranks + ranks * (ranks - 1) / 2) fail(kind, bytes);
    }
}

static void measure(const char *kind, double (*run)(int, long), int bytes, double budget_s) {
    for (int i = 0; i < bytes; i++) out_bytes[i] = (unsigned char)(i * 31 + rank * 7 + bytes);
    for (int i = 0; i < bytes / 8; i++) out_values[i] = i + rank;
    memset(in_bytes, 0, sizeof in_bytes);
    memset(in_values, 0, sizeof in_values);
    MPI_Barrier(MPI_COMM_WORLD);
    run(bytes, 1);
    check(kind, bytes);
    long count = 20;
    double once = run(bytes, count) / count;
    if (rank == 0) {
        count = once > 0 ? (long)(budget_s / (once * 2)) : 1000;
        count = count < 20 ? 20 : count > 1000000 ? 1000000 : count;
    }
    MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double us = run(bytes, count) / count * 1e6;
    check(kind, bytes);
    if (rank == 0) printf("%s %d %.4f\n", kind, bytes, us);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double budget_s = (argc > 1 ? atof(argv[1]) : 100) / 1000;
    if (ranks < 2) {
        fprintf(stderr, "mpi_bench: needs two ranks or more\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int i = 0; i < SIZES; i++) measure("pingpong", pingpong, sizes[i], budget_s);
    for (int i = 0; i < SIZES; i++) measure("allreduce", allreduce, sizes[i], budget_s);
    MPI_Finalize();
    return 0;
}
