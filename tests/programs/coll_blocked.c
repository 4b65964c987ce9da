// Each rank starts a collective. Rank 0 then blocks in a call of MPI that ends only after rank 1 has waited for the
// collective, which therefore progresses in rank 0 while it is blocked. Prints the name of each kind of call that has
// ended.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 4, BYTES = 160000, MOST_RANKS = 8 };

static const char *const kinds[] = {"recv", "ssend", "probe", "wait", "fence", "left", "dup", "own"};
enum { RECV, SSEND, PROBE, WAIT, FENCE, LEFT, DUP, OWN, KINDS };

static int rank, ranks, word;
static char *in, *out, *results;
static int left[BYTES / 4];
static MPI_Win window;

static void start(int which, MPI_Request *request) {
    switch (which % 3) {
    case 0: MPI_Ialltoall(in, BYTES, MPI_BYTE, out, BYTES, MPI_BYTE, MPI_COMM_WORLD, request); break;
    case 1: MPI_Iallreduce(in, out, BYTES / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD, request); break;
    case 2: MPI_Ibcast(in, BYTES, MPI_BYTE, ranks - 1, MPI_COMM_WORLD, request); break;
    }
}

// The call in which rank 0 blocks.
static void block(int kind) {
    MPI_Request other;
    switch (kind) {
    case SSEND: MPI_Ssend(&word, 1, MPI_INT, 1, kind, MPI_COMM_WORLD); return;
    case PROBE: MPI_Probe(1, kind, MPI_COMM_WORLD, MPI_STATUS_IGNORE); break;
    case WAIT:
        MPI_Irecv(&word, 1, MPI_INT, 1, kind, MPI_COMM_WORLD, &other);
        MPI_Wait(&other, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Recv(&word, 1, MPI_INT, 1, kind, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// The part of rank 1, after its wait.
static void release(int kind) {
    if (kind == SSEND) MPI_Recv(&word, 1, MPI_INT, 0, kind, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else MPI_Send(&word, 1, MPI_INT, 0, kind, MPI_COMM_WORLD);
}

// Starts a collective that the profiling library does not run: blocks of own types (MPI_Alltoallw).
static void left_to_the_library(MPI_Request *request) {
    static int counts[MOST_RANKS], places[MOST_RANKS];
    static MPI_Datatype types[MOST_RANKS];
    for (int i = 0; i < ranks; i++) counts[i] = BYTES / 4 / ranks, places[i] = i * counts[i] * 4, types[i] = MPI_INT;
    MPI_Ialltoallw(in, counts, places, types, left, counts, places, types, MPI_COMM_WORLD, request);
}

// A call that all ranks make, and that the profiling library does not run.
static void together(int kind) {
    MPI_Comm copy;
    MPI_Request copied;
    switch (kind) {
    case FENCE: MPI_Win_fence(0, window); break;
    case LEFT: left_to_the_library(&copied), MPI_Wait(&copied, MPI_STATUS_IGNORE); break;
    case DUP:
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        MPI_Comm_free(&copy);
        break;
    }
}

// A non-blocking collective that the profiling library leaves to the MPI library progresses in rank 0 while that rank
// waits for one of the profiling library. The other ranks wait for it first.
static void wait_in_two_orders(int round) {
    MPI_Request own, request;
    left_to_the_library(&own);
    if (rank != 0) MPI_Wait(&own, MPI_STATUS_IGNORE);
    start(round, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (rank == 0) MPI_Wait(&own, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    in = calloc(ranks, BYTES), out = calloc(ranks, BYTES), results = calloc(1, BYTES);
    MPI_Win_create(&word, sizeof word, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    for (int kind = 0; kind < KINDS; kind++) {
        for (int round = 0; round < ROUNDS; round++) {
            MPI_Request request;
            if (kind == OWN) {
                wait_in_two_orders(round);
                continue;
            }
            start(kind + round, &request);
            if (rank == 0 && kind < FENCE) block(kind);
            if (rank == 0 && kind >= FENCE) together(kind);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            if (rank == 1 && kind < FENCE) release(kind);
            if (rank != 0 && kind >= FENCE) together(kind);
        }
        if (rank == 0) {
            printf("%s ended\n", kinds[kind]);
            fflush(stdout);
        }
    }
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
