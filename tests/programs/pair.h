/* A pair of processes over one libfabric provider, without MPI, for the programs of the kill tests.
 *
 * The processes exchange their names as lines of hexadecimal digits over standard output and input. The process
 * that started them (kill_pair.py) transfers the names and knows the state at each step.
 */
#ifndef PAIR_H
#define PAIR_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef PAIR_CAPS
#define PAIR_CAPS (FI_TAGGED | FI_DIRECTED_RECV)
#endif

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t peer;

#define CHECK(call)                                                                              \
    do {                                                                                         \
        long result_ = (call);                                                                   \
        if (result_ < 0) {                                                                       \
            fprintf(stderr, "%s: %s\n", #call, fi_strerror((int)-result_));                      \
            exit(2);                                                                             \
        }                                                                                        \
    } while (0)

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void open_endpoint(void) {
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = PAIR_CAPS;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = 0;
    hints->fabric_attr->prov_name = strdup(getenv("FI_PROVIDER"));
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 2};
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 128};
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    CHECK(fi_enable(ep));
}

/* Prints the own name and reads the peer's. */
static void exchange_names(void) {
    unsigned char name[256];
    size_t len = sizeof name;
    CHECK(fi_getname(&ep->fid, name, &len));
    printf("name ");
    for (size_t i = 0; i < len; i++) printf("%02x", name[i]);
    printf("\n");
    fflush(stdout);
    char line[600];
    if (!fgets(line, sizeof line, stdin)) exit(2);
    for (size_t i = 0; i < len; i++) {
        unsigned byte;
        if (sscanf(line + 2 * i, "%2x", &byte) != 1) exit(2);
        name[i] = (unsigned char)byte;
    }
    if (fi_av_insert(av, name, 1, &peer, 0, NULL) != 1) exit(2);
}

/* Returns the context of the next completion, and its error or 0. Gives up after `limit_ns` nanoseconds. */
static void *next_completion(int64_t limit_ns, int *error) {
    struct fi_cq_tagged_entry entry;
    int64_t start = now_ns();
    for (;;) {
        ssize_t count = fi_cq_read(cq, &entry, 1);
        if (count == 1) {
            *error = 0;
            return entry.op_context;
        }
        if (count == -FI_EAVAIL) {
            struct fi_cq_err_entry failed = {0};
            if (fi_cq_readerr(cq, &failed, 0) != 1) exit(2);
            *error = failed.err;
            return failed.op_context;
        }
        if (count != -FI_EAGAIN) {
            fprintf(stderr, "fi_cq_read: %s\n", fi_strerror((int)-count));
            exit(2);
        }
        if (now_ns() - start > limit_ns) return NULL;
    }
}

static void wait_for(void *context) {
    int error = 0;
    void *found = next_completion(10000000000ll, &error);
    if (found != context || error) {
        fprintf(stderr, "expected a completion, found %p, error %d\n", found, error);
        exit(2);
    }
}

/* Calls a posting function until it accepts the operation, with progress between the calls. */
#define POST(call)                                                                               \
    do {                                                                                         \
        ssize_t posted_;                                                                         \
        while ((posted_ = (call)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);                        \
        CHECK(posted_);                                                                          \
    } while (0)

static void close_endpoint(void) {
    CHECK(fi_close(&ep->fid));
    CHECK(fi_close(&cq->fid));
    CHECK(fi_close(&av->fid));
    CHECK(fi_close(&domain->fid));
    CHECK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

#endif
