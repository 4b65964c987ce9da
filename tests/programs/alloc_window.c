/* A window over memory of MPI_Alloc_mem: `alloc_window [MILLISECONDS]`. Rank 0 puts, gets and adds while rank 1 computes
 * nothing of MPI, then both compare. Prints the time of a put with its flush and of a fetch-and-add. From the second
 * turn on the window's info names the operation, without which MPICH adds by messages of its own. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define WORDS 4096

static void expect(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "alloc_window: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double limit = argc > 1 ? atof(argv[1]) / 1000 : 0.02;
    for (int turn = 0; turn < 3; turn++) {
        uint64_t *memory, sources[WORDS], one = 1, old = 0;
        MPI_Alloc_mem(sizeof sources, MPI_INFO_NULL, &memory);
        for (int i = 0; i < WORDS; i++) memory[i] = 0, sources[i] = i + turn;
        MPI_Win window;
        MPI_Info info;
        MPI_Info_create(&info);
        if (turn > 0) MPI_Info_set(info, "which_accumulate_ops", "sum");
        MPI_Win_create(memory, sizeof sources, 8, info, MPI_COMM_WORLD, &window);
        MPI_Info_free(&info);
        int *kind, flag;
        MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, &kind, &flag);
        expect(flag && *kind == MPI_WIN_FLAVOR_CREATE, "the flavour has changed");
        MPI_Barrier(MPI_COMM_WORLD);
        long puts = 0, adds = 0;
        double put = 0, add = 0;
        if (rank == 0) {
            MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
            for (int warm = 0; warm < 2; warm++) {
                double start = MPI_Wtime();
                for (puts = 0; puts < 16 || MPI_Wtime() - start < limit; puts++) {
                    MPI_Put(&sources[5], 1, MPI_UINT64_T, 1, 5, 1, MPI_UINT64_T, window);
                    MPI_Win_flush(1, window);
                }
                put = (MPI_Wtime() - start) / puts;
            }
            double start = MPI_Wtime();
            for (adds = 0; adds < 16 || MPI_Wtime() - start < limit; adds++) {
                MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, 1, 0, MPI_SUM, window);
                MPI_Win_flush(1, window);
                expect(old == (uint64_t)adds, "a fetch-and-add returned another value");
            }
            add = (MPI_Wtime() - start) / adds;
            MPI_Put(&sources[1], WORDS - 1, MPI_UINT64_T, 1, 1, WORDS - 1, MPI_UINT64_T, window);
            MPI_Win_flush(1, window);
            uint64_t back[WORDS];
            MPI_Get(back, WORDS, MPI_UINT64_T, 1, 0, WORDS, MPI_UINT64_T, window);
            MPI_Win_flush(1, window);
            expect(back[0] == (uint64_t)adds, "a get returned another sum");
            for (int i = 1; i < WORDS; i++) expect(back[i] == sources[i], "a get returned other data");
            MPI_Win_unlock(1, window);
        }
        MPI_Bcast(&adds, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        if (rank == 1) {
            MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
            expect(memory[0] == (uint64_t)adds && memory[5] == (uint64_t)(5 + turn), "the owner sees other data");
            MPI_Win_unlock(1, window);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_free(&window);
        if (rank == 1) expect(memory[WORDS - 1] == (uint64_t)(WORDS - 1 + turn), "data is lost with the window");
        MPI_Free_mem(memory);
        if (rank == 0) printf("put %.0f ns, fetch-and-add %.0f ns\n", put * 1e9, add * 1e9);
    }
    if (rank == 0) printf("alloc_window: good\n");
    MPI_Finalize();
    return 0;
}
