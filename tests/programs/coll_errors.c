// Wrong calls end with the error class of the MPI standard, write nothing behind a buffer, and leave the communicator
// usable: after each, a right reduction has the right result. Rank 0 prints how many things were not as they should be.

#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 4096, LONG_BLOCK = 20, SHORT_BLOCK = 10 };

static int rank, ranks, wrong;
static int from[ROOM], into[ROOM];

// The class of an error code.
static int class_of(int code) {
    int class;
    MPI_Error_class(code, &class);
    return class;
}

static void clear(void) {
    for (int i = 0; i < ROOM; i++) from[i] = rank, into[i] = -1;
}

static void expect(const char *call, int code, int class) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (class_of(code) == class) return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: class %d in place of %d: %s\n", rank, call, class_of(code), class, text);
    wrong++;
}

// Any error, or none, is right: the standard does not say which member notices a mismatch.
static void any(int code) { (void)code; }

static void untouched(const char *call, int words) {
    for (int i = words; i < ROOM; i++) {
        if (into[i] == -1) continue;
        fprintf(stderr, "rank %d: %s: word %d behind the result is written\n", rank, call, i);
        wrong++;
        return;
    }
}

// The communicator still works.
static void sound(const char *after) {
    int one = 1, sum = 0, code = MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (code == MPI_SUCCESS && sum == ranks) return;
    fprintf(stderr, "rank %d: no sum after %s\n", rank, after);
    wrong++;
}

static int waited(int code, MPI_Request *request) {
    return code == MPI_SUCCESS ? MPI_Wait(request, MPI_STATUS_IGNORE) : code;
}

// Blocks whose lengths differ at one member, or between members. Root is rank 0.
static void lengths(MPI_Comm comm) {
    const int block = rank == 0 ? LONG_BLOCK : SHORT_BLOCK, other = rank == 0 ? SHORT_BLOCK : LONG_BLOCK;
    const int at_root = rank == 0 ? MPI_ERR_TRUNCATE : MPI_SUCCESS, at_others = rank ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
    MPI_Request request;
    clear();
    expect("allgather", MPI_Allgather(from, LONG_BLOCK, MPI_INT, into, SHORT_BLOCK, MPI_INT, comm), MPI_ERR_TRUNCATE);
    untouched("allgather", 0), sound("allgather");
    int code = MPI_Iallgather(from, LONG_BLOCK, MPI_INT, into, SHORT_BLOCK, MPI_INT, comm, &request);
    expect("iallgather", waited(code, &request), MPI_ERR_TRUNCATE);
    untouched("iallgather", 0), sound("iallgather");
    expect("alltoall", MPI_Alltoall(from, LONG_BLOCK, MPI_INT, into, SHORT_BLOCK, MPI_INT, comm), MPI_ERR_TRUNCATE);
    untouched("alltoall", 0), sound("alltoall");

    expect("bcast", MPI_Bcast(rank ? into : from, block, MPI_INT, 0, comm), at_others);
    untouched("bcast", 0), sound("bcast");
    code = MPI_Ibcast(rank ? into : from, block, MPI_INT, 0, comm, &request);
    expect("ibcast", waited(code, &request), at_others);
    untouched("ibcast", 0), sound("ibcast");
    expect("scatter", MPI_Scatter(from, LONG_BLOCK, MPI_INT, into, block, MPI_INT, 0, comm), at_others);
    if (rank) untouched("scatter", 0);
    sound("scatter");
    clear();
    expect("gather", MPI_Gather(from, LONG_BLOCK, MPI_INT, into, SHORT_BLOCK, MPI_INT, 0, comm), at_root);
    untouched("gather", 0), sound("gather");
    expect("gather of others", MPI_Gather(from, other, MPI_INT, into, SHORT_BLOCK, MPI_INT, 0, comm), at_root);
    untouched("gather of others", 0), sound("gather of others");

    expect("reduce", MPI_Reduce(from, into, other, MPI_INT, MPI_SUM, 0, comm), at_root);
    untouched("reduce", 0), sound("reduce");
    code = MPI_Allreduce(from, into, other, MPI_INT, MPI_SUM, comm);
    if (rank == 0) expect("allreduce", code, MPI_ERR_TRUNCATE);
    untouched("allreduce", 0), sound("allreduce");
    any(MPI_Reduce_scatter_block(from, into, other, MPI_INT, MPI_SUM, comm));
    untouched("reduce_scatter_block", 0), sound("reduce_scatter_block");
}

// Arguments that no call may have, at all members.
static void arguments(MPI_Comm comm, int is_mpich) {
    MPI_Datatype unready;
    MPI_Type_vector(2, 1, 2, MPI_INT, &unready);
    clear();
    expect("null", MPI_Allreduce(NULL, into, 1, MPI_INT, MPI_SUM, comm), MPI_ERR_BUFFER);
    expect("null result", MPI_Allgather(from, 1, MPI_INT, NULL, 1, MPI_INT, comm), MPI_ERR_BUFFER);
    expect("null broadcast", MPI_Bcast(NULL, 1, MPI_INT, 0, comm), MPI_ERR_BUFFER);
    expect("count", MPI_Allreduce(from, into, -1, MPI_INT, MPI_SUM, comm), MPI_ERR_COUNT);
    expect("broadcast count", MPI_Bcast(from, -1, MPI_INT, 0, comm), MPI_ERR_COUNT);
    expect("root", MPI_Bcast(from, 1, MPI_INT, ranks, comm), MPI_ERR_ROOT);
    expect("type", MPI_Bcast(from, 1, MPI_DATATYPE_NULL, 0, comm), MPI_ERR_TYPE);
    expect("uncommitted type", MPI_Bcast(from, 1, unready, 0, comm), MPI_ERR_TYPE);
    expect("operation", MPI_Allreduce(from, into, 1, MPI_INT, MPI_OP_NULL, comm), MPI_ERR_OP);
    expect("type of operation", MPI_Allreduce(from, into, 1, MPI_FLOAT, MPI_BAND, comm), MPI_ERR_OP);
    int aliased = MPI_Allreduce(into, into, 1, MPI_INT, MPI_SUM, comm);
    expect("alias", aliased, is_mpich ? MPI_ERR_BUFFER : MPI_SUCCESS);
    into[0] = -1;
    if (is_mpich) {  // Open MPI has MPI_ERR_ARG here.
        int code = MPI_Allreduce(from, MPI_IN_PLACE, 1, MPI_INT, MPI_SUM, comm);
        expect("result in place", code, MPI_ERR_BUFFER);
    }
    MPI_Type_free(&unready);
    untouched("arguments", 0), sound("arguments");
}

// The text of an error names the call, the communicator, the rank and the cause.
static void texts(MPI_Comm comm) {
    char text[MPI_MAX_ERROR_STRING], end[64];
    int length, code = MPI_Allgather(from, LONG_BLOCK, MPI_INT, into, SHORT_BLOCK, MPI_INT, comm);
    MPI_Error_string(code, text, &length);
    snprintf(end, sizeof end, "MPI_Allgather on MPI_COMM_WORLD, rank %d: ", rank);
    if (!strstr(text, end) || !strstr(text, "80 bytes")) fprintf(stderr, "the text is: %s\n", text), wrong++;
    sound("texts");
}

int main(int argc, char **argv) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Get_library_version(version, &length);
    lengths(MPI_COMM_WORLD);
    arguments(MPI_COMM_WORLD, !strstr(version, "Open MPI"));
    texts(MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%d errors were not as expected\n", sum);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
