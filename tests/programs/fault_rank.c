/* One rank of a job with a fault: `fault_rank RANK SEED FAULT`. fault_job.py starts the ranks and sends them
 * orders.
 *
 * A rank exchanges tagged messages of mixed sizes with each of its peers, in both directions. It also writes to
 * the peer's memory, reads its data back, and adds to two of the peer's numbers. All content follows from
 * source, target and position in the stream, so that lost, repeated, reordered or changed data is detected at
 * once.
 *
 * An operation may fail only if its peer is lost. Then all pending operations with that peer must fail, and so
 * must a later send. A later receive waits: it may have been posted before the rank noticed the loss, so the
 * rank cancels it.
 *
 * Orders:
 *   peer RANK NAME   exchange messages with this rank
 *   gone RANK        receives from this rank may be cancelled
 *   stop             send no more, and wait for all arrivals
 *   tell             print open operations
 *   close            close and exit
 * Output:
 *   name NAME
 *   ready RANK       a message of the rank has arrived
 *   lost RANK LAST LATE ERRORS...   the time of the last failure, the duration of the later send, and the errors
 *   done MESSAGES TOTAL
 *   closed           or `refused` if the endpoint could not be opened
 *   wrong REASON     any error
 * Times are CLOCK_MONOTONIC in nanoseconds.
 *
 * FAULT strikes this rank itself, at the start or, with the prefix `late-`, at SIGUSR1: see strike().
 * FAULT_AUTO sets automatic progress. With FAULT_CUTS a lost peer may return: no late send is tried, and
 * messages of a lost peer are received and dropped.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A restarted rank has the number RANK + 8, so its messages and numbers differ. */
#define RANKS 16
#define WINDOW 4
#define LONGEST (256 << 10)
#define WRITE_MAX (96 << 10)
#define AREAS 4096
#define KEY 77
enum { DATA = 1, FINAL = 2, LATE = 3 };
enum kind { IDLE, SEND, RECEIVE, SEND_FINAL, RECEIVE_FINAL, WRITE, READ, ADD, FETCH, DRAIN, KINDS };
static const char *const KIND[] = {"idle", "send", "receive", "last send", "last receive", "write", "read", "add", "fetch", "drain"};

struct op {
    struct fi_context2 context;
    enum kind kind;
    int peer;
    uint64_t sequence;
    size_t length;
    uint64_t turn; /* the number of times the queue had been found empty at the post */
    int excused;   /* whether it may end as cancelled */
    unsigned char *buffer;
};

struct final {
    uint64_t messages, adds;
};

static struct peer {
    int known, lost, gone, ended, ready, final_sent, final_came;
    fi_addr_t address;
    struct op sends[WINDOW], receives[WINDOW], last_send, last_receive, access, late, drain;
    uint64_t sent, posted, received, round;
    int pending, errors[8], error_count;
    int64_t last;
    struct final final;
} peers[RANKS];

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *mr;
static unsigned char *region;
static int me, refused, stopping, said_done, closing, draining;
static uint64_t seed, turn;
static volatile sig_atomic_t struck;
static const char *fault;

static void wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("wrong ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    fflush(stdout);
    _exit(3);
}

#define CHECK(call)                                                                   \
    do {                                                                              \
        long result_ = (call);                                                        \
        if (result_ < 0) wrong("%s: %s", #call, fi_strerror((int)-result_));          \
    } while (0)

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The content of one message or write as a number. */
static uint64_t stream(int from, int to, enum kind kind, uint64_t sequence) {
    return mix(mix(seed << 48 ^ (uint64_t)from << 32 ^ (uint64_t)to << 16 ^ kind) + sequence);
}

static size_t length_of(uint64_t id, size_t most) {
    uint64_t draw = id % 100;
    size_t limit = draw < 50 ? 256 : draw < 75 ? 8 << 10 : draw < 95 ? 64 << 10 : LONGEST;
    if (limit > most) limit = most;
    return 1 + (size_t)(mix(id + 1) % limit);
}

static void fill(unsigned char *bytes, size_t length, uint64_t id) {
    size_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word = id + i * 0x9e3779b97f4a7c15u;
        memcpy(bytes + i, &word, 8);
    }
    for (; i < length; i++) bytes[i] = (unsigned char)(id >> 8 ^ i);
}

