/* Offsets in segments in place of addresses, in every call that takes one, and the same results as by addresses. */
#include "job.h"

#include <gasnet_ratomic.h>
#include <gasnet_vis.h>
#include <gasnet_weft.h>

#ifndef GEXW_SUPPORTS_SEG_OFFSET
#error "GEXW_SUPPORTS_SEG_OFFSET is not defined"
#endif

#define PEER GEX_FLAG_PEER_SEG_OFFSET
#define SELF GEX_FLAG_SELF_SEG_OFFSET
#define AT(offset) ((void *)(uintptr_t)(offset))
enum { BYTES = 1 << 20, ROOM = 1 << 16, H_LONG = 200, H_BACK, H_MEDIUM };

static char *mine;
static volatile int longs, backs, mediums;

static void long_handler(gex_Token_t token, void *data, size_t bytes, gex_AM_Arg_t offset) {
  CHECK((char *)data == mine + offset && bytes == 8 && memcmp(data, "by offset", 8) == 0);
  longs++;
  gex_AM_ReplyLong1(token, H_BACK, AT(offset), 8, AT(offset + 64), GEX_EVENT_NOW, PEER | SELF, offset + 64);
}

static void back_handler(gex_Token_t token, void *data, size_t bytes, gex_AM_Arg_t offset) {
  (void)token;
  CHECK((char *)data == mine + offset && bytes == 8 && memcmp(data, "by offset", 8) == 0);
  backs++;
}

static void medium_handler(gex_Token_t token, void *data, size_t bytes) {
  (void)token;
  CHECK(bytes == 8 && memcmp(data, "by offset", 8) == 0);
  mediums++;
}

/* Puts and gets of all forms. Each pair of ranks has a place in the segment of the target, and one in the own. */
static void check_rma(gex_Rank_t peer) {
  const size_t there = (size_t)rank * 256, here = (size_t)(size + peer) * 256;
  char *base = (char *)segment_of(peer), back[64];
  gex_Event_t event;
  int at;
  for (at = 0; at < 64; at++) mine[here + at] = (char)(rank * 3 + peer * 5 + at);
  OK(gex_RMA_PutBlocking(tm, peer, AT(there), AT(here), 64, PEER | SELF));
  OK(gex_RMA_GetBlocking(tm, back, peer, base + there, 64, 0));
  CHECK(memcmp(back, mine + here, 64) == 0);
  OK(gex_RMA_GetBlocking(tm, AT(here + 64), peer, AT(there), 64, PEER | SELF));
  CHECK(memcmp(mine + here + 64, mine + here, 64) == 0);
  event = gex_RMA_PutNB(tm, peer, AT(there + 64), back, 32, GEX_EVENT_NOW, PEER);
  gex_Event_Wait(event);
  OK(gex_RMA_PutNBI(tm, peer, AT(there + 96), AT(here), 32, GEX_EVENT_NOW, PEER | SELF));
  gex_NBI_Wait(GEX_EC_ALL, 0);
  memset(mine + here + 64, 0, 64);
  event = gex_RMA_GetNB(tm, AT(here + 64), peer, AT(there + 64), 32, PEER | SELF);
  gex_Event_Wait(event);
  OK(gex_RMA_GetNBI(tm, AT(here + 96), peer, base + there + 96, 32, SELF));
  gex_NBI_Wait(GEX_EC_ALL, 0);
  CHECK(memcmp(mine + here + 64, mine + here, 32) == 0 && memcmp(mine + here + 96, mine + here, 32) == 0);
  OK(gex_RMA_PutBlockingVal(tm, peer, AT(there + 128), 0x1234567, 4, PEER));
  CHECK(gex_RMA_GetBlockingVal(tm, peer, AT(there + 128), 4, PEER) == 0x1234567);
  gex_Event_Wait(gex_RMA_PutNBVal(tm, peer, AT(there + 128), 77, 8, PEER));
  CHECK(gex_RMA_GetBlockingVal(tm, peer, base + there + 128, 8, 0) == 77);
  OK(gex_RMA_PutNBIVal(tm, peer, AT(there + 128), 78, 1, PEER));
  gex_NBI_Wait(GEX_EC_PUT, 0);
  CHECK(gex_RMA_GetBlockingVal(tm, peer, AT(there + 128), 1, PEER) == 78);
  /* The functions, which pairs of endpoints take, and a long access. */
  OK(gex_RMA_PutBlocking(gex_TM_Pair(ep, 0), peer, AT(there + 192), AT(here), 64, PEER | SELF));
  OK((gex_RMA_GetBlocking)(tm, AT(here + 128), peer, AT(there + 192), 64, PEER | SELF));
  CHECK(memcmp(mine + here + 128, mine + here, 64) == 0);
  OK(gex_RMA_PutBlocking(tm, peer, AT(ROOM * 2 + rank * ROOM), AT(ROOM), ROOM, PEER | SELF));
}

