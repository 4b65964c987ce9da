// Collectives with a count for each member, scans, pairs, operations of the program, and persistent collectives, in an
// MPI program that does not know weft-coll. Rank 0 prints a digest of all results, and how many operations weft and the
// MPI library should have run.

#include "coll.h"

enum { MOST = 64 * 1024, FORMS = 3, STARTS = 2 };

// Runs an operation in its blocking, its non-blocking or its persistent form.
#define RUN(mode, form, Form, ...)                                                    \
    do {                                                                              \
        MPI_Request request;                                                          \
        if ((mode) == 0) {                                                            \
            weft++;                                                                   \
            MPI_##Form(__VA_ARGS__);                                                  \
        } else if ((mode) == 1) {                                                     \
            weft++;                                                                   \
            MPI_I##form(__VA_ARGS__, &request);                                       \
            MPI_Wait(&request, MPI_STATUS_IGNORE);                                    \
        } else {                                                                      \
            MPI_##Form##_init(__VA_ARGS__, MPI_INFO_NULL, &request);                  \
            for (int start = 0; start < STARTS; start++) {                            \
                weft++;                                                               \
                MPI_Start(&request);                                                  \
                check(request != MPI_REQUEST_NULL, "a persistent request stays");     \
                MPI_Wait(&request, MPI_STATUS_IGNORE);                                \
            }                                                                         \
            MPI_Request_free(&request);                                               \
        }                                                                             \
    } while (0)

static int in[MOST], out[MOST];

static void fill(int seed) {
    for (int i = 0; i < MOST; i++) in[i] = (rank + 1) * 1009 + i * 7 + seed, out[i] = -1;
}

// Blocks of different lengths with gaps. Some are empty.
static int lay(int *counts, int *places, int n, int me, int scale) {
    int end = 3;
    for (int i = 0; i < n; i++) {
        counts[i] = (i + me) % 3 * scale;
        places[i] = end;
        end += counts[i] + 2;
    }
    return end;
}

static void vectors(MPI_Comm comm, int mode, int scale, MPI_Datatype t, int width) {
    int me, n, counts[8], places[8], others[8], other_places[8];
    MPI_Comm_rank(comm, &me), MPI_Comm_size(comm, &n);
    int end = lay(counts, places, n, 0, scale) * width;
    fill(scale);
    RUN(mode, allgatherv, Allgatherv, in, counts[me], t, out, counts, places, t, comm);
    note(out, end * sizeof(int));
    RUN(mode, allgatherv, Allgatherv, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, counts, places, t, comm);
    note(in, end * sizeof(int));
    for (int root = 0; root < n; root++) {
        int is_root = me == root;
        fill(root);
        RUN(mode, gatherv, Gatherv, in, counts[me], t, out, is_root ? counts : NULL, is_root ? places : NULL, t, root, comm);
        note(out, end * sizeof(int));
        fill(root + 1);
        RUN(mode, gatherv, Gatherv, is_root ? MPI_IN_PLACE : in, counts[me], t, is_root ? in : NULL, counts, places, t, root, comm);
        note(in, end * sizeof(int));
        fill(root + 2);
        RUN(mode, scatterv, Scatterv, in, is_root ? counts : NULL, is_root ? places : NULL, t, out, counts[me], t, root, comm);
        note(out, end * sizeof(int));
        fill(root + 3);
        RUN(mode, scatterv, Scatterv, in, counts, places, t, is_root ? MPI_IN_PLACE : out, counts[me], t, root, comm);
        note(out, end * sizeof(int));
    }
    // Member i has (i + j) mod 3 elements for member j.
    end = lay(others, other_places, n, me, scale) * width;
    fill(scale + 1);
    RUN(mode, alltoallv, Alltoallv, in, others, other_places, t, out, others, other_places, t, comm);
    note(out, end * sizeof(int));
    RUN(mode, alltoallv, Alltoallv, MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, in, others, other_places, t, comm);
    note(in, end * sizeof(int));
    // Nothing at all.
    memset(counts, 0, sizeof(counts));
    RUN(mode, allgatherv, Allgatherv, in, 0, t, out, counts, places, t, comm);
}

static void add(void *from, void *into, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++) ((int *)into)[i] = (((int *)into)[i] % 10007 + ((int *)from)[i] % 10007) % 10007;
}

// Composes functions x -> a x + b, which does not commute. One is two numbers with a gap between them.
static void compose(void *from, void *into, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++) {
        int *first = (int *)from + i * 4, *second = (int *)into + i * 4;
        second[2] = ((long)second[0] * first[2] + second[2]) % 10007;
        second[0] = (long)second[0] * first[0] % 10007;
    }
}

