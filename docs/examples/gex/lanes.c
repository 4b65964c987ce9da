/* Each thread sends messages by an endpoint of its own, so that threads share no lock.
 *
 * The threads of a rank send to the same threads of the next rank. The program prints the rate for 1, 2, … threads. In
 * mode SEQ there is one.
 *
 *   cc -o lanes lanes.c $(pkg-config --cflags --libs gasnet-smp-par) && gasnetrun_smp -n 2 ./lanes 4 */
#include <gasnetex.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef WEFT_GEX
#include <gasnet_weft.h>
#endif

#ifndef GEXW_SUPPORTS_EP_PROGRESS
#error "the library has no endpoints with progress of their own"
#endif

#define MOST_THREADS 16
#define MESSAGES 50000
#define H_COUNT GEX_AM_INDEX_BASE

typedef struct {
  gex_EP_t endpoint;
  gex_TM_t team;
  int number;
  gasnett_atomic_t arrived;
  char apart[128]; /* Lanes share no cache line. */
} lane_t;

static lane_t lanes[MOST_THREADS];
static gex_Client_t client;
static gex_EP_t first;
static gex_TM_t all;
static gex_Rank_t me, ranks;

static void count_handler(gex_Token_t token, gex_AM_Arg_t lane) {
  (void)token;
  gasnett_atomic_increment(&lanes[lane].arrived, 0);
}

static gex_AM_Entry_t table[] = {
    {H_COUNT, (gex_AM_Fn_t)count_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, NULL, "count"}};

/* Makes an endpoint in all ranks, and the team of them. */
static void open_lane(int number) {
  lane_t *lane = &lanes[number];
  gex_EP_Location_t *members = (gex_EP_Location_t *)malloc(ranks * sizeof members[0]);
  gex_Rank_t rank;
  lane->number = number;
  gex_EP_Create(&lane->endpoint, client, GEX_EP_CAPABILITY_AM, GEXW_FLAG_EP_SERIAL);
  gex_EP_RegisterHandlers(lane->endpoint, table, 1);
  for (rank = 0; rank < ranks; rank++) {
    members[rank].gex_rank = rank;
    members[rank].gex_ep_index = gex_EP_QueryIndex(lane->endpoint);
  }
  gex_TM_Create(&lane->team, 1, all, members, ranks, NULL, 0, 0);
  free(members);
}

static void *send_and_receive(void *argument) {
  lane_t *lane = (lane_t *)argument;
  int sent;
  gasnett_atomic_set(&lane->arrived, 0, 0);
  gex_Event_Wait(gex_Coll_BarrierNB(lane->team, 0));
  for (sent = 0; sent < MESSAGES; sent++)
    gex_AM_RequestShort1(lane->team, (me + 1) % ranks, H_COUNT, 0, lane->number);
  GEXW_EP_BLOCKUNTIL(lane->endpoint, gasnett_atomic_read(&lane->arrived, 0) == MESSAGES);
  /* A wait polls the endpoint that the thread has used last, so the messages of both sides leave. */
  gex_Event_Wait(gex_Coll_BarrierNB(lane->team, 0));
  return NULL;
}

static void run(int threads) {
  gasnett_tick_t start, end;
  gex_Event_Wait(gex_Coll_BarrierNB(all, 0));
  start = gasnett_ticks_now();
#ifdef GASNET_PAR
  {
    pthread_t running[MOST_THREADS];
    int at;
    for (at = 0; at < threads; at++) pthread_create(&running[at], NULL, send_and_receive, &lanes[at]);
    for (at = 0; at < threads; at++) pthread_join(running[at], NULL);
  }
#else
  send_and_receive(&lanes[0]);
#endif
  gex_Event_Wait(gex_Coll_BarrierNB(all, 0));
  end = gasnett_ticks_now();
  if (me == 0)
    printf("%d threads: %.2f million messages per second\n", threads,
           1e3 * threads * ranks * MESSAGES / (double)gasnett_ticks_to_ns(end - start));
}

int main(int argc, char **argv) {
  int threads = 1, most, at;
  if (gex_Client_Init(&client, &first, &all, "LANES", &argc, &argv, 0) != GASNET_OK) return 1;
  gex_EP_RegisterHandlers(first, table, 1);
  me = gex_TM_QueryRank(all);
  ranks = gex_TM_QuerySize(all);
#ifdef GASNET_PAR
  threads = argc > 1 ? atoi(argv[1]) : 2;
#endif
  most = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
  for (at = 0; at < most; at++) open_lane(at);
  for (threads = 1; threads <= most; threads++) run(threads);
  for (at = 0; at < most; at++) {
    gex_TM_Destroy(lanes[at].team, NULL, 0);
    gexw_EP_Destroy(lanes[at].endpoint, 0);
  }
  gex_Event_Wait(gex_Coll_BarrierNB(all, 0));
  gasnet_exit(0);
  return 0;
}
