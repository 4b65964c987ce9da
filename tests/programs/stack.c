/* Measures the stack that each call of libfabric takes, in bytes: `stack`, or `stack log` with all log lines.
 *
 * Before each call the stack below the caller is painted. Afterwards the program finds the lowest changed byte.
 * Two endpoints of this process exchange messages, so handshakes also run inside these calls. Log lines go to a
 * function of this program, so that printing by the C library does not count. Symbols must be bound at the
 * start (LD_BIND_NOW).
 *
 * Prints a line for each function: its name, "data" or "control", the maximum of calls without log lines, and
 * the maximum of calls with log lines. The line "fi_log" gives the stack of the host library for formatting a
 * line.
 */
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define PAINT_BYTES (96 << 10)
/* A gap below the caller's frame for the frames of paint() and used(). Smaller uses cannot be measured. */
#define GAP_BYTES 256
#define PAINT 0x5aa5c33c0ff07117ull
#define LIMIT_NS 10000000000ll
#define LONG_BYTES (4 << 20)

enum path { CONTROL, DATA };

static struct seen {
    const char *name;
    enum path path;
    /* The maxima of calls without and with log lines. */
    size_t most[2];
} seen[128];
static int functions;

/* The number of log lines since the call began. */
static size_t lines;

/* Paints the stack below the caller's frame. Returns the end of that frame. */
static __attribute__((noinline)) char *paint(void) {
    char *top = __builtin_frame_address(0);
    volatile uint64_t *end = (volatile uint64_t *)(((uintptr_t)top - GAP_BYTES) & ~7ul);
    for (volatile uint64_t *word = end - PAINT_BYTES / 8; word < end; word++) *word = PAINT;
    lines = 0;
    return top;
}

static __attribute__((noinline)) size_t used(char *top) {
    volatile uint64_t *end = (volatile uint64_t *)(((uintptr_t)top - GAP_BYTES) & ~7ul);
    volatile uint64_t *word = end - PAINT_BYTES / 8;
    while (word < end && *word == PAINT) word++;
    return (size_t)(top - (char *)word);
}

static void note(const char *name, enum path path, size_t bytes) {
    int at = 0;
    while (at < functions && strcmp(seen[at].name, name)) at++;
    if (at == functions) seen[functions++] = (struct seen){name, path, {0, 0}};
    size_t *most = &seen[at].most[lines > 0];
    if (bytes > *most) *most = bytes;
}

/* Measures the stack that the call takes below the frame of the enclosing function. */
#define MEASURED(path, name, call)                                                               \
    ({                                                                                           \
        char *top_ = paint();                                                                    \
        __typeof__(call) result_ = (call);                                                       \
        note(name, path, used(top_));                                                            \
        result_;                                                                                 \
    })
#define CTL(name, call) MEASURED(CONTROL, name, call)
#define DAT(name, call) MEASURED(DATA, name, call)

