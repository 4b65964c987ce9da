/* Remote access in memory that the peer maps: `mapped mapped|messages`, two processes made by fork.
 *
 * The owner registers memory of the extension weft_memory and exchanges addresses by a pipe. It then makes no call of
 * libfabric while the initiator writes, reads and adds: the accesses are complete without it. Then the owner closes the
 * region. The initiator must get an error, and nothing that it writes may appear. `mapped messages` expects that none
 * is mapped (FI_WEFT_MAP=no): the owner must make progress. `mapped mapped WEFT` prints the counters of both, as
 * `weft stat` shows them.
 */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../../include/weft_memory.h"

#define LEN (1 << 20)
#define ADDS 10000
/* Seconds of progress after which the counters are published. */
#define PUBLISHED_S 0.3
#define OK(call)                                                                          \
    do {                                                                                  \
        long long r_ = (call);                                                            \
        if (r_ < 0) {                                                                     \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, fi_strerror((int)-r_)); \
            exit(2);                                                                      \
        }                                                                                 \
    } while (0)
#define EXPECT(condition)                                               \
    do {                                                                \
        if (!(condition)) {                                             \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
            exit(3);                                                    \
        }                                                               \
    } while (0)

struct side {
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    char name[64];
    size_t name_len;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void open_side(struct side *s) {
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->fabric_attr->prov_name = strdup("weft");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_RMA | FI_ATOMIC | FI_MSG;
    hints->domain_attr->mr_mode = 0;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    OK(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info));
    struct fid_fabric *fabric;
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &s->domain, NULL));
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT};
    OK(fi_cq_open(s->domain, &cq, &s->cq, NULL));
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    OK(fi_av_open(s->domain, &av, &s->av, NULL));
    OK(fi_endpoint(s->domain, info, &s->ep, NULL));
    OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(s->ep, &s->av->fid, 0));
    OK(fi_enable(s->ep));
    s->name_len = sizeof s->name;
    OK(fi_getname(&s->ep->fid, s->name, &s->name_len));
}

/* Waits for one completion. Returns 0 or the error of the operation. */
static int finish(struct side *s, double limit_s) {
    struct fi_cq_entry entry;
    double end = now() + limit_s;
    for (;;) {
        ssize_t got = fi_cq_read(s->cq, &entry, 1);
        if (got == 1) return 0;
        if (got == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};
            OK(fi_cq_readerr(s->cq, &error, 0));
            return error.err;
        }
        EXPECT(got == -FI_EAGAIN);
        if (now() > end) return -1;
    }
}

static void progress(struct side *s, double seconds) {
    for (double end = now() + seconds; now() < end;) {
        struct fi_cq_entry entry;
        EXPECT(fi_cq_read(s->cq, &entry, 1) == -FI_EAGAIN);
    }
}

static void tell(int fd, const void *bytes, size_t len) { EXPECT(write(fd, bytes, len) == (ssize_t)len); }
static void hear(int fd, void *bytes, size_t len) { EXPECT(read(fd, bytes, len) == (ssize_t)len); }

