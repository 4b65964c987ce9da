// Node communicators and windows with shared memory, from C.
//
// shared_windows NODES OWN: the world lies on NODES hosts with as many ranks each. OWN is 1 if weft-coll makes the
// windows, so that its own rules can be checked: parts at pages, errors at all members, no descriptor left.
// shared_windows kill: rank 1 kills itself while all have a window.

#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <dirent.h>

static int rank, ranks, wrong;

static void check(int line, int good, const char *what) {
    if (good) return;
    wrong++;
    printf("rank %d, line %d: wrong: %s\n", rank, line, what);
}
#define CHECK(condition) check(__LINE__, (condition), #condition)

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}

static MPI_Comm node_of(MPI_Comm comm, int kind, int key) {
    MPI_Comm node;
    MPI_Comm_split_type(comm, kind, key, MPI_INFO_NULL, &node);
    return node;
}

static int size_of(MPI_Comm comm) {
    int size;
    MPI_Comm_size(comm, &size);
    return size;
}

static void split(int per_host) {
    MPI_Comm node = node_of(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, -rank);
    int place;
    MPI_Comm_rank(node, &place);
    CHECK(size_of(node) == per_host && place == per_host - 1 - rank % per_host);
    MPI_Comm_free(&node);
    // Some members want none.
    node = node_of(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : MPI_COMM_TYPE_SHARED, 0);
    CHECK(rank == 0 ? node == MPI_COMM_NULL : size_of(node) == per_host - (rank < per_host));
    if (node != MPI_COMM_NULL) MPI_Comm_free(&node);
    // Parts of the world, and other kinds.
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
    node = node_of(half, MPI_COMM_TYPE_SHARED, 0);
    CHECK(size_of(node) >= 1 && size_of(node) <= size_of(half));
    MPI_Comm_free(&node);
    MPI_Comm_free(&half);
    node = node_of(MPI_COMM_SELF, MPI_COMM_TYPE_SHARED, 0);
    CHECK(size_of(node) == 1);
    MPI_Comm_free(&node);
}

static void attributes(MPI_Win window, void *base, MPI_Aint bytes, int unit) {
    void *value;
    int found;
    MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, &value, &found);
    CHECK(found && *(int *)value == MPI_WIN_FLAVOR_SHARED);
    MPI_Win_get_attr(window, MPI_WIN_BASE, &value, &found);
    CHECK(found && (value == base || bytes == 0));
    MPI_Win_get_attr(window, MPI_WIN_SIZE, &value, &found);
    CHECK(found && *(MPI_Aint *)value == bytes);
    MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, &value, &found);
    CHECK(found && *(int *)value == unit);
    MPI_Win_get_attr(window, MPI_WIN_MODEL, &value, &found);
    CHECK(found && *(int *)value == MPI_WIN_UNIFIED);
}

