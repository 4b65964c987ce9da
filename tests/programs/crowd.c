/* An MPI program: each pair of ranks exchanges messages of 1 KiB, ROUNDS times. After a quiet time of QUIET seconds, in
 * which the ranks poll, rank 0 prints the largest number
 * of descriptors that a rank has opened, the lowest number that a new descriptor gets, and the largest amount of a
 * rank's pages that its links occupy. */
#include <dirent.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int descriptors(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all)) count++;
    closedir(all);
    return count - 3; /* ".", "..", and that of the list */
}

/* The resident pages of mappings with this name, in KiB. */
static int resident_kib(const char *name) {
    char line[512];
    int sum = 0, counts = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) {
        if (strspn(line, "0123456789abcdef") >= 8) counts = strstr(line, name) != NULL;
        if (counts && strncmp(line, "Rss:", 4) == 0) sum += atoi(line + 4);
    }
    fclose(maps);
    return sum;
}

int main(int argc, char **argv) {
    char out[1024], in[1024];
    /* The launcher leaves descriptors of other ranks open. */
    int inherited = descriptors(), rank, ranks, rounds = argc > 1 ? atoi(argv[1]) : 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int round = 0; round < rounds; round++)
        for (int far = 1; far < ranks; far++) {
            int to = (rank + far) % ranks, from = (rank + ranks - far) % ranks;
            memset(out, rank + round, sizeof out);
            MPI_Sendrecv(out, sizeof out, MPI_CHAR, to, 1, in, sizeof in, MPI_CHAR, from, 1, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
            if (in[0] != (char)(from + round) || memcmp(in, in + 1, sizeof in - 1) != 0) MPI_Abort(MPI_COMM_WORLD, 7);
        }
    double end = MPI_Wtime() + (argc > 2 ? atof(argv[2]) : 0);
    while (MPI_Wtime() < end) {
        int found;
        MPI_Iprobe(MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        usleep(1000);
    }
    int next = open("/dev/null", O_RDONLY);
    int mine[3] = {descriptors() - inherited, next, resident_kib("weft-pair")}, most[3];
    MPI_Reduce(mine, most, 3, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("descriptors %d next %d pages %d KiB\n", most[0], most[1], most[2]);
    MPI_Finalize();
    return 0;
}