static void check_vis(gex_Rank_t peer) {
  const size_t there = (size_t)rank * 256 + ROOM / 2, here = (size_t)(size + peer) * 256;
  gex_Memvec_t from[2], to[1];
  void *one[1], *two[2];
  ptrdiff_t close = 8, wide = 16;
  size_t count = 4;
  from[0].gex_addr = AT(here), from[0].gex_len = 8;
  from[1].gex_addr = AT(here + 32), from[1].gex_len = 8;
  to[0].gex_addr = AT(there), to[0].gex_len = 16;
  OK(gex_VIS_VectorPutBlocking(tm, peer, 1, to, 2, from, PEER | SELF));
  one[0] = AT(here + 64), two[0] = AT(there), two[1] = AT(there + 8);
  OK(gex_VIS_IndexedGetBlocking(tm, 1, one, 16, peer, 2, two, 8, PEER | SELF));
  CHECK(memcmp(mine + here + 64, mine + here, 8) == 0 && memcmp(mine + here + 72, mine + here + 32, 8) == 0);
  OK(gex_VIS_StridedPutBlocking(tm, peer, AT(there + 64), &wide, AT(here), &close, 8, &count, 1, PEER | SELF));
  OK(gex_VIS_StridedGetBlocking(tm, AT(here + 128), &close, peer, AT(there + 64), &wide, 8, &count, 1, PEER | SELF));
  CHECK(memcmp(mine + here + 128, mine + here, 32) == 0);
}

static void check_atomics(gex_Rank_t peer) {
  const size_t there = (size_t)rank * 8 + ROOM * 3 / 4, here = (size_t)size * 512;
  gex_AD_t ad;
  uint64_t old = 0;
  gex_AD_Create(&ad, tm, GEX_DT_U64, GEX_OP_FADD | GEX_OP_SET | GEX_OP_FMAX, 0);
  gex_Event_Wait(gex_AD_OpNB_U64(ad, NULL, peer, AT(there), GEX_OP_SET, 40, 0, PEER));
  gex_Event_Wait(gex_AD_OpNB_U64(ad, &old, peer, AT(there), GEX_OP_FADD, 2, 0, PEER));
  CHECK(old == 40);
  gex_Event_Wait(gex_AD_OpNB_U64(ad, (uint64_t *)AT(here), peer, AT(there), GEX_OP_FMAX, 50, 0, PEER | SELF));
  memcpy(&old, mine + here, 8);
  CHECK(old == 42 && gex_RMA_GetBlockingVal(tm, peer, AT(there), 8, PEER) == 50);
  gex_AD_Destroy(ad);
}

static void check_messages(gex_Rank_t peer) {
  const int backs_before = backs, mediums_before = mediums;
  const gex_AM_Arg_t there = (gex_AM_Arg_t)(rank * 256 + ROOM / 4);
  gex_AM_SrcDesc_t sd;
  strcpy(mine + ROOM - 64, "by offset");
  gex_AM_RequestLong1(tm, peer, H_LONG, AT(ROOM - 64), 8, AT(there), GEX_EVENT_NOW, PEER | SELF, there);
  GASNET_BLOCKUNTIL(backs == backs_before + 1);
  sd = gex_AM_PrepareRequestLong(tm, peer, mine + ROOM - 64, 8, 8, AT(there), GEX_EVENT_NOW, PEER, 1);
  gex_AM_CommitRequestLong1(sd, H_LONG, 8, AT(there), there);
  GASNET_BLOCKUNTIL(backs == backs_before + 2);
  gex_AM_RequestMedium0(tm, rank, H_MEDIUM, AT(ROOM - 64), 8, GEX_EVENT_NOW, SELF);
  CHECK(mediums == mediums_before + 1);
}

static void check_teams(void) {
  gex_TM_t half;
  gex_Memvec_t scratch;
  gex_TM_Split(&half, tm, (int)rank % 2, (int)rank, AT(4096), 64, GEX_FLAG_SCRATCH_SEG_OFFSET);
  CHECK(gex_TM_Destroy(half, &scratch, 0) == 1 && scratch.gex_addr == mine + 4096 && scratch.gex_len == 64);
  gex_TM_Split(&half, tm, 0, (int)rank, mine + 4096, 64, 0);
  CHECK(gex_TM_Destroy(half, &scratch, GEX_FLAG_SCRATCH_SEG_OFFSET) == 1 && scratch.gex_addr == AT(4096));
}

int main(int argc, char **argv) {
  gex_AM_Entry_t table[] = {
      {H_LONG, (gex_AM_Fn_t)long_handler, GEX_FLAG_AM_LONG | GEX_FLAG_AM_REQUEST, 1, NULL, "long"},
      {H_BACK, (gex_AM_Fn_t)back_handler, GEX_FLAG_AM_LONG | GEX_FLAG_AM_REPLY, 1, NULL, "back"},
      {H_MEDIUM, (gex_AM_Fn_t)medium_handler, GEX_FLAG_AM_MEDIUM | GEX_FLAG_AM_REQUEST, 0, NULL, "medium"}};
  gex_Rank_t at;
  start(&argc, &argv, table, 3, BYTES);
  mine = (char *)gex_Segment_QueryAddr(segment);
  barrier();
  for (at = 0; at < size; at++) {
    const gex_Rank_t peer = (rank + at) % size;
    check_rma(peer);
    barrier();
    check_vis(peer);
    check_atomics(peer);
    check_messages(peer);
  }
  barrier();
  CHECK(longs == 2 * (int)size);
  check_teams();
  finish();
}