static void verify(const unsigned char *bytes, size_t length, uint64_t id, const struct op *op) {
    static unsigned char expected[LONGEST];
    fill(expected, length, id);
    if (!memcmp(bytes, expected, length)) return;
    size_t at = 0;
    while (bytes[at] == expected[at]) at++;
    wrong("%s %lu with %d: byte %zu of %zu differs", KIND[op->kind], op->sequence, op->peer, at, length);
}

/* -- Faults of this rank ------------------------------------------------------------------------------------------ */

/* Counts the open descriptors. It tests each number, since opening the directory of descriptors needs one more. */
static int open_descriptors(int *highest) {
    int count = 0;
    *highest = -1;
    for (int number = 0; number < 4096; number++)
        if (fcntl(number, F_GETFD) != -1) {
            *highest = number;
            count++;
        }
    return count;
}

static void limit(int what, rlim_t value) {
    struct rlimit both = {value, value};
    if (setrlimit(what, &both)) wrong("setrlimit: %s", strerror(errno));
}

/* Forbids cross-memory attach from now on, in all threads. */
static void forbid_attach(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        wrong("seccomp: %s", strerror(errno));
}

/* Becomes a process of an ordinary user, without root's right to access the memory of others. */
static void become(unsigned user) {
    if (setresgid(user, user, user) || setresuid(user, user, user)) wrong("setresuid: %s", strerror(errno));
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Grows the stack in advance. The limit covers the stack, too, and a stack that cannot grow ends the process by
 * SIGSEGV. */
static void deepen(void) {
    volatile char room[512 << 10];
    for (size_t i = 0; i < sizeof room; i += 4096) room[i] = 0;
}

static void strike(const char *what) {
    int highest;
    if (!strcmp(what, "exit")) exit(0);
    if (!strcmp(what, "attach")) forbid_attach();
    if (!strcmp(what, "undumpable")) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!strcmp(what, "untraceable")) prctl(PR_SET_PTRACER, 0, 0, 0, 0);
    if (!strcmp(what, "other-user")) become(65533);
    if (!strcmp(what, "descriptors")) {
        open_descriptors(&highest);
        limit(RLIMIT_NOFILE, (rlim_t)highest + 1 + mix(seed) % 24);
    }
    if (!strcmp(what, "memory")) {
        unsigned long pages = 0;
        deepen();
        FILE *file = fopen("/proc/self/statm", "r");
        if (!file || fscanf(file, "%lu", &pages) != 1) wrong("no statm");
        fclose(file);
        limit(RLIMIT_AS, (rlim_t)pages * 4096);
    }
    if (!strcmp(what, "locked")) limit(RLIMIT_MEMLOCK, 0);
    if (!strcmp(what, "files")) limit(RLIMIT_FSIZE, 4096);
}

static void on_signal(int number) {
    (void)number;
    struck = 1;
}

/* -- Operations --------------------------------------------------------------------------------------------------- */

static void failed(struct peer *peer, int error);

/* Whether an operation was started. The queue may be full. Any other error counts as a failure of the peer. */
static int started(struct op *op, ssize_t result) {
    struct peer *peer = &peers[op->peer];
    if (result == -FI_EAGAIN) return 0;
    if (result < 0) {
        failed(peer, (int)-result);
        return 0;
    }
    peer->pending++;
    return 1;
}

static void set(struct op *op, enum kind kind, int peer, uint64_t sequence, size_t length) {
    op->kind = kind;
    op->peer = peer;
    op->sequence = sequence;
    op->length = length;
    op->turn = turn;
    op->excused = 0;
}

static void post_receive(struct peer *peer, struct op *op) {
    set(op, RECEIVE, (int)(peer - peers), peer->posted, LONGEST);
    if (started(op, fi_trecv(ep, op->buffer, LONGEST, NULL, peer->address, DATA, 0, op)))
        peer->posted++;
    else
        op->kind = IDLE;
}