static void reductions(MPI_Comm comm, int mode, int count, MPI_Datatype t, MPI_Op op, int width) {
    int me, n, counts[8], total = 0;
    MPI_Comm_rank(comm, &me), MPI_Comm_size(comm, &n);
    size_t bytes = count * width * sizeof(int);
    for (int i = 0; i < n; i++) counts[i] = (i + 1) % 3 * count, total += counts[i];
    for (int in_place = 0; in_place < 2; in_place++) {
        void *from = in_place ? MPI_IN_PLACE : in, *into = in_place ? in : out;
        fill(1);
        RUN(mode, scan, Scan, from, into, count, t, op, comm);
        note(into, bytes);
        fill(2);
        RUN(mode, exscan, Exscan, from, into, count, t, op, comm);
        note(into, me ? bytes : 0);
        fill(3);
        RUN(mode, allreduce, Allreduce, from, into, count, t, op, comm);
        note(into, bytes);
        fill(4);
        RUN(mode, reduce, Reduce, me == n - 1 ? from : in, into, count, t, op, n - 1, comm);
        note(into, me == n - 1 ? bytes : 0);
        fill(5);
        RUN(mode, reduce_scatter_block, Reduce_scatter_block, from, into, count, t, op, comm);
        note(into, bytes);
        if (total == 0) continue;
        fill(6);
        RUN(mode, reduce_scatter, Reduce_scatter, from, into, counts, t, op, comm);
        note(into, counts[me] * width * sizeof(int));
        fill(7);
        for (int i = 0; i < n; i++) counts[i] = count;
        RUN(mode, reduce_scatter, Reduce_scatter, from, into, counts, t, op, comm);
        note(into, bytes);
        for (int i = 0; i < n; i++) counts[i] = (i + 1) % 3 * count;
    }
}

#define PAIRS(Value, datatype, mode)                                                             \
    do {                                                                                         \
        struct { Value value; int index; } from[3], into[3];                                     \
        for (int op = 0; op < 2; op++) {                                                         \
            memset(into, 0, sizeof(into));                                                       \
            for (int i = 0; i < 3; i++) from[i].value = (rank * 5 + i * 3) % 4, from[i].index = rank * 10 + i; \
            RUN(mode, allreduce, Allreduce, from, into, 3, datatype, op ? MPI_MINLOC : MPI_MAXLOC, MPI_COMM_WORLD); \
            for (int i = 0; i < 3; i++) note(&into[i].index, sizeof(int)), check(into[i].value >= 0, "pair"); \
            RUN(mode, scan, Scan, from, into, 3, datatype, op ? MPI_MINLOC : MPI_MAXLOC, MPI_COMM_WORLD); \
            for (int i = 0; i < 3; i++) note(&into[i].index, sizeof(int));                       \
            RUN(mode, reduce, Reduce, from, into, 3, datatype, op ? MPI_MINLOC : MPI_MAXLOC, 0, MPI_COMM_WORLD); \
            for (int i = 0; i < 3 && rank == 0; i++) note(&into[i].index, sizeof(int));          \
        }                                                                                        \
    } while (0)

// The program frees its operation and its type while calls are under way.
static void free_early(void) {
    MPI_Op op;
    MPI_Datatype gapped;
    MPI_Request requests[2];
    MPI_Type_create_struct(2, (int[]){1, 1}, (MPI_Aint[]){0, 8}, (MPI_Datatype[]){MPI_INT, MPI_INT}, &gapped);
    MPI_Datatype part = gapped;
    MPI_Type_create_resized(part, 0, 16, &gapped), MPI_Type_free(&part), MPI_Type_commit(&gapped);
    MPI_Op_create(compose, 0, &op);
    fill(8);
    MPI_Iallreduce(in, out, 5, gapped, op, MPI_COMM_WORLD, &requests[0]), weft++;
    MPI_Iscan(in, out + 100, 5, gapped, op, MPI_COMM_WORLD, &requests[1]), weft++;
    MPI_Op_free(&op), MPI_Type_free(&gapped);
    check(op == MPI_OP_NULL, "a freed operation");
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    note(out, 200 * sizeof(int));
}

