/* Progress while the client computes. Rank 0 computes without a call until the other ranks have used its memory and its
 * handlers. C99 and C++11.
 *
 * Arguments: "thread" (the library has one), "defer" (the program runs it), "none" (there is none: rank 0 polls). */
#include "job.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define ROUNDS 200
#define LIMIT_S 30

static gex_HSL_t lock = GEX_HSL_INITIALIZER;
static volatile int requests, replies, finished;

GASNETT_BEGIN_EXTERNC
static void request(gex_Token_t token, gex_AM_Arg_t last) {
  gex_HSL_Lock(&lock);
  requests++;
  if (last) finished++;
  gex_HSL_Unlock(&lock);
  OK(gex_AM_ReplyShort0(token, 201, 0));
}
static void reply(gex_Token_t token) {
  (void)token;
  gex_HSL_Lock(&lock);
  replies++;
  gex_HSL_Unlock(&lock);
}
static void *client_thread(void *argument) {
  const gex_ProgressThreadInfo_t *info = (const gex_ProgressThreadInfo_t *)argument;
  return info->gex_progress_fn(info->gex_progress_arg);
}
GASNETT_END_EXTERNC

static gex_AM_Entry_t table[] = {
    {200, (gex_AM_Fn_t)request, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, NULL, NULL},
    {201, (gex_AM_Fn_t)reply, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REPLY, 0, NULL, NULL},
};

/* The library's threads, as the argument says. */
static void check_threads(const char *how) {
  const gex_ProgressThreadInfo_t *info = NULL;
  unsigned int count = 77;
  pthread_t thread;
  const int attended = strcmp(how, "none") != 0 && size > 1, deferred = attended && strcmp(how, "defer") == 0;
  CHECK(gex_System_QueryHiddenAMConcurrencyLevel() == attended);
  CHECK(GASNET_HIDDEN_AM_CONCURRENCY_LEVEL >= attended);
  OK(gex_System_QueryProgressThreads(client, &count, &info, 0));
  CHECK(count == (unsigned int)deferred);
  if (!deferred) return;
  CHECK(info->gex_thread_roles == GEX_THREAD_ROLE_RCV && strlen(info->gex_device_list) > 0);
  CHECK(!pthread_create(&thread, NULL, client_thread, (void *)(uintptr_t)info));
  CHECK(!pthread_detach(thread));
}

static void compute(int polls) {
  const time_t end = time(NULL) + LIMIT_S;
  while (finished < (int)size - 1 && time(NULL) < end) {
    if (polls) gasnet_AMPoll();
  }
  CHECK(finished == (int)size - 1);
  CHECK(requests == ROUNDS * ((int)size - 1));
}

static void use_rank_0(void) {
  uint64_t *word = (uint64_t *)segment_of(0) + rank, value, in;
  int i;
  for (i = 1; i <= ROUNDS; i++) {
    value = (uint64_t)i * 1000 + rank;
    in = 0;
    OK(gex_RMA_PutBlocking(tm, 0, word, &value, 8, 0));
    OK(gex_RMA_GetBlocking(tm, &in, 0, word, 8, 0));
    CHECK(in == value);
    OK(gex_AM_RequestShort1(tm, 0, 200, 0, i == ROUNDS));
    GASNET_BLOCKUNTIL(replies == i);
  }
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "none";
  OK(gex_Client_Init(&client, &ep, &tm, "weft-test", &argc, &argv, strcmp(how, "defer") ? 0 : GEX_FLAG_DEFER_THREADS));
  rank = gex_TM_QueryRank(tm);
  size = gex_TM_QuerySize(tm);
  OK(gex_EP_RegisterHandlers(ep, table, 2));
  OK(gex_Segment_Attach(&segment, tm, GASNET_PAGESIZE));
  check_threads(how);
  barrier();
  if (rank == 0) {
    compute(strcmp(how, "none") == 0);
  } else {
    use_rank_0();
  }
  finish();
}