static void post_send(struct peer *peer, struct op *op) {
    int to = (int)(peer - peers);
    uint64_t id = stream(me, to, SEND, peer->sent);
    set(op, SEND, to, peer->sent, length_of(id, LONGEST));
    fill(op->buffer, op->length, id);
    if (started(op, fi_tsend(ep, op->buffer, op->length, NULL, peer->address, DATA, op)))
        peer->sent++;
    else
        op->kind = IDLE;
}

/* Starts one step of a round: write, read back, add to the common number, add to this rank's number. */
static void post_access(struct peer *peer, enum kind kind) {
    struct op *op = &peer->access;
    int to = (int)(peer - peers);
    uint64_t id = stream(me, to, WRITE, peer->round), area = AREAS + (uint64_t)me * WRITE_MAX;
    static uint64_t one = 1;
    set(op, kind, to, peer->round, kind == WRITE || kind == READ ? length_of(id, WRITE_MAX) : 8);
    ssize_t result;
    if (kind == WRITE) {
        fill(op->buffer, op->length, id);
        result = fi_write(ep, op->buffer, op->length, NULL, peer->address, area, KEY, op);
    } else if (kind == READ) {
        result = fi_read(ep, op->buffer + WRITE_MAX, op->length, NULL, peer->address, area, KEY, op);
    } else if (kind == ADD) {
        result = fi_atomic(ep, &one, 1, NULL, peer->address, 0, KEY, FI_UINT64, FI_SUM, op);
    } else {
        uint64_t at = 8 + 8 * (uint64_t)me;
        result = fi_fetch_atomic(ep, &one, 1, NULL, op->buffer, NULL, peer->address, at, KEY, FI_UINT64, FI_SUM, op);
    }
    if (!started(op, result)) op->kind = IDLE;
}

/* A lost peer may still reach this rank once it has a link. Its operations must not wait for a receive, so this
 * receive takes their messages and drops them. */
static void post_drain(struct peer *peer) {
    struct op *op = &peer->drain;
    if (!draining || closing || op->kind == DRAIN) return;
    set(op, DRAIN, (int)(peer - peers), 0, LONGEST);
    ssize_t result = fi_trecv(ep, op->buffer, LONGEST, NULL, peer->address, 0, ~0ull, op);
    if (result) op->kind = IDLE;
}

static void post(struct peer *peer) {
    if (!peer->known) return;
    if (peer->lost || peer->gone) {
        post_drain(peer);
        return;
    }
    for (int i = 0; i < WINDOW && !peer->lost; i++)
        if (peer->receives[i].kind == IDLE && !closing) post_receive(peer, &peer->receives[i]);
    for (int i = 0; i < WINDOW && !peer->lost && !stopping; i++)
        if (peer->sends[i].kind == IDLE) post_send(peer, &peer->sends[i]);
    /* The four steps of a round follow one another. If a step cannot start, the round restarts with its first
     * step. */
    if (!peer->lost && !stopping && peer->access.kind == IDLE) post_access(peer, WRITE);
    int quiet = peer->access.kind == IDLE;
    for (int i = 0; i < WINDOW; i++) quiet &= peer->sends[i].kind == IDLE;
    if (!peer->lost && stopping && quiet && !peer->final_sent) {
        struct final final = {peer->sent, peer->round};
        memcpy(peer->last_send.buffer, &final, sizeof final);
        set(&peer->last_send, SEND_FINAL, (int)(peer - peers), 0, sizeof final);
        peer->final_sent = started(&peer->last_send, fi_tsend(ep, peer->last_send.buffer, sizeof final, NULL, peer->address, FINAL, &peer->last_send));
    }
}

/* The peer is lost. No operation is started with it any more, except one late send after all others have ended.
 * No failure was known when the queue was last empty, so receives posted by then must fail by themselves. Later
 * ones may have missed the loss, so they are cancelled. */
static void failed(struct peer *peer, int error) {
    for (int i = 0; i < WINDOW && !peer->lost; i++) {
        struct op *op = &peer->receives[i];
        if (op->kind != RECEIVE || op->turn != turn) continue;
        op->excused = 1;
        fi_cancel(&ep->fid, op);
    }
    peer->lost = 1;
    peer->last = now_ns();
    for (int i = 0; i < peer->error_count; i++)
        if (peer->errors[i] == error) return;
    if (peer->error_count < 8) peer->errors[peer->error_count++] = error;
}

