// Collectives by the functions that Fortran programs call (mpif.h, and the module mpi_f08), without a Fortran compiler.
// All arguments are addresses. The constants are those of MPICH and Intel MPI.

#include <stdio.h>

void mpi_init_(int *error);
void mpi_comm_rank_(int *comm, int *rank, int *error);
void mpi_allreduce_(void *from, void *into, int *count, int *type, int *op, int *comm, int *error);
void mpi_ibarrier_(int *comm, int *request, int *error);
void mpi_wait_(int *request, int *status, int *error);
void mpi_finalize_(int *error);

// The description of a buffer, of which the functions read the address and the rank. It is 0: a scalar.
struct scalar {
    void *address;
    long rest[15];
};
void mpi_barrier_f08_(int *comm, int *error);
void mpi_allreduce_f08ts_(struct scalar *from, struct scalar *into, int *count, int *type, int *op, int *comm,
                          int *error);

int main(void) {
    int error, rank, world = 0x44000000, double_precision = 0x4c00081f, sum = 0x58000003, one = 1, request, status[5];
    mpi_init_(&error);
    mpi_comm_rank_(&world, &rank, &error);
    double own = rank + 1, all = 0;
    mpi_allreduce_(&own, &all, &one, &double_precision, &sum, &world, &error);
    mpi_ibarrier_(&world, &request, &error);
    mpi_wait_(&request, status, &error);
    double twice = 0;
    struct scalar from = {.address = &all}, into = {.address = &twice};
    mpi_barrier_f08_(&world, &error);
    mpi_allreduce_f08ts_(&from, &into, &one, &double_precision, &sum, &world, &error);
    mpi_finalize_(&error);
    if (rank == 0) printf("sum %g\n", all);
    return all != 3 || twice != 6;
}
