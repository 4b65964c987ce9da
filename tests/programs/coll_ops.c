// Every collective of weft-coll in many forms, in an MPI program that does not know it. Rank 0 prints a digest of all
// results, which must not depend on the library that ran the operations, and how many operations each should have run.

#include "coll.h"

enum { MOST = 40000 };

// Starts the non-blocking form if `nb` is set, and completes it, else calls the blocking form.
#define BOTH(nb, form, Form, ...)                    \
    do {                                             \
        weft++;                                      \
        if (nb) {                                    \
            MPI_Request request;                     \
            MPI_I##form(__VA_ARGS__, &request);      \
            MPI_Wait(&request, MPI_STATUS_IGNORE);   \
        } else {                                     \
            MPI_##Form(__VA_ARGS__);                 \
        }                                            \
    } while (0)

static long *in, *out;

static void fill(int me, int count) {
    for (int i = 0; i < count; i++) in[i] = (long)me * 1000003 + i, out[i] = -1;
}

// Moves data among the members of `comm` in every way.
static void move(MPI_Comm comm, int nb, int count) {
    int me, n;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &n);
    size_t block = count * sizeof(long);
    MPI_Datatype t = MPI_LONG;
    for (int root = 0; root < n; root++) {
        fill(me, count * n);
        BOTH(nb, bcast, Bcast, in, count, t, root, comm);
        check(in[count - 1] == (long)root * 1000003 + count - 1, "broadcast");
        note(in, block);
        fill(me, count * n);
        BOTH(nb, gather, Gather, in, count, t, out, count, t, root, comm);
        note(out, me == root ? n * block : 0);
        fill(me, count * n);
        BOTH(nb, scatter, Scatter, in, count, t, out, count, t, root, comm);
        note(out, block);
        fill(me, count * n);  // In place at the root.
        BOTH(nb, gather, Gather, me == root ? MPI_IN_PLACE : in + me * count, count, t, in, count, t, root, comm);
        note(in, n * block);
        fill(me, count * n);
        BOTH(nb, scatter, Scatter, in, count, t, me == root ? MPI_IN_PLACE : out, count, t, root, comm);
        note(out, me == root ? 0 : block);
    }
    fill(me, count * n);
    BOTH(nb, allgather, Allgather, in, count, t, out, count, t, comm);
    check(out[(n - 1) * count] == (long)(n - 1) * 1000003, "allgather");
    note(out, n * block);
    BOTH(nb, allgather, Allgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, count, t, comm);
    note(in, n * block);
    fill(me, count * n);
    BOTH(nb, alltoall, Alltoall, in, count, t, out, count, t, comm);
    note(out, n * block);
    BOTH(nb, alltoall, Alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, count, t, comm);
    check(memcmp(in, out, n * block) == 0, "alltoall in place");
}

// Reduces numbers of one type by one operation in every way.
static void combine(MPI_Comm comm, int nb, int count, MPI_Datatype t, MPI_Op op) {
    int me, n, size;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &n);
    MPI_Type_size(t, &size);
    static unsigned char from[MOST * 8], into[MOST * 8], *ends[2] = {from, into};
    for (int form = 0; form < 2; form++) {  // The second one is in place.
        void *send = form ? MPI_IN_PLACE : from, *recv = form ? from : into;
        for (int call = 0; call < 3; call++) {
            int elements = call == 2 ? count * n : count;
            for (int end = 0; end < 2; end++) {
                for (int i = 0; i < elements; i++) {
                    int value = (i * 7 + me * 3) % 5 + 1 - end;
                    if (t == MPI_DOUBLE) ((double *)ends[end])[i] = value;
                    else if (t == MPI_FLOAT) ((float *)ends[end])[i] = value;
                    else if (t == MPI_SHORT) ((short *)ends[end])[i] = value;
                    else if (t == MPI_UNSIGNED_CHAR) ends[end][i] = value;
                    else ((int *)ends[end])[i] = value;
                }
            }
            if (call == 0) BOTH(nb, allreduce, Allreduce, send, recv, count, t, op, comm);
            if (call == 1) BOTH(nb, reduce, Reduce, me == n - 1 ? send : from, recv, count, t, op, n - 1, comm);
            if (call == 2) BOTH(nb, reduce_scatter_block, Reduce_scatter_block, send, recv, count, t, op, comm);
            note(recv, call == 1 && me != n - 1 ? 0 : count * size);
        }
    }
}

