/* The failure of a rank that all others survive. C99 and C++11.
 *
 * The last rank ends itself by the signal or the exit that the argument names: "kill", "abort", "exit". Before that it
 * has met the others, or not ("early"). The others go on, and end the job with status 0. */
#include "job.h"

#include <gasnet_weft.h>
#include <signal.h>
#include <unistd.h>

#define SEGMENT_BYTES ((uintptr_t)1 << 20)
#define COUNT 200

static gex_Rank_t victim, told = GEX_RANK_INVALID;
static int tellings, arrived;

GASNETT_BEGIN_EXTERNC
static void on_failure(gex_Rank_t jobrank) {
  told = jobrank;
  tellings++;
}
static void count_handler(gex_Token_t token) {
  (void)token;
  arrived++;
}
GASNETT_END_EXTERNC

static void die(const char *how) {
  if (!strcmp(how, "abort")) abort();
  if (!strcmp(how, "exit")) _exit(0);
  kill(getpid(), SIGKILL);
}

/* Whether an operation with the victim ends with an error. */
static int fails(gex_Event_t event) { return gexw_Event_Wait(event) == GASNET_ERR_RESOURCE; }

/* Operations with the victim end. Its memory stays readable in its neighbourhood. */
static void broken_rank(void *address) {
  gex_RankInfo_t *near = NULL;
  gex_Rank_t count = 0, i;
  int is_near = 0;
  uint64_t value = 5;
  gex_System_QueryNbrhdInfo(&near, &count, NULL);
  for (i = 0; i < count; i++) is_near |= near[i].gex_jobrank == victim;
  CHECK(fails(gex_RMA_PutNB(tm, victim, address, &value, 8, GEX_EVENT_NOW, 0)) == !is_near);
  CHECK(fails(gex_RMA_GetNB(tm, &value, victim, address, 8, 0)) == !is_near);
  CHECK(gex_AM_RequestShort0(tm, victim, COUNT, 0) != GASNET_OK);
}

/* Collectives of a team with the victim end. */
static void broken_team(gex_TM_t team) {
  int64_t one = 1, all[16];
  int i;
  for (i = 0; i < 3; i++) {
    CHECK(fails(gex_Coll_BarrierNB(team, 0)));
    CHECK(fails(gex_Coll_ReduceToAllNB(team, all, &one, GEX_DT_I64, 8, 1, GEX_OP_ADD, NULL, NULL, 0)));
    CHECK(fails(gexw_Coll_GatherAllNB(team, all, &one, 8, 0)));
  }
  gex_Coll_BarrierBlocking(team, 0);
}

/* The others reach each other. */
static void survivors(void) {
  gex_Rank_t peer;
  uint64_t value = 0;
  for (peer = 0; peer < size; peer++) {
    if (peer != victim) OK(gex_AM_RequestShort0(tm, peer, COUNT, 0));
  }
  GASNET_BLOCKUNTIL(arrived == (int)size - 1);
  for (peer = 0; peer < size; peer++) {
    if (peer == victim) continue;
    CHECK(gex_RMA_GetBlocking(tm, &value, peer, segment_of(peer), 8, 0) == 0);
    CHECK(value == peer + 1000);
  }
}

int main(int argc, char **argv) {
  gex_AM_Entry_t table[] = {
      {COUNT, (gex_AM_Fn_t)count_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, "count"}};
  gex_TM_t before = GEX_TM_INVALID;
  const char *how;
  void *address;
  int early;
  start(&argc, &argv, table, 1, SEGMENT_BYTES);
  how = argc > 1 ? argv[1] : "kill";
  early = argc > 2 && !strcmp(argv[2], "early");
  victim = size - 1;
  *(uint64_t *)segment_of(rank) = rank + 1000;
  address = segment_of(victim);
  gexw_System_SetFailureHandler(on_failure);
  (void)gex_TM_Split(&before, tm, rank == victim, (int)rank, NULL, 0, GEX_FLAG_TM_NO_SCRATCH);
  barrier();
  if (!early) {
    int64_t one = 1, sum = 0;
    gex_Event_Wait(gexw_Coll_ScanNB(tm, &sum, &one, GEX_DT_I64, 8, 1, GEX_OP_ADD, NULL, NULL, 0));
    CHECK(sum == (int64_t)rank + 1);
  }
  if (rank == victim && size > 1) {
    int turn;
    /* A barrier may fail at a rank that has not left it when another one dies. */
    for (turn = 0; turn < 200; turn++) {
      gasnet_AMPoll();
      usleep(1000);
    }
    die(how);
  }
  if (size > 1) {
    broken_team(tm);
    GASNET_BLOCKUNTIL(tellings > 0);
    CHECK(told == victim && tellings == 1 && gexw_System_HasFailed(victim) && !gexw_System_HasFailed(rank));
    broken_team(tm);
    gasnet_barrier_notify(7, 0);
    CHECK(gasnet_barrier_wait(7, 0) == GASNET_ERR_RESOURCE);
    broken_rank(address);
    survivors();
    gex_Event_Wait(gex_Coll_BarrierNB(before, 0));
    CHECK(tellings == 1);
  }
  gasnet_exit(check_result());
}
