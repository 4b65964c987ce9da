/* Shared parts of the programs that test the library: a job of any number of ranks, and checks that name their place. */
#ifndef CORE_H
#define CORE_H

#include "gasnetex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static gex_Client_t client;
static gex_EP_t ep;
static gex_TM_t world;
static gex_Segment_t segment;
static gex_Rank_t me, ranks;

/* Ends the job unless the condition holds. */
#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "rank %u: %s:%d: not true: %s\n", (unsigned)me, __FILE__, __LINE__, #condition);                 \
      gasnet_exit(99);                                                                                                 \
    }                                                                                                                  \
  } while (0)

static inline void barrier(void) {
  gasnet_barrier_notify(0, GASNET_BARRIERFLAG_ANONYMOUS);
  CHECK(gasnet_barrier_wait(0, GASNET_BARRIERFLAG_ANONYMOUS) == GASNET_OK);
}

static inline void start(int *argc, char ***argv) {
  int code = gex_Client_Init(&client, &ep, &world, "CORE", argc, argv, 0);
  if (code != GASNET_OK) exit(98);
  me = gex_TM_QueryRank(world);
  ranks = gex_TM_QuerySize(world);
}

static inline char *attach(size_t bytes) {
  CHECK(gex_Segment_Attach(&segment, world, bytes) == GASNET_OK);
  return (char *)gex_Segment_QueryAddr(segment);
}

/* Whether a rank shares memory with this one. */
static inline int is_near(gex_Rank_t rank) {
  gex_RankInfo_t *near;
  gex_Rank_t count, index;
  gex_System_QueryNbrhdInfo(&near, &count, &index);
  CHECK(index < count && near[index].gex_jobrank == me);
  for (index = 0; index < count; index++) {
    if (near[index].gex_jobrank == rank) return 1;
  }
  return 0;
}

/* The address of a rank's segment in that rank. */
static inline char *segment_of(gex_Rank_t rank) {
  void *owner = NULL, *local = NULL;
  uintptr_t bytes = 0;
  CHECK(gex_Segment_QueryBound(world, rank, &owner, &local, &bytes) == GASNET_OK);
  CHECK(owner != NULL && bytes > 0);
  CHECK((local != NULL) == is_near(rank));
  return (char *)owner;
}

/* Prints from rank 0 after all ranks have come here, and ends the job. */
static inline void finish(void) {
  barrier();
  if (me == 0) printf("done: %u ranks\n", (unsigned)ranks);
  gasnet_exit(0);
}

#endif