static void add(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++) ((int *)inout)[i] += ((int *)in)[i];
}

// A call that the MPI library must run, and operations of the program, pairs and derived types, which weft runs.
static void odd_calls(MPI_Comm comm) {
    int me, n, value = 1, sum = 0;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &n);
    MPI_Op op;
    MPI_Op_create(add, 1, &op);
    MPI_Allreduce(&value, &sum, 1, MPI_INT, op, comm), weft++;
    MPI_Op_free(&op);
    struct { int value, place; } mine = {me * 5 % 3, me}, most;
    MPI_Allreduce(&mine, &most, 1, MPI_2INT, MPI_MAXLOC, comm), weft++;
    MPI_Bcast(&value, 0, MPI_INT, 0, comm), library++;
    note(&sum, sizeof sum), note(&most, sizeof most);

    // Every second number: the root and the others name different types of one signature.
    MPI_Datatype strided;
    MPI_Type_vector(50, 1, 2, MPI_LONG, &strided);
    MPI_Type_commit(&strided);
    fill(me, 200 * n);
    if (me == 0) MPI_Bcast(in, 1, strided, 0, comm), weft++;
    else MPI_Bcast(in, 50, MPI_LONG, 0, comm), weft++;
    note(in, 100 * sizeof *in);
    MPI_Request request;
    fill(me, 200 * n);
    MPI_Iallgather(in, 50, MPI_LONG, out, 1, strided, comm, &request), weft++;
    MPI_Type_free(&strided);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    check(out[0] == 0 && out[1] == -1 && out[2] == 1, "allgather into every second number");
    note(out, 99 * n * sizeof *out);
}

// Non-blocking collectives among messages, completed by each completion call.
static void mix(MPI_Comm comm, int how) {
    int me, n, got = -1, index, found, flag = 0;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &n);
    MPI_Request all[4];
    MPI_Status statuses[4];
    int indices[4];
    long mine = me + 1, sum = 0;
    MPI_Irecv(&got, 1, MPI_INT, (me + n - 1) % n, how, comm, &all[0]);
    MPI_Ibarrier(comm, &all[1]), weft++;
    MPI_Iallreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, comm, &all[2]), weft++;
    all[3] = MPI_REQUEST_NULL;
    MPI_Send(&me, 1, MPI_INT, (me + 1) % n, how, comm);
    switch (how) {
    case 0: MPI_Waitall(4, all, MPI_STATUSES_IGNORE); break;
    case 1: MPI_Waitall(4, all, statuses); break;
    case 2: for (int i = 0; i < 3; i++) MPI_Wait(&all[2 - i], &statuses[0]); break;
    case 3: do MPI_Waitany(4, all, &index, MPI_STATUS_IGNORE); while (index != MPI_UNDEFINED); break;
    case 4: do MPI_Waitsome(4, all, &found, indices, statuses); while (found != MPI_UNDEFINED); break;
    case 5: while (!flag) MPI_Testall(4, all, &flag, statuses); break;
    case 6: do MPI_Testany(4, all, &index, &flag, statuses); while (!flag || index != MPI_UNDEFINED); break;
    case 7: do MPI_Testsome(4, all, &found, indices, MPI_STATUSES_IGNORE); while (found != MPI_UNDEFINED); break;
    case 8: for (int i = 0; i < 3; i++) for (flag = 0; !flag;) MPI_Test(&all[i], &flag, MPI_STATUS_IGNORE); break;
    case 9:
        for (int i = 1; i < 3; i++) for (flag = 0; !flag;) MPI_Request_get_status(all[i], &flag, &statuses[0]);
        MPI_Waitall(4, all, statuses);
    }
    for (int i = 0; i < 4; i++) check(all[i] == MPI_REQUEST_NULL, "the request is freed");
    check(got == (me + n - 1) % n && sum == (long)n * (n + 1) / 2, "messages and collectives");
}

// Twice as many operations at a time as the provider takes.
static void many(MPI_Comm comm) {
    enum { COUNT = 600 };
    static long from[COUNT], into[COUNT];
    static MPI_Request all[COUNT];
    for (int i = 0; i < COUNT; i++) {
        from[i] = rank + i;
        MPI_Iallreduce(&from[i], &into[i], 1, MPI_LONG, MPI_MAX, comm, &all[i]), weft++;
    }
    MPI_Waitall(COUNT, all, MPI_STATUSES_IGNORE);
    for (int i = 0; i < COUNT; i++) check(into[i] == ranks - 1 + i, "many operations");
}

