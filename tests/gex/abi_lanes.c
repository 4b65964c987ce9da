/* Threads with a serial endpoint each, more of them than processors. Built for PAR. C99 and C++11. */
#include "job.h"

#include <gasnet_weft.h>

#define THREADS 6
#define ROUNDS 200
#define FLOOD 3000

typedef struct {
  gex_EP_t ep;
  gex_TM_t team;
  /* Only the thread of the endpoint uses these. */
  int seen, replies, wrong;
  uint64_t sum;
} lane_t;

static lane_t lanes[THREADS];
static gasnett_atomic_t finished = gasnett_atomic_init(0);

static lane_t *lane_of(gex_Token_t token) {
  gex_Token_Info_t info;
  gex_Token_Info(token, &info, GEX_TI_ALL);
  return (lane_t *)gex_EP_QueryCData(info.gex_ep);
}

GASNETT_BEGIN_EXTERNC
static void count(gex_Token_t token, gex_AM_Arg_t lane) {
  lane_t *here = lane_of(token);
  here->seen++;
  if (here != &lanes[lane]) here->wrong++;
}
static void ping(gex_Token_t token, gex_AM_Arg_t number) { OK(gex_AM_ReplyShort1(token, 202, 0, number + 1)); }
static void pong(gex_Token_t token, gex_AM_Arg_t number) {
  lane_t *here = lane_of(token);
  here->replies++;
  here->sum += (uint64_t)number;
}
static void *work(void *argument) {
  lane_t *here = (lane_t *)argument;
  const gex_AM_Arg_t number = (gex_AM_Arg_t)(here - lanes);
  const gex_Rank_t peer = (rank + 1) % size;
  uint64_t *word = (uint64_t *)segment_of(peer) + THREADS * rank + number, value, in;
  int i;
  for (i = 0; i < FLOOD; i++) OK(gex_AM_RequestShort1(here->team, peer, 200, 0, number));
  GEXW_EP_BLOCKUNTIL(here->ep, here->seen == FLOOD);
  for (i = 0; i < ROUNDS; i++) {
    const int before = here->replies;
    value = (uint64_t)i * THREADS + (uint64_t)number;
    in = 0;
    OK(gex_AM_RequestShort1(here->team, peer, 201, 0, i));
    OK(gex_RMA_PutBlocking(tm, peer, word, &value, 8, 0));
    OK(gex_RMA_GetBlocking(tm, &in, peer, word, 8, 0));
    if (in != value) here->wrong++;
    GEXW_EP_BLOCKUNTIL(here->ep, here->replies != before);
  }
  gasnett_atomic_increment(&finished, GASNETT_ATOMIC_REL);
  /* The peer may still need answers. */
  while (gasnett_atomic_read(&finished, GASNETT_ATOMIC_ACQ) <= THREADS) {
    OK(gexw_EP_Poll(here->ep, 0));
    gasnett_sched_yield();
  }
  return NULL;
}
GASNETT_END_EXTERNC

static gex_AM_Entry_t table[] = {
    {200, (gex_AM_Fn_t)count, 0, 1, NULL, NULL},
    {201, (gex_AM_Fn_t)ping, 0, 1, NULL, NULL},
    {202, (gex_AM_Fn_t)pong, 0, 1, NULL, NULL},
};

static void open_lane(lane_t *lane) {
  gex_EP_Location_t members[64];
  gex_Rank_t r;
  OK(gex_EP_Create(&lane->ep, client, GEX_EP_CAPABILITY_ALL, GEXW_FLAG_EP_SERIAL));
  OK(gex_EP_RegisterHandlers(lane->ep, table, 3));
  gex_EP_SetCData(lane->ep, lane);
  for (r = 0; r < size; r++) {
    members[r].gex_rank = r;
    members[r].gex_ep_index = gex_EP_QueryIndex(lane->ep);
  }
  CHECK(gex_TM_Create(&lane->team, 1, tm, members, size, NULL, 0, 0) == 0);
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS];
  int i;
  start(&argc, &argv, NULL, 0, GASNET_PAGESIZE);
  for (i = 0; i < THREADS; i++) open_lane(&lanes[i]);
  barrier();
  for (i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, work, &lanes[i]));
  GASNET_BLOCKUNTIL(gasnett_atomic_read(&finished, 0) == THREADS);
  barrier();
  gasnett_atomic_increment(&finished, GASNETT_ATOMIC_REL);
  for (i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
  for (i = 0; i < THREADS; i++) {
    CHECK(lanes[i].seen == FLOOD && lanes[i].replies == ROUNDS && lanes[i].wrong == 0);
    CHECK(lanes[i].sum == (uint64_t)ROUNDS * (ROUNDS + 1) / 2);
    gex_TM_Destroy(lanes[i].team, NULL, GEX_FLAG_GLOBALLY_QUIESCED);
    OK(gexw_EP_Destroy(lanes[i].ep, 0));
  }
  finish();
}
