/* A symmetric heap: the same offset names an object in every rank.
 *
 * Segments begin at different addresses in different ranks. A program with addresses needs a table of all ranks'
 * segments, and an addition for each access. With offsets it needs neither: GEX_FLAG_PEER_SEG_OFFSET makes the library
 * take an address at the peer as an offset in its segment.
 *
 * The flags are those of the document, which reserves them. GEXW_SUPPORTS_SEG_OFFSET tells that they have an effect. */
#include <gasnetex.h>
#include <stdio.h>
#ifdef WEFT_GEX
#include <gasnet_weft.h>
#endif
#ifndef GEXW_SUPPORTS_SEG_OFFSET
#error "this library has no offset addressing"
#endif

/* The heap of every rank begins with these objects. */
typedef struct {
  int64_t from_left;
  int64_t sum;
} heap_t;
#define OFFSET_OF(member) ((void *)offsetof(heap_t, member))

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_TM_t team;
  gex_Segment_t segment;
  gex_Rank_t me, ranks, rank;
  heap_t *heap;
  int64_t value, expected = 0;
  int failed;

  if (gex_Client_Init(&client, &endpoint, &team, "OFFSET", &argc, &argv, 0) != GASNET_OK) return 1;
  if (gex_Segment_Attach(&segment, team, GASNET_PAGESIZE) != GASNET_OK) return 1;
  me = gex_TM_QueryRank(team);
  ranks = gex_TM_QuerySize(team);
  heap = (heap_t *)gex_Segment_QueryAddr(segment);

  /* To the right neighbour: both sides by offset would be GEX_FLAG_SELF_SEG_OFFSET | GEX_FLAG_PEER_SEG_OFFSET. */
  value = 100 + (int64_t)me;
  gex_RMA_PutBlocking(team, (me + 1) % ranks, OFFSET_OF(from_left), &value, sizeof value, GEX_FLAG_PEER_SEG_OFFSET);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));

  /* From all ranks. */
  for (rank = 0; rank < ranks; rank++) {
    heap->sum += (int64_t)gex_RMA_GetBlockingVal(team, rank, OFFSET_OF(from_left), sizeof value, GEX_FLAG_PEER_SEG_OFFSET);
    expected += 100 + (int64_t)rank;
  }
  failed = heap->from_left != 100 + (int64_t)((me + ranks - 1) % ranks) || heap->sum != expected;
  if (me == 0) printf("rank 0 got %d and the sum %d\n", (int)heap->from_left, (int)heap->sum);

  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  gasnet_exit(failed);
  return 0;
}