static void late_send(struct peer *peer) {
    static unsigned char word[8];
    set(&peer->late, SEND, (int)(peer - peers), (uint64_t)now_ns(), 8);
    ssize_t result;
    while ((result = fi_tsend(ep, word, 8, NULL, peer->address, LATE, &peer->late)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
    if (result == 0) peer->pending++;
}

static void ended(struct peer *peer) {
    if (!peer->lost || peer->pending || peer->ended) return;
    if (!peer->late.kind && !peer->gone && !draining) {
        late_send(peer);
        if (peer->pending) return;
    }
    peer->ended = 1;
    int64_t late = peer->late.kind ? now_ns() - (int64_t)peer->late.sequence : 0;
    printf("lost %d %ld %ld", (int)(peer - peers), peer->last, late);
    for (int i = 0; i < peer->error_count; i++) printf(" %d", peer->errors[i]);
    printf("\n");
    fflush(stdout);
}

static void good(struct op *op, const struct fi_cq_tagged_entry *entry) {
    struct peer *peer = &peers[op->peer];
    enum kind kind = op->kind;
    if (op == &peer->late) wrong("a send to lost %d was good", op->peer);
    switch (kind) {
    case RECEIVE: {
        uint64_t id = stream(op->peer, me, SEND, op->sequence);
        if (entry->len != length_of(id, LONGEST) || entry->tag != DATA)
            wrong("message %lu from %d: length %zu, expected %zu", op->sequence, op->peer, entry->len, length_of(id, LONGEST));
        verify(op->buffer, entry->len, id, op);
        peer->received++;
        if (!peer->ready) {
            peer->ready = 1;
            printf("ready %d\n", op->peer);
            fflush(stdout);
        }
        break;
    }
    case RECEIVE_FINAL:
        if (entry->len != sizeof peer->final) wrong("last message from %d: %zu bytes", op->peer, entry->len);
        memcpy(&peer->final, op->buffer, sizeof peer->final);
        peer->final_came = 1;
        break;
    case READ: verify(op->buffer + WRITE_MAX, op->length, stream(me, op->peer, WRITE, op->sequence), op); break;
    case FETCH: {
        uint64_t before;
        memcpy(&before, op->buffer, 8);
        if (before != op->sequence) wrong("number at %d was %lu, expected %lu", op->peer, before, op->sequence);
        peer->round++;
        break;
    }
    default: break;
    }
    op->kind = IDLE;
    if (kind == WRITE || kind == READ || kind == ADD) {
        while (!peer->lost && op->kind == IDLE) {
            post_access(peer, kind + 1); /* READ, ADD, FETCH */
            if (op->kind == IDLE && !peer->lost) fi_cq_read(cq, NULL, 0);
        }
    }
}

/* Handles the completions. Returns whether there were any. */
static int complete(void) {
    struct fi_cq_tagged_entry entries[16];
    ssize_t count = fi_cq_read(cq, entries, 16);
    if (count == -FI_EAGAIN) {
        turn++;
        return 0;
    }
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        if (fi_cq_readerr(cq, &error, 0) != 1) wrong("no error entry");
        struct op *op = error.op_context;
        struct peer *peer = &peers[op->peer];
        if (op->kind == DRAIN) {
            op->kind = IDLE;
            return 1;
        }
        peer->pending--;
        int cancelled = error.err == FI_ECANCELED && (peer->gone || closing || op->excused) && (op->kind == RECEIVE || op->kind == RECEIVE_FINAL);
        if (!cancelled && op != &peer->late) failed(peer, error.err);
        op->kind = op == &peer->late ? KINDS : IDLE;
        ended(peer);
        return 1;
    }
    if (count < 0) wrong("fi_cq_read: %s", fi_strerror((int)-count));
    for (ssize_t i = 0; i < count; i++) {
        struct op *op = entries[i].op_context;
        if (op->kind == DRAIN) {
            op->kind = IDLE;
            continue;
        }
        peers[op->peer].pending--;
        good(op, &entries[i]);
        ended(&peers[op->peer]);
    }
    return 1;
}

static void cancel_receives(struct peer *peer) {
    for (int i = 0; i < WINDOW; i++)
        if (peer->receives[i].kind == RECEIVE) fi_cancel(&ep->fid, &peer->receives[i]);
    if (peer->last_receive.kind == RECEIVE_FINAL) fi_cancel(&ep->fid, &peer->last_receive);
    if (peer->drain.kind == DRAIN) fi_cancel(&ep->fid, &peer->drain);
}

/* Reports the end once all messages of live peers have arrived. Checks their number, and the sums of their
 * additions. */
static void say_if_done(void) {
    if (!stopping || said_done) return;
    uint64_t total, sum = 0, open = 0;
    memcpy(&total, region, 8);
    for (int i = 0; i < RANKS; i++) {
        struct peer *peer = &peers[i];
        uint64_t number;
        memcpy(&number, region + 8 + 8 * i, 8);
        sum += number;
        if (!peer->known) continue;
        if (peer->lost || peer->gone) {
            if (peer->pending) return;
            open++; /* the peer may have ended between its two additions */
            continue;
        }
        if (!peer->final_came || !peer->final_sent || peer->received < peer->final.messages || peer->pending != WINDOW) return;
        if (peer->received != peer->final.messages) wrong("%lu messages from %d, which sent %lu", peer->received, i, peer->final.messages);
        if (number != peer->final.adds) wrong("number of %d is %lu, expected %lu", i, number, peer->final.adds);
    }
    if (total < sum || total > sum + open) wrong("the number of all is %lu, the others give %lu", total, sum);
    said_done = 1;
    uint64_t messages = 0;
    for (int i = 0; i < RANKS; i++) messages += peers[i].received;
    printf("done %lu %lu\n", messages, total);
    fflush(stdout);
}

/* Prints the open operations, for the report of a run that hangs. */
static void tell(void) {
    for (int i = 0; i < RANKS; i++) {
        struct peer *peer = &peers[i];
        if (!peer->known) continue;
        printf("%s with %d: sent %lu, received %lu of %ld, %d pending, rounds %lu%s:", peer->gone ? "gone" : "open", i, peer->sent, peer->received,
               peer->final_came ? (long)peer->final.messages : -1L, peer->pending, peer->round, peer->lost ? ", lost" : "");
        const struct op *ops[2 * WINDOW + 4] = {&peer->last_send, &peer->last_receive, &peer->access, &peer->late};
        for (int k = 0; k < WINDOW; k++) ops[4 + k] = &peer->sends[k], ops[4 + WINDOW + k] = &peer->receives[k];
        for (int k = 0; k < 2 * WINDOW + 4; k++)
            if (ops[k]->kind != IDLE) printf(" %s %lu of %zu bytes,", KIND[ops[k]->kind], ops[k]->sequence, ops[k]->length);
        printf("\n");
    }
    fflush(stdout);
}

/* -- Orders ------------------------------------------------------------------------------------------------------- */

static void meet(int number, const char *hex) {
    struct peer *peer = &peers[number];
    unsigned char name[256];
    size_t length = strlen(hex) / 2;
    for (size_t i = 0; i < length && i < sizeof name; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) wrong("bad name");
        name[i] = (unsigned char)byte;
    }
    if (fi_av_insert(av, name, 1, &peer->address, 0, NULL) != 1) wrong("fi_av_insert");
    for (int i = 0; i < WINDOW; i++) {
        peer->sends[i].buffer = malloc(LONGEST);
        peer->receives[i].buffer = malloc(LONGEST);
    }
    peer->access.buffer = malloc(2 * WRITE_MAX);
    peer->last_send.buffer = malloc(64);
    peer->last_receive.buffer = malloc(64);
    peer->drain.buffer = malloc(LONGEST);
    set(&peer->last_receive, RECEIVE_FINAL, number, 0, 64);
    if (!started(&peer->last_receive, fi_trecv(ep, peer->last_receive.buffer, 64, NULL, peer->address, FINAL, 0, &peer->last_receive)))
        wrong("fi_trecv");
    peer->known = 1;
}

