/* Threads of clients: locks, messages, accesses, events of other threads. Built for PAR. C99 and C++11. With a number
   as argument there are as many threads, and each awaits its replies one by one. */
#include "job.h"

#define MOST_THREADS 32
#define ROUNDS 300

static int count = 4, one_by_one = 0;

static gex_HSL_t lock = GEX_HSL_INITIALIZER;
static gex_HSL_t made;
static int guarded, handled;
static gasnett_atomic_t replies = gasnett_atomic_init(0);
static gex_Event_t handed_over[MOST_THREADS];
static gasnett_atomic_t answered[MOST_THREADS];

GASNETT_BEGIN_EXTERNC
static void request(gex_Token_t token, gex_AM_Arg_t thread) {
  gex_HSL_Lock(&lock);
  handled++;
  gex_HSL_Unlock(&lock);
  OK(gex_AM_ReplyShort1(token, 201, 0, thread));
}
static void reply(gex_Token_t token, gex_AM_Arg_t thread) {
  (void)token;
  CHECK(thread >= 0 && thread < count);
  gasnett_atomic_increment(&answered[thread], GASNETT_ATOMIC_REL);
  gasnett_atomic_increment(&replies, GASNETT_ATOMIC_REL);
}
GASNETT_END_EXTERNC

static gex_AM_Entry_t table[] = {
    {200, (gex_AM_Fn_t)request, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, NULL, NULL},
    {201, (gex_AM_Fn_t)reply, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REPLY, 1, NULL, NULL},
};

static void *work(void *argument) {
  const int thread = (int)(uintptr_t)argument;
  const gex_Rank_t peer = (rank + (gex_Rank_t)thread) % size;
  uint64_t *target = (uint64_t *)segment_of(peer) + (size_t)rank * MOST_THREADS + (size_t)thread;
  uint64_t value, in;
  int i;
  for (i = 0; i < ROUNDS; i++) {
    gex_HSL_Lock(&lock);
    guarded++;
    gex_HSL_Unlock(&lock);
    OK(gex_AM_RequestShort1(tm, peer, 200, 0, thread));
    if (one_by_one) GASNET_BLOCKUNTIL((int)gasnett_atomic_read(&answered[thread], GASNETT_ATOMIC_ACQ) > i);
    value = (uint64_t)i * MOST_THREADS + (uint64_t)thread;
    in = 0;
    OK(gex_RMA_PutNBI(tm, peer, target, &value, 8, GEX_EVENT_DEFER, 0));
    gex_NBI_Wait(GEX_EC_ALL, 0);
    OK(gex_RMA_GetBlocking(tm, &in, peer, target, 8, 0));
    CHECK(in == value);
  }
  handed_over[thread] = gex_RMA_PutNB(tm, peer, target, &value, 8, GEX_EVENT_NOW, 0);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[MOST_THREADS];
  int i;
  start(&argc, &argv, table, 2, GASNET_PAGESIZE);
  if (argc > 1) {
    count = atoi(argv[1]);
    one_by_one = 1;
  }
  CHECK(count <= MOST_THREADS);
  for (i = 0; i < count; i++) gasnett_atomic_set(&answered[i], 0, 0);
  gex_HSL_Init(&made);
  OK(gex_HSL_Trylock(&made));
  CHECK(gex_HSL_Trylock(&made) == GASNET_ERR_NOT_READY);
  gex_HSL_Unlock(&made);
  gex_HSL_Destroy(&made);
  barrier();
  for (i = 0; i < count; i++) CHECK(!pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i));
  /* The replies and requests of others are handled by whichever thread polls. */
  GASNET_BLOCKUNTIL((int)gasnett_atomic_read(&replies, 0) == count * ROUNDS);
  for (i = 0; i < count; i++) CHECK(!pthread_join(threads[i], NULL));
  gex_Event_WaitAll(handed_over, (size_t)count, 0);
  CHECK(guarded == count * ROUNDS);
  barrier();
  /* Each rank has sent to `size` ranks in turn; each has got as many as there are threads in all, or nearly. */
  GASNET_BLOCKUNTIL(handled >= count * ROUNDS / (int)size);
  finish();
}
