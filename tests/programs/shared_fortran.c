// Shared windows by the functions that Fortran programs call (mpif.h, and the module mpi_f08 with c_ptr), without a
// Fortran compiler. All arguments are addresses. The constants are those of MPICH and Intel MPI.

#include <stdio.h>

void mpi_init_(int *error);
void mpi_comm_rank_(int *comm, int *rank, int *error);
void mpi_comm_size_(int *comm, int *size, int *error);
void mpi_comm_split_type_(int *comm, int *kind, int *key, int *info, int *node, int *error);
void mpi_win_allocate_shared_(long *bytes, int *unit, int *info, int *comm, void *base, int *window, int *error);
void mpi_win_shared_query_(int *window, int *rank, long *bytes, int *unit, void *base, int *error);
void mpi_win_fence_(int *promise, int *window, int *error);
void mpi_win_get_attr_(int *window, int *keyval, long *value, int *flag, int *error);
void mpi_win_free_(int *window, int *error);
void mpi_win_allocate_shared_f08_(long *bytes, int *unit, int *info, int *comm, void *base, int *window, int *error);
void mpi_win_shared_query_f08_(int *window, int *rank, long *bytes, int *unit, void *base, int *error);
void mpi_finalize_(int *error);

static int world = 0x44000000, no_info = 0x1c000000, shared = 1, zero = 0, error;

// Whether each member sees the number of the next one.
static int sees_next(int node, int modern) {
    int place, size, window, unit = 8;
    mpi_comm_rank_(&node, &place, &error);
    mpi_comm_size_(&node, &size, &error);
    long bytes = 8, found = 0;
    double *own = 0, *other = 0;
    (modern ? mpi_win_allocate_shared_f08_ : mpi_win_allocate_shared_)(&bytes, &unit, &no_info, &node, &own, &window, &error);
    if (error) return 0;
    *own = place;
    mpi_win_fence_(&zero, &window, &error);
    int next = (place + 1) % size;
    (modern ? mpi_win_shared_query_f08_ : mpi_win_shared_query_)(&window, &next, &found, &unit, &other, &error);
    int good = !error && found == 8 && unit == 8 && *other == next;
    int create_flavor = 0x66000007, flag = 0;
    long flavor = 0;
    mpi_win_get_attr_(&window, &create_flavor, &flavor, &flag, &error);
    good = good && flag && flavor == 4;
    mpi_win_fence_(&zero, &window, &error);
    mpi_win_free_(&window, &error);
    return good;
}

int main(void) {
    int rank, node, size;
    mpi_init_(&error);
    mpi_comm_rank_(&world, &rank, &error);
    mpi_comm_split_type_(&world, &shared, &zero, &no_info, &node, &error);
    mpi_comm_size_(&node, &size, &error);
    int good = sees_next(node, 0) && sees_next(node, 1);
    printf("node of %d from Fortran: %s;\n", size, good ? "good" : "wrong");
    mpi_finalize_(&error);
    return !good;
}