static void obey(void) {
    static char text[4096];
    static size_t have;
    ssize_t count = read(0, text + have, sizeof text - 1 - have);
    if (count == 0) exit(4); /* the starting process has ended */
    if (count < 0) return;
    have += (size_t)count;
    text[have] = 0;
    char *line = text, *end;
    while ((end = strchr(line, '\n'))) {
        *end = 0;
        int number;
        char hex[520];
        if (sscanf(line, "peer %d %519s", &number, hex) == 2) meet(number, hex);
        if (sscanf(line, "gone %d", &number) == 1) {
            peers[number].gone = peers[number].lost = 1;
            cancel_receives(&peers[number]);
            ended(&peers[number]);
        }
        if (!strcmp(line, "stop")) stopping = 1;
        if (!strcmp(line, "close")) closing = 1;
        if (!strcmp(line, "tell")) tell();
        line = end + 1;
    }
    have = strlen(line);
    memmove(text, line, have + 1);
}

static void open_all(void) {
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = RANKS};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 1024};
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    int enabled = fi_enable(ep);
    if (enabled == -FI_EMFILE && !strcmp(fault, "descriptors")) refused = 1;
    if (!refused) CHECK(enabled);
    size_t bytes = AREAS + (size_t)RANKS * WRITE_MAX;
    region = calloc(1, bytes);
    CHECK(fi_mr_reg(domain, region, bytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
}

static void close_all(void) {
    CHECK(fi_close(&mr->fid));
    CHECK(fi_close(&ep->fid));
    CHECK(fi_close(&cq->fid));
    CHECK(fi_close(&av->fid));
    CHECK(fi_close(&domain->fid));
    CHECK(fi_close(&fabric->fid));
}

/* Requests a fixed port, so that a restarted rank has its former address. */
static void get_info(void) {
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = 0;
    if (getenv("FAULT_AUTO")) hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    hints->fabric_attr->prov_name = strdup(getenv("FI_PROVIDER"));
    char service[8];
    snprintf(service, sizeof service, "%d", 7000 + me % 8);
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, getenv("FAULT_PORTS") ? service : NULL, getenv("FAULT_PORTS") ? FI_SOURCE : 0, hints, &info));
    fi_freeinfo(hints);
}

