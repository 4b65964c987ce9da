/* Halo exchange by puts that tell the target.
 *
 * Each rank owns a row, and needs the border cells of both neighbours in each step. A put with a signal stores the
 * cells and then the number of the step at the target. A rank waits for two numbers. It needs no message, no barrier,
 * and no flush. */
#include <gasnetex.h>
#include <stdio.h>
#ifdef WEFT_GEX
#include <gasnet_weft.h>
#endif
#ifndef GEXW_SUPPORTS_PUT_SIGNAL
#error "this library has no puts with a signal"
#endif

enum { CELLS = 256, STEPS = 20, LEFT = 0, RIGHT = 1 };

/* Halos have a place for each parity, because a neighbour may be one step ahead. */
typedef struct {
  uint64_t steps[2];
  int64_t halo[2][2];
} shared_t;

/* Offsets in every rank's segment. */
static void *halo_of(int parity, int side) {
  return (void *)(offsetof(shared_t, halo) + (size_t)(2 * parity + side) * sizeof(int64_t));
}
static uint64_t *steps_of(int side) {
  return (uint64_t *)(offsetof(shared_t, steps) + (size_t)side * sizeof(uint64_t));
}

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_TM_t team;
  gex_Segment_t segment;
  gex_Rank_t me, ranks, left, right;
  static int64_t row[CELLS], next[CELLS];
  volatile shared_t *shared;
  int64_t sum = 0, expected = 0;
  int step, at;

  if (gex_Client_Init(&client, &endpoint, &team, "SIGNAL", &argc, &argv, 0) != GASNET_OK) return 1;
  if (gex_Segment_Attach(&segment, team, GASNET_PAGESIZE) != GASNET_OK) return 1;
  me = gex_TM_QueryRank(team);
  ranks = gex_TM_QuerySize(team);
  left = (me + ranks - 1) % ranks;
  right = (me + 1) % ranks;
  shared = (volatile shared_t *)gex_Segment_QueryAddr(segment);
  for (at = 0; at < CELLS; at++) row[at] = (int64_t)me * CELLS + at, expected += row[at];

  for (step = 0; step < STEPS; step++) {
    const int parity = step % 2;
    /* My first cell is the right halo of the left neighbour, and the last one the left halo of the right neighbour. */
    gexw_RMA_PutSignalNBI(team, left, halo_of(parity, RIGHT), &row[0], 8, steps_of(RIGHT), (uint64_t)step + 1,
                          GEX_OP_SET, GEX_EVENT_NOW, GEX_FLAG_PEER_SEG_OFFSET);
    gexw_RMA_PutSignalNBI(team, right, halo_of(parity, LEFT), &row[CELLS - 1], 8, steps_of(LEFT), (uint64_t)step + 1,
                          GEX_OP_SET, GEX_EVENT_NOW, GEX_FLAG_PEER_SEG_OFFSET);
    for (at = 0; at < 2; at++) GASNET_BLOCKUNTIL(__atomic_load_n(&shared->steps[at], __ATOMIC_ACQUIRE) > (uint64_t)step);
    /* Every cell gets what its right neighbour had. */
    for (at = 0; at < CELLS - 1; at++) next[at] = row[at + 1];
    next[CELLS - 1] = shared->halo[parity][RIGHT];
    memcpy(row, next, sizeof row);
    gex_NBI_Wait(GEX_EC_PUT, 0);
  }

  for (at = 0; at < CELLS; at++) sum += row[at];
  /* The rows have moved by STEPS cells, around all ranks. */
  expected += (int64_t)STEPS * CELLS * (me + 1 < ranks ? 1 : 1 - (int64_t)ranks);
  if (me == 0) printf("rank 0 has the sum %d after %d steps\n", (int)sum, STEPS);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  gasnet_exit(sum != expected);
  return 0;
}