#define CHECK(expected, call)                                                                    \
    do {                                                                                         \
        long long result__ = (call);                                                             \
        if (result__ != (expected)) {                                                            \
            fprintf(stderr, "line %d: %s: %lld (%s)\n", __LINE__, #call, result__, fi_strerror((int)-result__)); \
            exit(2);                                                                             \
        }                                                                                        \
    } while (0)

static int log_enabled(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys, uint64_t flags) {
    (void)subsys, (void)flags;
    return prov && !strcmp(prov->name, "weft") && level <= FI_LOG_DEBUG;
}

static void log_line(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys, const char *func, int line,
                     const char *text) {
    (void)prov, (void)level, (void)subsys, (void)func, (void)line, (void)text;
    lines++;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* An endpoint with its objects. */
struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_cntr *cntr;
    struct fid_av *av;
    struct fid_ep *ep;
    fi_addr_t peer;
};

static void open_domain(struct side *side, enum fi_ep_type type, enum fi_progress progress, const char *node, uint64_t flags) {
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = type;
    hints->domain_attr->mr_mode = 0;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->data_progress = progress;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
    if (type == FI_EP_DGRAM) hints->caps = FI_MSG;
    if (node) hints->addr_format = FI_SOCKADDR_IN;
    hints->fabric_attr->prov_name = strdup("weft");
    CHECK(0, CTL("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), node, node ? "0" : NULL, flags, hints, &side->info)));
    fi_freeinfo(hints);
    CHECK(0, CTL("fi_fabric", fi_fabric(side->info->fabric_attr, &side->fabric, NULL)));
    CHECK(0, CTL("fi_domain", fi_domain(side->fabric, side->info, &side->domain, NULL)));
    struct fi_eq_attr eq = {.wait_obj = FI_WAIT_UNSPEC};
    CHECK(0, CTL("fi_eq_open", fi_eq_open(side->fabric, &eq, &side->eq, NULL)));
}

static void open_endpoint(struct side *side, struct fi_info *info) {
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};
    CHECK(0, CTL("fi_cq_open", fi_cq_open(side->domain, &cq, &side->cq, NULL)));
    struct fi_cntr_attr cntr = {.wait_obj = FI_WAIT_UNSPEC};
    CHECK(0, CTL("fi_cntr_open", fi_cntr_open(side->domain, &cntr, &side->cntr, NULL)));
    CHECK(0, CTL("fi_endpoint", fi_endpoint(side->domain, info, &side->ep, NULL)));
    if (info->ep_attr->type == FI_EP_MSG) {
        CHECK(0, CTL("fi_ep_bind", fi_ep_bind(side->ep, &side->eq->fid, 0)));
    } else {
        struct fi_av_attr av = {.type = FI_AV_TABLE};
        CHECK(0, CTL("fi_av_open", fi_av_open(side->domain, &av, &side->av, NULL)));
        CHECK(0, CTL("fi_ep_bind", fi_ep_bind(side->ep, &side->av->fid, 0)));
    }
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV)));
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(side->ep, &side->cntr->fid, FI_SEND)));
    CHECK(0, CTL("fi_enable", fi_enable(side->ep)));
}

static fi_addr_t insert(struct side *side, struct side *other) {
    char name[256];
    size_t len = sizeof name;
    fi_addr_t found;
    CHECK(0, CTL("fi_getname", fi_getname(&other->ep->fid, name, &len)));
    CHECK(1, CTL("fi_av_insert", fi_av_insert(side->av, name, 1, &found, 0, NULL)));
    return found;
}

static void close_all(struct side *side) {
    if (side->ep) CHECK(0, CTL("fi_close(ep)", fi_close(&side->ep->fid)));
    if (side->cntr) CHECK(0, CTL("fi_close(cntr)", fi_close(&side->cntr->fid)));
    if (side->cq) CHECK(0, CTL("fi_close(cq)", fi_close(&side->cq->fid)));
    if (side->av) CHECK(0, CTL("fi_close(av)", fi_close(&side->av->fid)));
    CHECK(0, CTL("fi_close(domain)", fi_close(&side->domain->fid)));
    CHECK(0, CTL("fi_close(eq)", fi_close(&side->eq->fid)));
    CHECK(0, CTL("fi_close(fabric)", fi_close(&side->fabric->fid)));
    fi_freeinfo(side->info);
}

/* Whether peers are still connecting. */
static int connecting;

/* Reads one side's queue once: a completion, an error, or nothing. Returns 1, the error, or 0. */
static int take(struct side *side) {
    struct fi_cq_tagged_entry entry;
    const char *name = connecting ? "fi_cq_read(connecting)" : "fi_cq_read";
    ssize_t count = DAT(name, fi_cq_read(side->cq, &entry, 1));
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry failed = {0};
        CHECK(1, DAT("fi_cq_readerr", fi_cq_readerr(side->cq, &failed, 0)));
        return -failed.err;
    }
    if (count != -FI_EAGAIN) CHECK(1, count);
    return count == 1;
}

/* Reads both queues until each has returned its number of completions. */
static void pump(struct side *a, int of_a, struct side *b, int of_b) {
    int64_t end = now_ns() + LIMIT_NS;
    while (of_a > 0 || of_b > 0) {
        int one = take(a), other = b ? take(b) : 0;
        if (one < 0 || other < 0 || now_ns() > end) {
            fprintf(stderr, "completions still to come: %d and %d; errors %d, %d\n", of_a, of_b, one, other);
            exit(2);
        }
        of_a -= one;
        of_b -= other;
    }
}

