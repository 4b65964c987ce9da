/* A job of a test program: its objects, its start and its end. */
#ifndef JOB_H
#define JOB_H

#include <gasnet.h>

#include "check.h"

/* Programs use what they need of these. */
#define MAYBE __attribute__((__unused__))

static gex_Client_t client MAYBE;
static gex_EP_t ep MAYBE;
static gex_TM_t tm MAYBE;
static gex_Segment_t segment MAYBE;
static gex_Rank_t rank MAYBE, size MAYBE;

/* Calls that return GASNET_OK. */
#define OK(call) CHECK((call) == GASNET_OK)

/* Starts the job, registers handlers, and attaches a segment. */
static MAYBE void start(int *argc, char ***argv, gex_AM_Entry_t *table, size_t count, uintptr_t segment_bytes) {
  OK(gex_Client_Init(&client, &ep, &tm, "weft-test", argc, argv, 0));
  rank = gex_TM_QueryRank(tm);
  size = gex_TM_QuerySize(tm);
  if (count) OK(gex_EP_RegisterHandlers(ep, table, count));
  if (segment_bytes) OK(gex_Segment_Attach(&segment, tm, segment_bytes));
}

static MAYBE void barrier(void) {
  gasnet_barrier_notify(0, GASNET_BARRIERFLAG_ANONYMOUS);
  OK(gasnet_barrier_wait(0, GASNET_BARRIERFLAG_ANONYMOUS));
}

/* The segment of a rank, as its owner addresses it. */
static MAYBE void *segment_of(gex_Rank_t peer) {
  void *owner = NULL, *local = NULL;
  uintptr_t bytes = 0;
  OK(gex_Segment_QueryBound(tm, peer, &owner, &local, &bytes));
  return owner;
}

/* Ends the job. Its status is 0 unless an assertion of any rank failed. */
static GASNETT_NORETURN MAYBE void finish(void) {
  barrier();
  gasnet_exit(check_result());
}

#endif
