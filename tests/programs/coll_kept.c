// Keeps COUNT duplicates of the world, and runs ROUNDS reductions in each. Each rank prints the cost of one duplicate:
// descriptors of all, resident memory, and the medians of the times to make one and of its first reduction.
//
//     coll_kept COUNT ROUNDS

#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

static long resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long all, resident;
    if (!file || fscanf(file, "%ld %ld", &all, &resident) != 2) abort();
    fclose(file);
    return resident * 4096;
}

static int order(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double median_us(double *times, int count) {
    qsort(times, count, sizeof *times, order);
    return times[count / 2] * 1e6;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100, rounds = argc > 2 ? atoi(argv[2]) : 1, rank, ranks, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm *kept = calloc(count, sizeof *kept);
    double *made = calloc(count, sizeof *made), *used = calloc(count, sizeof *used);
    // All connections are made before the count.
    for (int i = 0; i < 20; i++) MPI_Barrier(MPI_COMM_WORLD);
    int before = descriptors();
    long bytes = resident_bytes();
    for (int i = 0; i < count; i++) {
        double start = MPI_Wtime();
        MPI_Comm_dup(MPI_COMM_WORLD, &kept[i]);
        made[i] = MPI_Wtime() - start;
    }
    for (int i = 0; i < count; i++) {
        for (int round = 0; round < rounds; round++) {
            int mine = rank + round, sum = 0;
            double start = MPI_Wtime();
            MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, kept[i]);
            if (round == 0) used[i] = MPI_Wtime() - start;
            wrong += sum != ranks * (ranks - 1) / 2 + ranks * round;
        }
    }
    printf("rank %d: %d descriptors, %ld bytes each, %.1f us to make, %.1f us to use, %d wrong\n", rank,
           descriptors() - before, (resident_bytes() - bytes) / count, median_us(made, count), median_us(used, count),
           wrong);
    for (int i = 0; i < count; i++) MPI_Comm_free(&kept[i]);
    MPI_Finalize();
    return wrong != 0;
}
