/* One of two processes: `checked receiver`, which runs under a memory checker, or `checked sender`.
 *
 * Data reaches the receiver in every way in which the sender could write it to the receiver's memory: long
 * messages, writes to a region, and answers to reads. The receiver's memory is fresh from malloc, and it
 * branches on every byte. It prints "received" if all bytes are right.
 */
#define PAIR_CAPS (FI_TAGGED | FI_DIRECTED_RECV | FI_RMA)
#include "pair.h"

#include <rdma/fi_rma.h>

#define KEY 7

static const size_t LENGTHS[] = {8, 5000, 4 << 20};
#define LENGTH_COUNT (sizeof LENGTHS / sizeof *LENGTHS)
#define MOST_BYTES (4 << 20)

static unsigned char byte_at(size_t at) { return (unsigned char)(at * 7 + 1); }

static int is_right(const unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != byte_at(i)) return 0;
    return 1;
}

static void receive(unsigned char *bytes, size_t len, uint64_t tag) {
    struct fi_context context;
    POST(fi_trecv(ep, bytes, len, NULL, peer, tag, 0, &context));
    wait_for(&context);
}

static void send(const unsigned char *bytes, size_t len, uint64_t tag) {
    struct fi_context context;
    POST(fi_tsend(ep, bytes, len, NULL, peer, tag, &context));
    wait_for(&context);
}

static struct fid_mr *register_memory(unsigned char *bytes, uint64_t access) {
    struct fid_mr *region;
    CHECK(fi_mr_reg(domain, bytes, MOST_BYTES, access, 0, KEY, 0, &region, NULL));
    return region;
}

static void receiver(void) {
    unsigned char token = 0;
    for (size_t n = 0; n < LENGTH_COUNT; n++) {
        size_t len = LENGTHS[n];
        unsigned char *bytes = malloc(MOST_BYTES);
        receive(bytes, len, 1);
        if (!is_right(bytes, len)) exit(3);
        free(bytes);

        bytes = malloc(MOST_BYTES);
        struct fid_mr *region = register_memory(bytes, FI_REMOTE_WRITE);
        send(&token, 1, 2);
        receive(&token, 1, 3);
        if (!is_right(bytes, len)) exit(4);
        CHECK(fi_close(&region->fid));
        free(bytes);

        bytes = malloc(MOST_BYTES);
        struct fi_context context;
        POST(fi_read(ep, bytes, len, NULL, peer, 0, KEY, &context));
        wait_for(&context);
        if (!is_right(bytes, len)) exit(5);
        free(bytes);
    }
    send(&token, 1, 4);
    printf("received\n");
}

static void sender(void) {
    unsigned char token = 0, *bytes = malloc(MOST_BYTES);
    for (size_t i = 0; i < MOST_BYTES; i++) bytes[i] = byte_at(i);
    struct fid_mr *region = register_memory(bytes, FI_REMOTE_READ);
    for (size_t n = 0; n < LENGTH_COUNT; n++) {
        send(bytes, LENGTHS[n], 1);
        receive(&token, 1, 2);
        struct fi_context context;
        POST(fi_write(ep, bytes, LENGTHS[n], NULL, peer, 0, KEY, &context));
        wait_for(&context);
        send(&token, 1, 3);
    }
    receive(&token, 1, 4);
    CHECK(fi_close(&region->fid));
    printf("sent\n");
}

int main(int argc, char **argv) {
    open_endpoint();
    exchange_names();
    if (argc > 1 && !strcmp(argv[1], "receiver"))
        receiver();
    else
        sender();
    close_endpoint();
    return 0;
}
