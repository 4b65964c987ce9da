// Collectives by the functions that Fortran programs call (mpif.h), without a Fortran compiler. All arguments are
// addresses. The constants are those of MPICH and Intel MPI.

#include <stdio.h>

void mpi_init_(int *error);
void mpi_comm_rank_(int *comm, int *rank, int *error);
void mpi_allreduce_(void *from, void *into, int *count, int *type, int *op, int *comm, int *error);
void mpi_ibarrier_(int *comm, int *request, int *error);
void mpi_wait_(int *request, int *status, int *error);
void mpi_finalize_(int *error);

int main(void) {
    int error, rank, world = 0x44000000, double_precision = 0x4c00081f, sum = 0x58000003, one = 1, request, status[5];
    mpi_init_(&error);
    mpi_comm_rank_(&world, &rank, &error);
    double own = rank + 1, all = 0;
    mpi_allreduce_(&own, &all, &one, &double_precision, &sum, &world, &error);
    mpi_ibarrier_(&world, &request, &error);
    mpi_wait_(&request, status, &error);
    mpi_finalize_(&error);
    if (rank == 0) printf("sum %g\n", all);
    return all != 3;
}