// Members with an even rank have 1,024 numbers, the others none.
static void tables(MPI_Comm comm) {
    int place, size = size_of(comm), unit;
    MPI_Comm_rank(comm, &place);
    MPI_Aint bytes = place % 2 ? 0 : 1024 * sizeof(int64_t), found;
    int64_t *own, *other, *first;
    MPI_Win window;
    MPI_Win_allocate_shared(bytes, sizeof(int64_t), MPI_INFO_NULL, comm, &own, &window);
    attributes(window, own, bytes, sizeof(int64_t));
    MPI_Group group;
    MPI_Win_get_group(window, &group);
    int members;
    MPI_Group_size(group, &members);
    CHECK(members == size);
    MPI_Group_free(&group);
    MPI_Win_shared_query(window, MPI_PROC_NULL, &found, &unit, &first);
    CHECK(found == 1024 * sizeof(int64_t) && unit == sizeof(int64_t));

    // Stores and loads.
    MPI_Win_lock_all(0, window);
    for (int at = 0; place % 2 == 0 && at < 1024; at++) own[at] = 10000 * place + at;
    MPI_Win_sync(window);
    MPI_Barrier(comm);
    MPI_Win_sync(window);
    for (int member = 0; member < size; member++) {
        MPI_Win_shared_query(window, member, &found, &unit, &other);
        CHECK(found == (member % 2 ? 0 : (MPI_Aint)(1024 * sizeof(int64_t))) && unit == sizeof(int64_t));
        if (member % 2) continue;
        // The parts follow each other.
        CHECK(other == first + 1024 * (member / 2));
        for (int at = 0; at < 1024; at++) CHECK(other[at] == 10000 * member + at);
    }
    MPI_Barrier(comm);
    MPI_Win_unlock_all(window);

    // Remote accesses see the same memory.
    int64_t one = 1, before = -1, number = 77 + place, got = -1;
    MPI_Win_fence(0, window);
    MPI_Put(&number, 1, MPI_INT64_T, 0, 1 + place, 1, MPI_INT64_T, window);
    MPI_Win_fence(0, window);
    CHECK(first[1 + place] == number);
    MPI_Get(&got, 1, MPI_INT64_T, 0, 1 + (place + 1) % size, 1, MPI_INT64_T, window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    CHECK(got == 77 + (place + 1) % size);
    for (int round = 0; round < 20; round++) {
        MPI_Win_lock(round % 2 ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Accumulate(&one, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, MPI_SUM, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Win_lock_all(0, window);
    MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, window);
    MPI_Win_flush(0, window);
    MPI_Win_flush_local_all(window);
    MPI_Win_unlock_all(window);
    CHECK(before >= 20);
    MPI_Barrier(comm);
    CHECK(first[0] == 21 * size);
    MPI_Barrier(comm);

    // Atomic operations of the processor.
    _Atomic int64_t *count = (_Atomic int64_t *)(first + 1000);
    if (place == 0) *count = 0;
    MPI_Barrier(comm);
    for (int round = 0; round < 1000; round++) atomic_fetch_add(count, 1);
    MPI_Barrier(comm);
    CHECK(*count == 1000 * size);
    MPI_Win_free(&window);
    CHECK(window == MPI_WIN_NULL);
}

static void apart(MPI_Comm comm, int own_rules) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    char *own, *other;
    MPI_Win window;
    MPI_Win_allocate_shared(100, 1, info, comm, &own, &window);
    MPI_Info_free(&info);
    int place, unit, size = size_of(comm);
    MPI_Comm_rank(comm, &place);
    memset(own, 'a' + place, 100);
    MPI_Win_fence(0, window);
    for (int member = 0; member < size; member++) {
        MPI_Aint found;
        MPI_Win_shared_query(window, member, &found, &unit, &other);
        CHECK((own_rules ? found == 100 : found >= 100) && unit == 1 && other[0] == 'a' + member && other[99] == 'a' + member);
        CHECK(!own_rules || (uintptr_t)other % 4096 == 0);
    }
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    // No member has memory.
    MPI_Win_allocate_shared(0, 1, MPI_INFO_NULL, comm, &own, &window);
    MPI_Aint found = 1;
    MPI_Win_shared_query(window, MPI_PROC_NULL, &found, &unit, &other);
    CHECK(found == 0);
    MPI_Win_free(&window);
}

#if MPI_VERSION >= 4 && !defined(OPEN_MPI)
static void large_counts(MPI_Comm comm) {
    int64_t *own, *other;
    MPI_Win window;
    MPI_Win_allocate_shared_c(64, 8, MPI_INFO_NULL, comm, &own, &window);
    int place, size = size_of(comm);
    MPI_Comm_rank(comm, &place);
    own[7] = place;
    MPI_Win_fence(0, window);
    MPI_Aint found, unit = -1;
    MPI_Win_shared_query_c(window, (place + 1) % size, &found, &unit, &other);
    CHECK(found == 64 && unit == 8 && other[7] == (place + 1) % size);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
}
#else
static void large_counts(MPI_Comm comm) { (void)comm; }
#endif

static int class_of(int code) {
    int class;
    MPI_Error_class(code, &class);
    return class;
}

static void errors(MPI_Comm comm) {
    char *own, text[MPI_MAX_ERROR_STRING];
    int place, length, unit;
    MPI_Comm_rank(comm, &place);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Win window;
    MPI_Aint bytes = (MPI_Aint)1 << 46;
    int code = MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, comm, &own, &window);
    CHECK(class_of(code) == MPI_ERR_NO_MEM);
    MPI_Error_string(code, text, &length);
    if (rank == 0) printf("too much memory: %s\n", text);
    code = MPI_Win_allocate_shared(place == 0 ? -1 : 8, 1, MPI_INFO_NULL, comm, &own, &window);
    CHECK(class_of(code) == MPI_ERR_SIZE);
    code = MPI_Win_allocate_shared(8, place == 0 ? 0 : 1, MPI_INFO_NULL, comm, &own, &window);
    CHECK(class_of(code) == MPI_ERR_DISP);
    code = MPI_Win_allocate_shared(8, 1, MPI_INFO_NULL, comm, &own, &window);
    CHECK(code == MPI_SUCCESS);
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Win_shared_query(window, size_of(comm), &bytes, &unit, &own)) == MPI_ERR_RANK);
    MPI_Win_free(&window);
}

static int end_one(void) {
    char *own;
    MPI_Win window;
    MPI_Win_allocate_shared(1 << 20, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &own, &window);
    memset(own, rank, 1 << 20);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("all have the window\n"), fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) raise(SIGKILL);
    pause();
    return 0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3) return end_one();
    int nodes = atoi(argv[1]), own_rules = atoi(argv[2]), per_host = ranks / nodes;
    split(per_host);
    MPI_Comm node = node_of(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0), copy;
    tables(node);
    MPI_Comm_dup(node, &copy);
    tables(copy);
    MPI_Comm_free(&copy);
    if (nodes == 1) tables(MPI_COMM_WORLD);
    apart(node, own_rules);
    large_counts(node);
    int before = descriptors();
    for (int round = 0; round < 20; round++) apart(node, own_rules);
    CHECK(!own_rules || descriptors() <= before + 2);
    if (own_rules) errors(node);
    MPI_Comm_free(&node);
    int all;
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("shared windows: %s\n", all ? "wrong" : "good");
    MPI_Finalize();
    return all != 0;
}
