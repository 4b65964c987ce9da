/* Times MPI operations between the ranks of a job, for scripts/demo.py and scripts/bench.py.
 *
 *     mpi_bench MILLISECONDS [KIND:BYTES,BYTES,...]...
 *
 * Prints one line per measurement on rank 0: kind, message size in bytes, time in microseconds. Kinds:
 *     pingpong   half of a round trip between ranks 0 and 1
 *     bandwidth  a message from rank 0 to rank 1; WINDOW messages are pending and acknowledged together
 *     allreduce  one call, sum of doubles, all ranks
 *     barrier    one call, all ranks (its size is not used)
 *     put, get   one call and its MPI_Win_flush, from rank 0 to rank 1's window, locked once
 * Received data is compared with the sent data. A difference ends the job. Every measurement takes about
 * MILLISECONDS. The default kinds are pingpong and allreduce, 8 B to 1 MiB.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (4 << 20)
enum { WINDOW = 64 };
static unsigned char out_bytes[MAX_BYTES], in_bytes[MAX_BYTES];
static double out_values[MAX_BYTES / 8], in_values[MAX_BYTES / 8];
static int rank, ranks;
/* Opened by the first put or get. */
static MPI_Win window = MPI_WIN_NULL;
static unsigned char *shared_bytes;

static void fail(const char *what, int bytes) {
    fprintf(stderr, "mpi_bench: rank %d: %s of %d bytes returned wrong data\n", rank, what, bytes);
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

static double bandwidth(int bytes, long count) {
    MPI_Request requests[WINDOW];
    long windows = (count + WINDOW - 1) / WINDOW;
    double start = MPI_Wtime();
    for (long i = 0; i < windows; i++) {
        if (rank == 0) {
            for (int at = 0; at < WINDOW; at++) MPI_Isend(out_bytes, bytes, MPI_BYTE, 1, 7, MPI_COMM_WORLD, &requests[at]);
            MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
            MPI_Recv(in_bytes, 0, MPI_BYTE, 1, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            for (int at = 0; at < WINDOW; at++) MPI_Irecv(in_bytes, bytes, MPI_BYTE, 0, 7, MPI_COMM_WORLD, &requests[at]);
            MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
            MPI_Send(out_bytes, 0, MPI_BYTE, 0, 8, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - start) * count / (windows * WINDOW);
}

static double barrier(int bytes, long count) {
    (void)bytes;
    double start = MPI_Wtime();
    for (long i = 0; i < count; i++) MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

static double allreduce(int bytes, long count) {
    double start = MPI_Wtime();
    for (long i = 0; i < count; i++) MPI_Allreduce(out_values, in_values, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

/* Rank 1 waits in a barrier, so it makes progress while rank 0 measures. */
static double remote(int bytes, long count, int puts) {
    double start = MPI_Wtime();
    for (long i = 0; i < count && rank == 0; i++) {
        if (puts)
            MPI_Put(out_bytes, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, window);
        else
            MPI_Get(in_bytes, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, window);
        MPI_Win_flush(1, window);
    }
    double spent = MPI_Wtime() - start;
    MPI_Barrier(MPI_COMM_WORLD);
    return spent;
}

static double put(int bytes, long count) { return remote(bytes, count, 1); }

static double get(int bytes, long count) { return remote(bytes, count, 0); }

static void open_window(void) {
    if (window != MPI_WIN_NULL) return;
    MPI_Win_allocate(MAX_BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared_bytes, &window);
    MPI_Win_lock_all(0, window);
}

static void close_window(void) {
    if (window == MPI_WIN_NULL) return;
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
}

static void check(const char *kind, int bytes) {
    if (strcmp(kind, "allreduce") == 0) {
        for (int i = 0; i < bytes / 8; i++)
            if (in_values[i] != (double)i * ranks + ranks * (ranks - 1) / 2) fail(kind, bytes);
        return;
    }
    int gets = strcmp(kind, "get") == 0;
    int receives = gets ? rank == 0 : rank == 1 || (rank == 0 && strcmp(kind, "pingpong") == 0);
    if (!receives || strcmp(kind, "barrier") == 0) return;
    const unsigned char *bytes_in = strcmp(kind, "put") == 0 ? shared_bytes : in_bytes;
    for (int i = 0; i < bytes; i++)
        if (bytes_in[i] != (unsigned char)(i * 31 + (1 - rank) * 7 + bytes)) fail(kind, bytes);
}

static void measure(const char *kind, double (*run)(int, long), int bytes, double budget_s) {
    for (int i = 0; i < bytes; i++) out_bytes[i] = (unsigned char)(i * 31 + rank * 7 + bytes);
    for (int i = 0; i < bytes / 8; i++) out_values[i] = i + rank;
    memset(in_bytes, 0, sizeof in_bytes);
    memset(in_values, 0, sizeof in_values);
    if (strcmp(kind, "put") == 0 || strcmp(kind, "get") == 0) open_window();
    if (strcmp(kind, "get") == 0) memcpy(shared_bytes, out_bytes, bytes);
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

static const struct {
    const char *name;
    double (*run)(int, long);
} kinds[] = {{"pingpong", pingpong}, {"bandwidth", bandwidth}, {"allreduce", allreduce}, {"barrier", barrier}, {"put", put}, {"get", get}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void usage(const char *word) {
    fprintf(stderr, "mpi_bench: `%s`: KIND:BYTES,... with pingpong, bandwidth, allreduce, barrier, put or get; at most %d bytes\n", word, MAX_BYTES);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static void measure_all(const char *word, double budget_s) {
    const char *list = strchr(word, ':');
    int at = 0;
    while (list && at < KINDS && (strlen(kinds[at].name) != (size_t)(list - word) || strncmp(kinds[at].name, word, list - word) != 0)) at++;
    if (!list || at == KINDS) {
        usage(word);
        return;
    }
    do {
        char *end;
        long bytes = strtol(list + 1, &end, 10);
        if (end == list + 1 || (*end != ',' && *end != 0) || bytes < 0 || bytes > MAX_BYTES) usage(word);
        measure(kinds[at].name, kinds[at].run, (int)bytes, budget_s);
        list = end;
    } while (*list == ',');
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
    for (int at = 2; at < argc; at++) measure_all(argv[at], budget_s);
    if (argc <= 2) {
        measure_all("pingpong:8,64,512,4096,16384,65536,262144,1048576", budget_s);
        measure_all("allreduce:8,64,512,4096,16384,65536,262144,1048576", budget_s);
    }
    close_window();
    MPI_Finalize();
    return 0;
}
