// A profiling tool beside weft-coll: it counts the calls of the program, and prints the numbers at the end. With
// TOOL=direct it looks up the functions of the MPI library itself, as some tools do, in place of calling PMPI_ names.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long allreduces, iallreduces, waits, dups;

// The function that the tool calls for a call of the program.
#define NEXT(name) ((__typeof__(&P##name))next(#name, (void *)P##name))
static void *next(const char *name, void *usual) {
    const char *how = getenv("TOOL");
    char profiled[64];
    snprintf(profiled, sizeof profiled, "P%s", name);
    return how && !strcmp(how, "direct") ? dlsym(RTLD_NEXT, profiled) : usual;
}

int MPI_Init(int *argc, char ***argv) { return NEXT(MPI_Init)(argc, argv); }

int MPI_Allreduce(const void *from, void *into, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    allreduces++;
    return NEXT(MPI_Allreduce)(from, into, count, type, op, comm);
}

int MPI_Iallreduce(const void *from, void *into, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    iallreduces++;
    return NEXT(MPI_Iallreduce)(from, into, count, type, op, comm, request);
}

int MPI_Wait(MPI_Request *request, MPI_Status *status) {
    waits++;
    return NEXT(MPI_Wait)(request, status);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *new) {
    dups++;
    return NEXT(MPI_Comm_dup)(comm, new);
}

int MPI_Finalize(void) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        fprintf(stderr, "tool: allreduce %ld iallreduce %ld wait %ld dup %ld\n", allreduces, iallreduces, waits, dups);
    }
    return NEXT(MPI_Finalize)();
}