// Persistent collectives among other requests, in all completion calls. MPICH 5.0 itself fails in MPI_Testall.
static void mixed(void) {
    enum { KINDS = 6 };
    MPI_Request all[3];
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    int sum = 0, from = 0, value = 0, index, flag, some[3];
    MPI_Allreduce_init(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &all[0]);
    MPI_Recv_init(&from, 1, MPI_INT, before, 9, MPI_COMM_WORLD, &all[1]);
    MPI_Send_init(&value, 1, MPI_INT, next, 9, MPI_COMM_WORLD, &all[2]);
    for (int kind = 0; kind < KINDS; kind++) {
        value = rank + kind, sum = from = -1;
        MPI_Startall(3, all), weft++;
        if (kind == 0) MPI_Waitall(3, all, MPI_STATUSES_IGNORE);
        if (kind == 1) for (int i = 0; i < 3; i++) MPI_Waitany(3, all, &index, MPI_STATUS_IGNORE);
        if (kind == 2) for (int done = 0, count; done < 3; done += count) MPI_Waitsome(3, all, &count, some, MPI_STATUSES_IGNORE);
        if (kind == 3) for (flag = 0; !flag;) MPI_Testall(3, all, &flag, MPI_STATUSES_IGNORE);
        if (kind == 4) for (int done = 0; done < 3; done += flag) MPI_Testany(3, all, &index, &flag, MPI_STATUS_IGNORE);
        if (kind == 5) for (int i = 0; i < 3; i++) for (flag = 0; !flag;) MPI_Test(&all[i], &flag, MPI_STATUS_IGNORE);
        int expected = ranks * (ranks - 1) / 2 + ranks * kind;
        check(sum == expected, "the sum of a persistent reduction");
        check(from == before + kind, "a message beside a persistent reduction");
        MPI_Testall(3, all, &flag, MPI_STATUSES_IGNORE);
        check(flag, "inactive requests are complete");
    }
    for (int i = 0; i < 3; i++) MPI_Request_free(&all[i]);
}

// An inter-communicator, whose collectives the MPI library runs.
static void inter(void) {
    MPI_Comm half, both;
    int is_first = rank == 0, one = rank + 1, sum = 0, counts[8] = {0}, places[8] = {0}, all[8] = {0};
    MPI_Comm_split(MPI_COMM_WORLD, is_first, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, is_first, 5, &both);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, both), library++;
    int others = is_first ? ranks - 1 : 1;
    for (int i = 0; i < others; i++) counts[i] = 1, places[i] = i;
    MPI_Allgatherv(&one, 1, MPI_INT, all, counts, places, MPI_INT, both), library++;
    note(&sum, sizeof(sum)), note(all, sizeof(all));
    MPI_Comm_free(&both), MPI_Comm_free(&half);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    MPI_Datatype gapped, functions, part;
    MPI_Type_vector(2, 1, 2, MPI_INT, &part);
    MPI_Type_create_resized(part, 0, 4 * sizeof(int), &gapped), MPI_Type_commit(&gapped);
    MPI_Type_dup(gapped, &functions);
    MPI_Op chain, joined;
    MPI_Op_create(add, 1, &joined), MPI_Op_create(compose, 0, &chain);
    for (int mode = 0; mode < FORMS; mode++) {
        MPI_Comm comm = mode % 2 ? reversed : MPI_COMM_WORLD;
        vectors(comm, mode, 1, MPI_INT, 1);
        vectors(comm, mode, 2000, MPI_INT, 1);
        vectors(comm, mode, 5, gapped, 4);
        reductions(comm, mode, 3, MPI_INT, MPI_SUM, 1);
        reductions(comm, mode, 700, MPI_INT, MPI_MAX, 1);
        reductions(comm, mode, 3, MPI_INT, joined, 1);
        reductions(comm, mode, 600, functions, chain, 4);
        PAIRS(float, MPI_FLOAT_INT, mode);
        PAIRS(double, MPI_DOUBLE_INT, mode);
        PAIRS(long, MPI_LONG_INT, mode);
        PAIRS(short, MPI_SHORT_INT, mode);
        PAIRS(int, MPI_2INT, mode);
        PAIRS(long double, MPI_LONG_DOUBLE_INT, mode);
    }
    free_early();
    if (argc == 1) mixed();
    inter();
    MPI_Op_free(&joined), MPI_Op_free(&chain);
    MPI_Type_free(&part), MPI_Type_free(&gapped), MPI_Type_free(&functions);
    MPI_Comm_free(&reversed);
    printf("digest of rank %d: %016lx\n", rank, (unsigned long)digest);
    fflush(stdout);
    if (rank == 0) printf("expected: %ld collectives by weft, %ld by the MPI library\n", weft, library);
    MPI_Finalize();
    return 0;
}