// A long message that needs the sender's progress while the sender is in a barrier.
static void sender_in_barrier(void) {
    enum { LONG = 4 << 20 };
    char *buffer = calloc(1, LONG);
    MPI_Request request;
    if (rank == 0) {
        MPI_Isend(buffer, LONG, MPI_CHAR, 1, 99, MPI_COMM_WORLD, &request);
        MPI_Barrier(MPI_COMM_WORLD), weft++;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        if (rank == 1) MPI_Recv(buffer, LONG, MPI_CHAR, 0, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD), weft++;
    }
    free(buffer);
}

static void communicators(void) {
    MPI_Comm comm, other;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm);  // The order of ranks is reversed.
    move(comm, 1, 3), combine(comm, 0, 3, MPI_INT, MPI_SUM);
    MPI_Comm_dup(comm, &other);
    MPI_Request request[2];
    MPI_Ibarrier(comm, &request[0]), MPI_Ibarrier(other, &request[1]), weft += 2;
    MPI_Comm_free(&comm);  // With an operation under way.
    MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 20; i++) {
        MPI_Comm_dup(other, &comm);
        MPI_Barrier(comm), weft++;
        MPI_Comm_free(&comm);
    }
    MPI_Comm_free(&other);
    // No group yet: the first non-blocking collective is the MPI library's.
    MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request[0]);
    MPI_Wait(&request[0], MPI_STATUS_IGNORE);
    MPI_Ibarrier(comm, &request[0]), library++;
    MPI_Wait(&request[0], MPI_STATUS_IGNORE);
    MPI_Barrier(comm), weft++;
    MPI_Ibarrier(comm, &request[0]), weft++;
    MPI_Wait(&request[0], MPI_STATUS_IGNORE);
    MPI_Comm_free(&comm);
    MPI_Barrier(MPI_COMM_SELF), library++;
    // An inter-communicator of rank 0 and the others.
    MPI_Comm_split(MPI_COMM_WORLD, rank > 0, rank, &comm);
    MPI_Intercomm_create(comm, 0, MPI_COMM_WORLD, rank == 0, 5, &other);
    MPI_Barrier(other), library++;
    MPI_Comm_free(&other);
    MPI_Comm_free(&comm);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    in = malloc(MOST * ranks * sizeof *in), out = malloc(MOST * ranks * sizeof *out);
    static const int counts[] = {1, 7, 1000, MOST / 4};
    for (int nb = 0; nb < 2; nb++) {
        for (int i = 0; i < 4; i++) move(MPI_COMM_WORLD, nb, counts[i]);
        for (int i = 0; i < 3; i++) {
            combine(MPI_COMM_WORLD, nb, counts[i], MPI_INT, MPI_SUM);
            combine(MPI_COMM_WORLD, nb, counts[i], MPI_DOUBLE, MPI_PROD);
            combine(MPI_COMM_WORLD, nb, counts[i], MPI_FLOAT, MPI_MIN);
            combine(MPI_COMM_WORLD, nb, counts[i], MPI_SHORT, MPI_MAX);
            combine(MPI_COMM_WORLD, nb, counts[i], MPI_INT, MPI_BXOR);
            combine(MPI_COMM_WORLD, nb, counts[i], MPI_INT, MPI_LAND);
            combine(MPI_COMM_WORLD, nb, counts[i], MPI_UNSIGNED_CHAR, MPI_BOR);
        }
    }
    for (int how = 0; how < 10; how++) mix(MPI_COMM_WORLD, how);
    odd_calls(MPI_COMM_WORLD);
    many(MPI_COMM_WORLD);
    sender_in_barrier();
    communicators();
    uint64_t own = digest;
    for (int other = 0; other < ranks; other++) {
        digest = own;
        MPI_Bcast(&digest, sizeof digest, MPI_BYTE, other, MPI_COMM_WORLD), weft++;
        if (rank == 0) printf("digest of rank %d: %016lx\n", other, (unsigned long)digest);
    }
    if (rank == 0) printf("expected: %ld collectives by weft, %ld by the MPI library\n", weft, library);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
