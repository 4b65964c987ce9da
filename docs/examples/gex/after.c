/* A chain of accesses that starts before a computation, and goes on by itself.
 *
 * Each rank updates a record of its neighbour in steps that must not overtake each other: the content, the length, and
 * the number of the version. gexw_AfterNext() says which accesses must be complete before the next one starts. The rank
 * computes meanwhile, and calls the library again when it needs the result. */
#include <gasnetex.h>
#include <stdio.h>
#ifdef WEFT_GEX
#include <gasnet_weft.h>
#endif
#ifndef GEXW_SUPPORTS_AFTER_NEXT
#error "this library has no operations that follow others"
#endif

typedef struct {
  char content[64];
  uint64_t length;
  uint64_t version;
} record_t;

static double compute(void) {
  double sum = 0;
  int at;
  for (at = 1; at < 1000000; at++) sum += 1.0 / at;
  return sum;
}

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_TM_t team;
  gex_Segment_t segment;
  gex_Rank_t me, ranks, right;
  record_t *mine, *theirs;
  gex_Event_t steps[3];
  void *owner = NULL, *local = NULL;
  uintptr_t bytes = 0;
  static const char text[] = "written in steps";
  double sum;
  int failed, at;

  if (gex_Client_Init(&client, &endpoint, &team, "AFTER", &argc, &argv, 0) != GASNET_OK) return 1;
  if (gex_Segment_Attach(&segment, team, GASNET_PAGESIZE) != GASNET_OK) return 1;
  me = gex_TM_QueryRank(team);
  ranks = gex_TM_QuerySize(team);
  right = (me + 1) % ranks;
  gex_Event_Wait(gex_EP_QueryBoundSegmentNB(team, right, &owner, &local, &bytes, 0));
  theirs = (record_t *)owner;
  mine = (record_t *)gex_Segment_QueryAddr(segment);

  steps[0] = gex_RMA_PutNB(team, right, theirs->content, text, sizeof text, GEX_EVENT_DEFER, 0);
  gexw_AfterNext(&steps[0], 1, 0);
  steps[1] = gex_RMA_PutNBVal(team, right, &theirs->length, sizeof text, 8, 0);
  gexw_AfterNext(&steps[1], 1, 0);
  steps[2] = gex_RMA_PutNBVal(team, right, &theirs->version, 1, 8, 0);
  sum = compute();
  for (failed = 0, at = 0; at < 3; at++) failed |= gexw_Event_Wait(steps[at]) != GASNET_OK;

  GASNET_BLOCKUNTIL(mine->version == 1);
  failed |= mine->length != sizeof text || strcmp(mine->content, text) != 0;
  if (me == 0) printf("rank 0 got \"%s\" and computed %.3f\n", mine->content, sum);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  gasnet_exit(failed);
  return 0;
}
