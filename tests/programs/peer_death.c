/* One of two processes, of which one will be killed: `peer_death victim` or `peer_death survivor`.
 *
 * Both exchange messages until they are connected. Then the survivor has two pending operations that only the
 * victim could complete: a receive from it, and a long send to it. It prints "ready". For each of the
 * operations it prints the time (CLOCK_MONOTONIC, in nanoseconds) and the result. A later send must fail, too,
 * and all objects must close. After 3 s it gives up and prints "nothing".
 */
#include "pair.h"

#include <unistd.h>

#define LONG_BYTES (64 << 20)
#define LIMIT_NS 3000000000ll

static void rounds(int first, char *small) {
    struct fi_context contexts[2];
    for (int i = 0; i < 100; i++) {
        POST(fi_trecv(ep, small, 64, NULL, peer, 1, 0, &contexts[0]));
        if (first) POST(fi_tsend(ep, small + 64, 64, NULL, peer, 1, &contexts[1]));
        int error = 0;
        void *one = next_completion(LIMIT_NS, &error);
        if (!first) {
            if (one != &contexts[0] || error) exit(2);
            POST(fi_tsend(ep, small + 64, 64, NULL, peer, 1, &contexts[1]));
            wait_for(&contexts[1]);
        } else {
            if (!one || error) exit(2);
            wait_for(one == &contexts[0] ? &contexts[1] : &contexts[0]);
        }
    }
}

static void say(const char *what, void *context, int error) {
    if (!context)
        printf("%s nothing\n", what);
    else
        printf("%s %d %lld\n", what, error, (long long)now_ns());
    fflush(stdout);
}

int main(int argc, char **argv) {
    int survivor = argc > 1 && !strcmp(argv[1], "survivor");
    char *small = calloc(1, 128), *big = malloc(LONG_BYTES);
    memset(big, 1, LONG_BYTES);
    open_endpoint();
    exchange_names();
    rounds(survivor, small);
    if (!survivor) {
        printf("ready\n");
        fflush(stdout);
        for (;;) fi_cq_read(cq, NULL, 0);
    }
    struct fi_context receive, send, late;
    POST(fi_trecv(ep, small, 64, NULL, peer, 2, 0, &receive));
    POST(fi_tsend(ep, big, LONG_BYTES, NULL, peer, 3, &send));
    int error;
    int64_t settle = now_ns() + 200000000;
    while (now_ns() < settle)
        if (fi_cq_read(cq, NULL, 0) == -FI_EAVAIL) break;
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        void *done = next_completion(LIMIT_NS, &error);
        say(done == &send ? "send" : done == &receive ? "receive" : "operation", done, error);
    }
    ssize_t posted;
    while ((posted = fi_tsend(ep, small, 64, NULL, peer, 4, &late)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
    if (posted < 0)
        say("late", &late, (int)-posted);
    else {
        void *done = next_completion(LIMIT_NS, &error);
        say("late", done, error);
    }
    close_endpoint();
    printf("closed %lld\n", (long long)now_ns());
    return 0;
}