/* Reads both queues until b has an error and a has returned its number of completions. */
static int next_error(struct side *b, struct side *a, int of_a) {
    int64_t end = now_ns() + LIMIT_NS;
    int error = 0;
    while ((!error || of_a > 0) && now_ns() < end) {
        if (a) of_a -= take(a);
        if (!error) error = take(b);
    }
    return error;
}

/* Repeats a call while the provider has no room for it. */
#define POST(name, call)                                                                         \
    do {                                                                                         \
        ssize_t posted_;                                                                         \
        int64_t end_ = now_ns() + LIMIT_NS;                                                      \
        while ((posted_ = DAT(name, call)) == -FI_EAGAIN && now_ns() < end_) take(a), take(b);   \
        CHECK(0, posted_);                                                                       \
    } while (0)

static char *from, *to;

/* Sends messages of every kind from a to b. */
static void messages(struct side *a, struct side *b) {
    static const size_t sizes[] = {8, 2000, 60000, LONG_BYTES};
    struct iovec out[2] = {{from, 8}, {from + 100, 60}}, in[2] = {{to, 8}, {to + 100, 60}};
    struct fi_msg_tagged tagged = {.msg_iov = out, .iov_count = 2, .addr = a->peer, .tag = 7};
    struct fi_msg_tagged receive = {.msg_iov = in, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .tag = 7};
    struct fi_msg plain = {.msg_iov = out, .iov_count = 2, .addr = a->peer};
    struct fi_msg receive_plain = {.msg_iov = in, .iov_count = 2, .addr = FI_ADDR_UNSPEC};
    for (int late = 0; late < 2; late++) {
        for (int i = 0; i < 4; i++) {
            if (!late) POST("fi_trecv", fi_trecv(b->ep, to, sizes[i], NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
            POST("fi_tsend", fi_tsend(a->ep, from, sizes[i], NULL, a->peer, 7, NULL));
            if (late) {
                for (int round = 0; round < 20; round++) CHECK(0, take(b));
                POST("fi_trecv", fi_trecv(b->ep, to, sizes[i], NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
            }
            pump(a, 1, b, 1);
            POST("fi_send", fi_send(a->ep, from, sizes[i], NULL, a->peer, NULL));
            POST("fi_recv", fi_recv(b->ep, to, sizes[i], NULL, FI_ADDR_UNSPEC, NULL));
            pump(a, 1, b, 1);
        }
        if (!late) POST("fi_trecvv", fi_trecvv(b->ep, in, NULL, 2, FI_ADDR_UNSPEC, 7, 0, NULL));
        POST("fi_tsendv", fi_tsendv(a->ep, out, NULL, 2, a->peer, 7, NULL));
        if (late) POST("fi_trecvmsg", fi_trecvmsg(b->ep, &receive, 0));
        pump(a, 1, b, 1);
    }
    POST("fi_tsendmsg", fi_tsendmsg(a->ep, &tagged, FI_DELIVERY_COMPLETE | FI_COMPLETION));
    POST("fi_trecvmsg", fi_trecvmsg(b->ep, &receive, FI_COMPLETION));
    pump(a, 1, b, 1);
    POST("fi_sendmsg", fi_sendmsg(a->ep, &plain, FI_TRANSMIT_COMPLETE | FI_COMPLETION));
    POST("fi_recvmsg", fi_recvmsg(b->ep, &receive_plain, FI_COMPLETION));
    pump(a, 1, b, 1);
    POST("fi_sendv", fi_sendv(a->ep, out, NULL, 2, a->peer, NULL));
    POST("fi_recvv", fi_recvv(b->ep, in, NULL, 2, FI_ADDR_UNSPEC, NULL));
    POST("fi_senddata", fi_senddata(a->ep, from, 8, NULL, 1, a->peer, NULL));
    POST("fi_recv", fi_recv(b->ep, to, 8, NULL, FI_ADDR_UNSPEC, NULL));
    POST("fi_tsenddata", fi_tsenddata(a->ep, from, 8, NULL, 1, a->peer, 7, NULL));
    POST("fi_trecv", fi_trecv(b->ep, to, 8, NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
    pump(a, 3, b, 3);
    for (int i = 0; i < 4; i++) POST("fi_trecv", fi_trecv(b->ep, to, 8, NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
    for (int i = 0; i < 2; i++) POST("fi_tinject", fi_tinject(a->ep, from, 8, a->peer, 7));
    for (int i = 0; i < 2; i++) POST("fi_tinjectdata", fi_tinjectdata(a->ep, from, 8, 1, a->peer, 7));
    for (int i = 0; i < 2; i++) POST("fi_recv", fi_recv(b->ep, to, 8, NULL, FI_ADDR_UNSPEC, NULL));
    POST("fi_inject", fi_inject(a->ep, from, 8, a->peer));
    POST("fi_injectdata", fi_injectdata(a->ep, from, 8, 1, a->peer));
    pump(a, 0, b, 6);
    /* A truncated receive, a cancelled one, and a peek without a message. */
    POST("fi_trecv", fi_trecv(b->ep, to, 8, NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
    POST("fi_tsend", fi_tsend(a->ep, from, 2000, NULL, a->peer, 7, NULL));
    CHECK(-FI_ETRUNC, next_error(b, a, 1));
    POST("fi_trecv", fi_trecv(b->ep, to, 8, NULL, FI_ADDR_UNSPEC, 7, 0, to));
    CHECK(0, DAT("fi_cancel", fi_cancel(&b->ep->fid, to)));
    CHECK(-FI_ECANCELED, next_error(b, a, 0));
    POST("fi_trecvmsg", fi_trecvmsg(b->ep, &receive, FI_PEEK | FI_COMPLETION));
    CHECK(-FI_ENOMSG, next_error(b, a, 0));
    /* More messages than the window of unexpected messages holds. */
    int sent = 0, received = 0;
    while (sent < 5000 && DAT("fi_tsend", fi_tsend(a->ep, from, 1000, NULL, a->peer, 7, NULL)) == 0) sent++;
    for (int i = 0; i < sent; i++) {
        ssize_t posted;
        while ((posted = DAT("fi_trecv", fi_trecv(b->ep, to, 1000, NULL, FI_ADDR_UNSPEC, 7, 0, NULL))) == -FI_EAGAIN)
            received += take(b);
        CHECK(0, posted);
    }
    pump(a, sent, b, sent - received);
}

/* Remote memory access and atomics, from a to a region of b. */
static void accesses(struct side *a, struct side *b) {
    static const size_t sizes[] = {8, 2000, 60000, LONG_BYTES};
    struct fid_mr *mr;
    CHECK(0, CTL("fi_mr_reg", fi_mr_reg(b->domain, to, LONG_BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL)));
    struct iovec piece = {from, 64};
    struct fi_rma_iov remote = {0, 64, 5};
    struct fi_msg_rma msg = {.msg_iov = &piece, .iov_count = 1, .addr = a->peer, .rma_iov = &remote, .rma_iov_count = 1};
    for (int i = 0; i < 4; i++) {
        POST("fi_write", fi_write(a->ep, from, sizes[i], NULL, a->peer, 0, 5, NULL));
        pump(a, 1, b, 0);
        POST("fi_read", fi_read(a->ep, from, sizes[i], NULL, a->peer, 0, 5, NULL));
        pump(a, 1, b, 0);
    }
    POST("fi_writev", fi_writev(a->ep, &piece, NULL, 1, a->peer, 0, 5, NULL));
    POST("fi_readv", fi_readv(a->ep, &piece, NULL, 1, a->peer, 0, 5, NULL));
    POST("fi_writemsg", fi_writemsg(a->ep, &msg, FI_DELIVERY_COMPLETE));
    POST("fi_readmsg", fi_readmsg(a->ep, &msg, 0));
    pump(a, 4, b, 0);
    POST("fi_writedata", fi_writedata(a->ep, from, 8, NULL, 1, a->peer, 0, 5, NULL));
    POST("fi_inject_write", fi_inject_write(a->ep, from, 8, a->peer, 0, 5));
    POST("fi_inject_writedata", fi_inject_writedata(a->ep, from, 8, 1, a->peer, 0, 5));
    pump(a, 1, b, 2);
    struct fi_ioc number = {from, 4};
    struct fi_rma_ioc there = {0, 4, 5};
    struct fi_msg_atomic atomic = {.msg_iov = &number, .iov_count = 1, .addr = a->peer, .rma_iov = &there, .rma_iov_count = 1, .datatype = FI_INT64, .op = FI_SUM};
    POST("fi_atomic", fi_atomic(a->ep, from, 4, NULL, a->peer, 0, 5, FI_INT64, FI_SUM, NULL));
    POST("fi_atomic", fi_atomic(a->ep, from, 4, NULL, a->peer, 0, 5, FI_LONG_DOUBLE, FI_SUM, NULL));
    POST("fi_atomicmsg", fi_atomicmsg(a->ep, &atomic, FI_DELIVERY_COMPLETE));
    POST("fi_fetch_atomic", fi_fetch_atomic(a->ep, from, 4, NULL, from + 4096, NULL, a->peer, 0, 5, FI_INT64, FI_SUM, NULL));
    POST("fi_compare_atomic", fi_compare_atomic(a->ep, from, 4, NULL, from + 8192, NULL, from + 4096, NULL, a->peer, 0, 5, FI_INT64, FI_CSWAP, NULL));
    pump(a, 5, b, 0);
    POST("fi_fetch_atomic", fi_fetch_atomic(a->ep, from, 4000, NULL, from + 65536, NULL, a->peer, 0, 5, FI_DOUBLE, FI_PROD, NULL));
    POST("fi_inject_atomic", fi_inject_atomic(a->ep, from, 4, a->peer, 0, 5, FI_INT64, FI_SUM));
    pump(a, 1, b, 0);
    /* A refused access. */
    POST("fi_write", fi_write(a->ep, from, 8, NULL, a->peer, 0, 99, NULL));
    CHECK(1, next_error(a, b, 0) < 0);
    size_t count;
    CHECK(0, CTL("fi_atomicvalid", fi_atomicvalid(a->ep, FI_INT64, FI_SUM, &count)));
    CHECK(0, CTL("fi_close(mr)", fi_close(&mr->fid)));
}

/* Calls that wait in vain, and calls that wait for a message of their own endpoint. */
static void waits(struct side *a) {
    struct fi_cq_tagged_entry entry;
    struct fid *waited = &a->cq->fid;
    CHECK(-FI_EAGAIN, DAT("fi_cq_sread", fi_cq_sread(a->cq, &entry, 1, NULL, 5)));
    DAT("fi_cntr_read", fi_cntr_read(a->cntr));
    DAT("fi_cntr_readerr", fi_cntr_readerr(a->cntr));
    CHECK(-FI_ETIMEDOUT, DAT("fi_cntr_wait", fi_cntr_wait(a->cntr, 1000000, 5)));
    while (DAT("fi_trywait", fi_trywait(a->fabric, &waited, 1)) == -FI_EAGAIN) take(a);
    CHECK(-FI_EAGAIN, DAT("fi_cq_read", fi_cq_read(a->cq, &entry, 1)));
    uint32_t event;
    CHECK(-FI_EAGAIN, CTL("fi_eq_read", fi_eq_read(a->eq, &event, &entry, sizeof entry, 0)));
    CHECK(-FI_EAGAIN, CTL("fi_eq_sread", fi_eq_sread(a->eq, &event, &entry, sizeof entry, 2, 0)));
    CHECK(0, CTL("fi_cntr_set", fi_cntr_set(a->cntr, 0)));
    CHECK(0, CTL("fi_cq_signal", fi_cq_signal(a->cq)));
}

/* The path from the first send to a peer that does not exist to its error. */
static void unreachable_peer(void) {
    struct sockaddr_in {
        uint16_t family, port;
        uint8_t ip[4], zero[8];
    } socket = {2, 0x0100, {127, 0, 0, 1}, {0}}; /* AF_INET, port 1 */
    struct side other = {0}, *b = &other;
    open_domain(b, FI_EP_RDM, FI_PROGRESS_MANUAL, "127.0.0.1", FI_SOURCE);
    open_endpoint(b, b->info);
    CHECK(1, CTL("fi_av_insert", fi_av_insert(b->av, &socket, 1, &b->peer, 0, NULL)));
    ssize_t posted = DAT("fi_tsend", fi_tsend(b->ep, from, 8, NULL, b->peer, 7, NULL));
    CHECK(1, posted < 0 || next_error(b, NULL, 0) < 0);
    close_all(b);
}

static void pair(enum fi_progress progress) {
    struct side one = {0}, two = {0}, *a = &one, *b = &two;
    open_domain(a, FI_EP_RDM, progress, NULL, 0);
    open_domain(b, FI_EP_RDM, progress, NULL, 0);
    open_endpoint(a, a->info);
    open_endpoint(b, b->info);
    a->peer = insert(a, b);
    b->peer = insert(b, a);
    connecting = 1;
    POST("fi_tsend", fi_tsend(a->ep, from, 8, NULL, a->peer, 7, NULL));
    POST("fi_trecv", fi_trecv(b->ep, to, 8, NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
    pump(a, 1, b, 1);
    connecting = 0;
    messages(a, b);
    accesses(b, a);
    waits(a);
    unreachable_peer();
    /* One side closes while the other has pending operations. */
    POST("fi_trecv", fi_trecv(b->ep, to, 8, NULL, b->peer, 9, 0, NULL));
    close_all(a);
    for (int round = 0; round < 100; round++) take(b);
    close_all(b);
}

static struct fi_info *event(struct side *side, struct side *other, uint32_t expected, struct fi_eq_cm_entry *entry) {
    uint32_t found;
    int64_t end = now_ns() + LIMIT_NS;
    ssize_t result;
    while ((result = CTL("fi_eq_read", fi_eq_read(side->eq, &found, entry, sizeof *entry, 0))) == -FI_EAGAIN && now_ns() < end) {
        struct fi_eq_cm_entry ignored;
        if (other) CHECK(-FI_EAGAIN, CTL("fi_eq_read", fi_eq_read(other->eq, &found, &ignored, sizeof ignored, FI_PEEK)));
    }
    CHECK(expected, result < 0 ? (long long)result : (long long)found);
    return entry->info;
}

/* Connected endpoints, from the listener to the end of the connection. */
static void connected(void) {
    struct side one = {0}, two = {0}, *a = &one, *b = &two;
    struct fi_eq_cm_entry entry;
    struct fid_pep *pep;
    char name[64];
    size_t len = sizeof name;
    open_domain(a, FI_EP_MSG, FI_PROGRESS_MANUAL, "127.0.0.1", FI_SOURCE);
    open_domain(b, FI_EP_MSG, FI_PROGRESS_MANUAL, "127.0.0.1", FI_SOURCE);
    CHECK(0, CTL("fi_passive_ep", fi_passive_ep(b->fabric, b->info, &pep, NULL)));
    CHECK(0, CTL("fi_pep_bind", fi_pep_bind(pep, &b->eq->fid, 0)));
    CHECK(0, CTL("fi_listen", fi_listen(pep)));
    CHECK(0, CTL("fi_getname", fi_getname(&pep->fid, name, &len)));
    open_endpoint(a, a->info);
    CHECK(0, CTL("fi_connect", fi_connect(a->ep, name, "hello", 5)));
    struct fi_info *call = event(b, a, FI_CONNREQ, &entry);
    CHECK(0, CTL("fi_reject", fi_reject(pep, call->handle, NULL, 0)));
    fi_freeinfo(call);
    CHECK(-FI_EAVAIL, CTL("fi_eq_sread", fi_eq_sread(a->eq, (uint32_t[1]){0}, &entry, sizeof entry, 5000, 0)));
    struct fi_eq_err_entry failed = {0};
    CTL("fi_eq_readerr", fi_eq_readerr(a->eq, &failed, 0));
    CHECK(0, CTL("fi_close(ep)", fi_close(&a->ep->fid)));
    CHECK(0, CTL("fi_endpoint", fi_endpoint(a->domain, a->info, &a->ep, NULL)));
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(a->ep, &a->eq->fid, 0)));
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(a->ep, &a->cq->fid, FI_TRANSMIT | FI_RECV)));
    CHECK(0, CTL("fi_enable", fi_enable(a->ep)));
    CHECK(0, CTL("fi_connect", fi_connect(a->ep, name, "hello", 5)));
    call = event(b, a, FI_CONNREQ, &entry);
    open_endpoint(b, call);
    fi_freeinfo(call);
    CHECK(0, CTL("fi_accept", fi_accept(b->ep, NULL, 0)));
    event(a, b, FI_CONNECTED, &entry);
    event(b, NULL, FI_CONNECTED, &entry);
    messages(a, b);
    CHECK(0, CTL("fi_shutdown", fi_shutdown(a->ep, 0)));
    event(b, NULL, FI_SHUTDOWN, &entry);
    CHECK(0, CTL("fi_close(pep)", fi_close(&pep->fid)));
    close_all(a);
    close_all(b);
}

/* Opens and closes scalable endpoints, shared contexts and datagram endpoints. */
static void other_kinds(void) {
    struct side one = {0}, *a = &one;
    struct fid_ep *sep, *context[2], *srx;
    struct fid_stx *stx;
    struct fid_wait *wait;
    struct fid_poll *poll;
    open_domain(a, FI_EP_DGRAM, FI_PROGRESS_MANUAL, NULL, 0);
    open_endpoint(a, a->info);
    close_all(a);
    memset(a, 0, sizeof *a);
    open_domain(a, FI_EP_RDM, FI_PROGRESS_AUTO, NULL, 0);
    CHECK(0, CTL("fi_srx_context", fi_srx_context(a->domain, a->info->rx_attr, &srx, NULL)));
    CHECK(0, CTL("fi_stx_context", fi_stx_context(a->domain, a->info->tx_attr, &stx, NULL)));
    CHECK(0, CTL("fi_close(srx)", fi_close(&srx->fid)));
    CHECK(0, CTL("fi_close(stx)", fi_close(&stx->fid)));
    struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD};
    struct fi_poll_attr poll_attr = {0};
    CHECK(0, CTL("fi_wait_open", fi_wait_open(a->fabric, &wait_attr, &wait)));
    CHECK(0, CTL("fi_close(wait)", fi_close(&wait->fid)));
    CHECK(0, CTL("fi_poll_open", fi_poll_open(a->domain, &poll_attr, &poll)));
    CHECK(0, CTL("fi_close(poll)", fi_close(&poll->fid)));
    close_all(a);
    memset(a, 0, sizeof *a);
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = 2;
    hints->caps = FI_MSG | FI_NAMED_RX_CTX;
    hints->domain_attr->mr_mode = 0;
    hints->fabric_attr->prov_name = strdup("weft");
    CHECK(0, CTL("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &a->info)));
    fi_freeinfo(hints);
    CHECK(0, CTL("fi_fabric", fi_fabric(a->info->fabric_attr, &a->fabric, NULL)));
    CHECK(0, CTL("fi_domain", fi_domain(a->fabric, a->info, &a->domain, NULL)));
    struct fi_eq_attr eq = {.wait_obj = FI_WAIT_UNSPEC};
    CHECK(0, CTL("fi_eq_open", fi_eq_open(a->fabric, &eq, &a->eq, NULL)));
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
    CHECK(0, CTL("fi_cq_open", fi_cq_open(a->domain, &cq, &a->cq, NULL)));
    struct fi_av_attr av = {.type = FI_AV_TABLE, .rx_ctx_bits = 2};
    CHECK(0, CTL("fi_av_open", fi_av_open(a->domain, &av, &a->av, NULL)));
    CHECK(0, CTL("fi_scalable_ep", fi_scalable_ep(a->domain, a->info, &sep, NULL)));
    CHECK(0, CTL("fi_scalable_ep_bind", fi_scalable_ep_bind(sep, &a->av->fid, 0)));
    CHECK(0, CTL("fi_tx_context", fi_tx_context(sep, 0, NULL, &context[0], NULL)));
    CHECK(0, CTL("fi_rx_context", fi_rx_context(sep, 0, NULL, &context[1], NULL)));
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(context[0], &a->cq->fid, FI_TRANSMIT)));
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(context[1], &a->cq->fid, FI_RECV)));
    CHECK(0, CTL("fi_enable", fi_enable(sep)));
    CHECK(0, CTL("fi_enable", fi_enable(context[0])));
    CHECK(0, CTL("fi_enable", fi_enable(context[1])));
    for (int i = 0; i < 2; i++) CHECK(0, CTL("fi_close(ep)", fi_close(&context[i]->fid)));
    CHECK(0, CTL("fi_close(sep)", fi_close(&sep->fid)));
    close_all(a);
}

/* Refused calls, most of them with a log line. */
static void refused(void) {
    struct side one = {0}, *a = &one;
    struct fi_info *hints = fi_allocinfo(), *none;
    hints->ep_attr->type = FI_EP_RDM;
    hints->ep_attr->protocol = 12345;
    hints->fabric_attr->prov_name = strdup("weft");
    CHECK(-FI_ENODATA, CTL("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none)));
    fi_freeinfo(hints);
    open_domain(a, FI_EP_RDM, FI_PROGRESS_MANUAL, NULL, 0);
    CHECK(0, CTL("fi_endpoint", fi_endpoint(a->domain, a->info, &a->ep, NULL)));
    CHECK(-FI_ENOAV, CTL("fi_enable", fi_enable(a->ep)));
    struct fi_cq_attr cq = {.size = (size_t)1 << 40};
    CHECK(-FI_ENOMEM, CTL("fi_cq_open", fi_cq_open(a->domain, &cq, &a->cq, NULL)));
    a->cq = NULL;
    CHECK(-FI_EOPBADSTATE, DAT("fi_tsend", fi_tsend(a->ep, from, 8, NULL, 0, 7, NULL)));
    /* The devices find no free descriptor. */
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_TAGGED};
    struct rlimit limit, none_left;
    CHECK(0, CTL("fi_av_open", fi_av_open(a->domain, &av, &a->av, NULL)));
    CHECK(0, CTL("fi_cq_open", fi_cq_open(a->domain, &queue, &a->cq, NULL)));
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(a->ep, &a->av->fid, 0)));
    CHECK(0, CTL("fi_ep_bind", fi_ep_bind(a->ep, &a->cq->fid, FI_TRANSMIT | FI_RECV)));
    getrlimit(RLIMIT_NOFILE, &limit);
    none_left = limit;
    none_left.rlim_cur = 4;
    setrlimit(RLIMIT_NOFILE, &none_left);
    CHECK(1, CTL("fi_enable", fi_enable(a->ep)) < 0);
    setrlimit(RLIMIT_NOFILE, &limit);
    close_all(a);
}

/* Measures the stack of the host library for a log line, from its caller's frame on. */
static void host_share(const struct fi_provider *prov) {
    lines = 0;
    MEASURED(CONTROL, "fi_log", (fi_log(prov, FI_LOG_WARN, FI_LOG_CORE, "stack", 1, "%s\n", "a line"), 0));
}

int main(int argc, char **argv) {
    static struct fi_ops_log ops = {.enabled = log_enabled, .log = log_line};
    static struct fid_logging logging = {.ops = &ops};
    static struct fi_provider named = {.name = "weft"};
    (void)argv;
    from = calloc(1, LONG_BYTES);
    to = calloc(1, LONG_BYTES);
    if (argc > 1) {
        CHECK(0, fi_import_log(FI_VERSION(1, 17), 0, &logging));
        host_share(&named);
    }
    refused();
    pair(FI_PROGRESS_MANUAL);
    pair(FI_PROGRESS_AUTO);
    connected();
    other_kinds();
    for (int at = 0; at < functions; at++)
        printf("%s %s %zu %zu\n", seen[at].name, seen[at].path == DATA ? "data" : "control", seen[at].most[0], seen[at].most[1]);
    return 0;
}