static void initiator(int in, int out, int mapped) {
    struct side s;
    open_side(&s);
    char name[64], byte = 0;
    hear(in, name, sizeof name);
    fi_addr_t owner;
    EXPECT(fi_av_insert(s.av, name, 1, &owner, 0, NULL) == 1);
    uint64_t *buffer = calloc(1, LEN), one = 1, old = 0;
    /* The first access makes the link, the second one asks for the region. */
    for (int i = 0; i < 3; i++) {
        OK(fi_write(s.ep, buffer, 8, NULL, owner, 64, 7, NULL));
        EXPECT(finish(&s, 10) == 0);
        progress(&s, 0.05);
    }
    tell(out, &byte, 1);
    hear(in, &byte, 1); /* From now on the owner makes no progress. */
    buffer[0] = 77;
    OK(fi_write(s.ep, buffer, 8, NULL, owner, 0, 7, NULL));
    int result = finish(&s, 0.3);
    EXPECT(mapped ? result == 0 : result == -1);
    if (mapped) {
        for (size_t i = 1; i < LEN / 8; i++) buffer[i] = i;
        OK(fi_write(s.ep, buffer, LEN, NULL, owner, 0, 7, NULL));
        EXPECT(finish(&s, 0.3) == 0);
        for (int i = 0; i < ADDS; i++) {
            OK(fi_fetch_atomic(s.ep, &one, 1, NULL, &old, NULL, owner, 8, 7, FI_UINT64, FI_SUM, NULL));
            EXPECT(finish(&s, 0.3) == 0);
        }
        memset(buffer, 0, LEN);
        OK(fi_read(s.ep, buffer, LEN, NULL, owner, 0, 7, NULL));
        EXPECT(finish(&s, 0.3) == 0);
        EXPECT(buffer[0] == 77 && buffer[1] >= 1 + ADDS && buffer[LEN / 8 - 1] == LEN / 8 - 1);
        progress(&s, PUBLISHED_S);
    }
    tell(out, &byte, 1);
    hear(in, &byte, 1); /* The region is closed. */
    if (!mapped) finish(&s, 10);
    buffer[0] = 99;
    OK(fi_write(s.ep, buffer, 8, NULL, owner, 0, 7, NULL));
    EXPECT(finish(&s, 10) > 0);
    tell(out, &byte, 1);
    exit(0);
}

int main(int argc, char **argv) {
    int mapped = argc < 2 || strcmp(argv[1], "messages");
    int there[2], back[2];
    EXPECT(!pipe(there) && !pipe(back));
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        initiator(there[0], back[1], mapped);
    }
    struct side s;
    open_side(&s);
    struct weft_memory_ops *ops;
    OK(fi_open_ops(&s.domain->fid, WEFT_MEMORY, 0, (void **)&ops, NULL));
    uint64_t *memory;
    OK(ops->alloc(s.domain, LEN, 0, (void **)&memory));
    void *base;
    size_t len;
    OK(ops->query(s.domain, (char *)memory + 5, &base, &len));
    EXPECT(base == memory && len >= LEN);
    EXPECT(ops->query(s.domain, &len, NULL, NULL) == -FI_ENOENT);
    struct fid_mr *mr;
    OK(fi_mr_reg(s.domain, memory, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
    EXPECT(ops->free(s.domain, memory) == -FI_EBUSY);
    tell(there[1], s.name, sizeof s.name);
    char byte;
    fd_set set;
    struct timeval zero = {0, 0};
    do {
        progress(&s, 0.01);
        FD_ZERO(&set);
        FD_SET(back[0], &set);
        zero.tv_usec = 0;
    } while (select(back[0] + 1, &set, NULL, NULL, &zero) == 0);
    hear(back[0], &byte, 1);
    tell(there[1], &byte, 1);
    if (mapped) {
        /* Atomics of this process meet those of the peer. */
        for (int i = 0; i < ADDS; i++) __atomic_fetch_add(&memory[2], 1, __ATOMIC_SEQ_CST);
    }
    hear(back[0], &byte, 1);
    if (mapped && argc > 2) {
        char line[512];
        progress(&s, PUBLISHED_S);
        snprintf(line, sizeof line, "%s stat --json %d && %s stat --json %d", argv[2], getpid(), argv[2], child);
        EXPECT(system(line) == 0);
    }
    uint64_t before = memory[0];
    EXPECT(!mapped || (before == 77 && memory[1] == 1 + ADDS && memory[LEN / 8 - 1] == LEN / 8 - 1));
    OK(fi_close(&mr->fid));
    EXPECT(memory[0] == before && (!mapped || memory[LEN / 8 - 1] == LEN / 8 - 1));
    tell(there[1], &byte, 1);
    do {
        progress(&s, 0.01);
        FD_ZERO(&set);
        FD_SET(back[0], &set);
        zero.tv_usec = 0;
    } while (select(back[0] + 1, &set, NULL, NULL, &zero) == 0);
    hear(back[0], &byte, 1);
    EXPECT(memory[0] == before);
    OK(ops->free(s.domain, memory));
    EXPECT(ops->free(s.domain, memory) == -FI_EINVAL);
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    printf("mapped: good\n");
    return 0;
}