/* Closes all objects, and checks that no descriptor is left. */
static int finish(int before) {
    int highest;
    close_all();
    int after = open_descriptors(&highest);
    if (after != before) wrong("%d descriptors, %d before", after, before);
    fi_freeinfo(info);
    printf(refused ? "refused\n" : "closed\n");
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    me = atoi(argv[1]);
    seed = strtoull(argv[2], NULL, 10);
    fault = argv[3];
    draining = getenv("FAULT_CUTS") != NULL;
    signal(SIGUSR1, on_signal);
    signal(SIGPIPE, SIG_IGN);
    fcntl(0, F_SETFL, O_NONBLOCK);
    get_info();
    int late = !strncmp(fault, "late-", 5), highest;
    const char *user = getenv("FAULT_USER");
    if (user && strcmp(fault, "other-user")) become((unsigned)atoi(user));
    /* The pause is long enough for a progress thread to take over. */
    long pause_ns = getenv("FAULT_AUTO") ? 3000000 : 20000;
    int before = open_descriptors(&highest);
    if (!late) strike(fault);
    open_all();
    if (refused) return finish(before);
    unsigned char name[256];
    size_t length = sizeof name;
    CHECK(fi_getname(&ep->fid, name, &length));
    printf("name ");
    for (size_t i = 0; i < length; i++) printf("%02x", name[i]);
    printf("\n");
    fflush(stdout);
    while (!closing) {
        if (struck) {
            struck = 0;
            strike(fault + 5);
        }
        obey();
        int busy = 0;
        for (int i = 0; i < 64 && complete(); i++) busy = 1;
        for (int i = 0; i < RANKS; i++) post(&peers[i]);
        say_if_done();
        if (!busy) nanosleep(&(struct timespec){0, pause_ns}, NULL);
    }
    int pending = 1;
    for (int i = 0; i < RANKS; i++) cancel_receives(&peers[i]);
    while (pending) {
        complete();
        pending = 0;
        for (int i = 0; i < RANKS; i++) pending += peers[i].pending + (peers[i].drain.kind == DRAIN);
    }
    for (int i = 0; i < RANKS; i++)
        if (peers[i].known && !peers[i].lost && peers[i].received != peers[i].final.messages) wrong("one message more from %d", i);
    return finish(before);
}
