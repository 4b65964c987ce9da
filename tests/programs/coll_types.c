// Reductions of every type of C by every operation that MPI allows for it. Each rank prints a digest of the results.

#include <complex.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 5, ARITHMETIC = 0x00f, LOGICAL = 0x070, BITWISE = 0x380, SUMS = 0x00c };

static int rank;
static long calls;
static uint64_t digest = 14695981039346656037u;

static void note(const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ at[i]) * 1099511628211u;
}

// Reduces values of `type` by the operations whose bits are set. `bytes` of each result count: a long double has gaps.
#define REDUCE(type, datatype, allowed, bytes)                                                      \
    for (int op = 0; op < 10; op++) {                                                               \
        type from[COUNT], into[COUNT];                                                              \
        if (!((allowed) >> op & 1)) continue;                                                       \
        for (int i = 0; i < COUNT; i++) from[i] = (type)((rank * 3 + i * 2) % 4 + (i > 0));         \
        MPI_Allreduce(from, into, COUNT, datatype, operations[op], MPI_COMM_WORLD), calls++;        \
        for (int i = 0; i < COUNT; i++) note(&into[i], bytes);                                      \
    }
#define INTEGER(type, datatype) REDUCE(type, datatype, ARITHMETIC | LOGICAL | BITWISE, sizeof(type))

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Op operations[] = {MPI_MAX, MPI_MIN,  MPI_SUM,  MPI_PROD, MPI_LAND,
                           MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR,  MPI_BXOR};
    INTEGER(char, MPI_CHAR)
    INTEGER(signed char, MPI_SIGNED_CHAR)
    INTEGER(unsigned char, MPI_UNSIGNED_CHAR)
    INTEGER(short, MPI_SHORT)
    INTEGER(unsigned short, MPI_UNSIGNED_SHORT)
    INTEGER(int, MPI_INT)
    INTEGER(unsigned, MPI_UNSIGNED)
    INTEGER(long, MPI_LONG)
    INTEGER(unsigned long, MPI_UNSIGNED_LONG)
    INTEGER(long long, MPI_LONG_LONG)
    INTEGER(unsigned long long, MPI_UNSIGNED_LONG_LONG)
    INTEGER(int8_t, MPI_INT8_T)
    INTEGER(int16_t, MPI_INT16_T)
    INTEGER(int32_t, MPI_INT32_T)
    INTEGER(int64_t, MPI_INT64_T)
    INTEGER(uint8_t, MPI_UINT8_T)
    INTEGER(uint16_t, MPI_UINT16_T)
    INTEGER(uint32_t, MPI_UINT32_T)
    INTEGER(uint64_t, MPI_UINT64_T)
    INTEGER(MPI_Aint, MPI_AINT)
    INTEGER(MPI_Offset, MPI_OFFSET)
    INTEGER(MPI_Count, MPI_COUNT)
    REDUCE(float, MPI_FLOAT, ARITHMETIC, sizeof(float))
    REDUCE(double, MPI_DOUBLE, ARITHMETIC, sizeof(double))
    REDUCE(long double, MPI_LONG_DOUBLE, ARITHMETIC, 10)
    REDUCE(float complex, MPI_C_FLOAT_COMPLEX, SUMS, sizeof(float complex))
    REDUCE(double complex, MPI_C_DOUBLE_COMPLEX, SUMS, sizeof(double complex))
    REDUCE(long double complex, MPI_C_LONG_DOUBLE_COMPLEX, SUMS, 10)
    REDUCE(bool, MPI_C_BOOL, LOGICAL, sizeof(bool))
    REDUCE(unsigned char, MPI_BYTE, BITWISE, 1)
    printf("digest of rank %d: %016lx\n", rank, (unsigned long)digest);
    fflush(stdout);
    if (rank == 0) printf("expected: %ld collectives by weft, 0 by the MPI library\n", calls);
    MPI_Finalize();
    return 0;
}
