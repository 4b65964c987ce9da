/* Segments, puts and gets of all forms, between all pairs of ranks. */
#include "core.h"

#define BYTES (1 << 20)
#define HALF (BYTES / 2)

static unsigned char pattern(unsigned from, unsigned to, size_t at) { return (unsigned char)(from * 31 + to * 7 + at); }

static void check_values(gex_Rank_t peer, char *base) {
  size_t n;
  uint64_t *word = (uint64_t *)(base + HALF + 64 * me);
  for (n = 1; n <= 8; n++) {
    uint64_t value = 0x1122334455667788ull >> (8 * (8 - n)), mask = ~0ull >> (8 * (8 - n));
    CHECK(gex_RMA_PutBlockingVal(world, peer, word, ~0ull, 8, 0) == 0);
    CHECK(gex_RMA_PutBlockingVal(world, peer, word, value, n, 0) == 0);
    CHECK(gex_RMA_GetBlockingVal(world, peer, word, n, 0) == (value & mask));
    CHECK(gex_RMA_GetBlockingVal(world, peer, word, 8, 0) == ((value & mask) | (n < 8 ? ~mask : 0)));
  }
  CHECK(gex_RMA_PutNBIVal(world, peer, word, 5, 4, 0) == 0);
  gex_NBI_Wait(GEX_EC_PUT, 0);
  gex_Event_Wait(gex_RMA_PutNBVal(world, peer, word, 6, 4, 0));
  CHECK(gex_RMA_GetBlockingVal(world, peer, word, 4, 0) == 6);
}

static void check_pair(gex_Rank_t peer, const size_t *lengths, size_t count) {
  static const char constant[] = "read-only memory is a source";
  char *base = segment_of(peer), *mine = malloc(HALF), *back = malloc(HALF);
  size_t at, each;
  CHECK(mine && back);
  for (each = 0; each < count; each++) {
    size_t n = lengths[each];
    /* Each pair has a place of its own. */
    char *dest = base + me * (HALF / ranks);
    gex_Event_t events[2], lc = GEX_EVENT_INVALID;
    for (at = 0; at < n; at++) mine[at] = (char)pattern(me, peer, at + each);
    memset(back, 0, n);
    switch (each % 3) {
    case 0: CHECK(gex_RMA_PutBlocking(world, peer, dest, mine, n, 0) == 0); break;
    case 1:
      CHECK(gex_RMA_PutNBI(world, peer, dest, mine, n, GEX_EVENT_GROUP, 0) == 0);
      gex_NBI_Wait(GEX_EC_ALL, 0);
      CHECK(gex_NBI_Test(GEX_EC_ALL, 0) == 0);
      break;
    default:
      events[0] = gex_RMA_PutNB(world, peer, dest, mine, n, &lc, 0);
      events[1] = lc;
      gex_Event_WaitAll(events, 2, 0);
      CHECK(events[0] == GEX_EVENT_INVALID && events[1] == GEX_EVENT_INVALID);
    }
    gex_NBI_BeginAccessRegion(0);
    CHECK(gex_RMA_GetNBI(world, back, peer, dest, n, 0) == 0);
    gex_Event_Wait(gex_NBI_EndAccessRegion(0));
    CHECK(memcmp(mine, back, n) == 0);
    memset(back, 0, n);
    gex_Event_Wait(gex_RMA_GetNB(world, back, peer, dest, n, 0));
    CHECK(memcmp(mine, back, n) == 0);
  }
  CHECK(gex_RMA_PutBlocking(world, peer, base + HALF + 64 * me, constant, 8, 0) == 0);
  CHECK(gex_RMA_GetBlocking(world, back, peer, base + HALF + 64 * me, 8, 0) == 0);
  CHECK(memcmp(back, constant, 8) == 0);
  check_values(peer, base);
  free(mine);
  free(back);
}

int main(int argc, char **argv) {
  size_t lengths[] = {0, 1, 2, 7, 8, 64, 1000, 4096, 0}, at;
  gex_Rank_t peer;
  gasnet_seginfo_t *table;
  start(&argc, &argv);
  lengths[8] = HALF / ranks;
  CHECK(gasnet_getMaxLocalSegmentSize() >= BYTES && gasnet_getMaxGlobalSegmentSize() >= BYTES);
  attach(BYTES);
  CHECK(gex_Segment_QuerySize(segment) == BYTES && gex_EP_QuerySegment(ep) == segment);
  for (peer = 0; peer < ranks; peer++) check_pair((peer + me) % ranks, lengths, sizeof(lengths) / sizeof(*lengths));
  barrier();
  /* The bytes that peers have put are here. */
  for (peer = 0; peer < ranks; peer++) {
    unsigned char *from = (unsigned char *)segment_of(me) + peer * (HALF / ranks);
    for (at = 0; at < lengths[8]; at++) CHECK(from[at] == pattern(peer, me, at + 8));
  }
  table = malloc(ranks * sizeof(*table));
  CHECK(gasnet_getSegmentInfo(table, (int)ranks) == GASNET_OK);
  for (peer = 0; peer < ranks; peer++) CHECK(table[peer].addr == segment_of(peer) && table[peer].size == BYTES);
  free(table);
  finish();
  return 0;
}
