/* Remote memory access, events and implicit accesses. C99 and C++11. */
#include "job.h"

#define SEGMENT_BYTES ((uintptr_t)2 << 20)
#define COUNT 64

static gex_Rank_t peer;
/* The lower half of the peer's segment is written by this rank alone. */
static unsigned char *target;
static const uint64_t constant = 0x0123456789ABCDEF;

static void blocking(void) {
  const size_t sizes[] = {0, 1, 2, 3, 8, 63, 64, 4095, 4096, 65536, 1 << 20};
  unsigned char *out = (unsigned char *)malloc(1 << 20), *in = (unsigned char *)malloc(1 << 20);
  unsigned n;
  size_t i;
  for (i = 0; i < 1 << 20; i++) out[i] = (unsigned char)(i * 13 + rank);
  for (n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
    memset(in, 0, sizes[n]);
    OK(gex_RMA_PutBlocking(tm, peer, target, out, sizes[n], 0));
    OK(gex_RMA_GetBlocking(tm, in, peer, target, sizes[n], 0));
    CHECK(!memcmp(in, out, sizes[n]));
  }
  /* The source may be memory that cannot be written. */
  OK(gex_RMA_PutBlocking(tm, peer, target + 5, &constant, sizeof(constant), 0));
  OK(gex_RMA_GetBlocking(tm, in, peer, target + 5, sizeof(constant), 0));
  CHECK(!memcmp(in, &constant, sizeof(constant)));
  free(out);
  free(in);
}

static void values(void) {
  unsigned bytes;
  for (bytes = 1; bytes <= 8; bytes++) {
    const gex_RMA_Value_t mask = bytes == 8 ? ~(gex_RMA_Value_t)0 : ((gex_RMA_Value_t)1 << 8 * bytes) - 1;
    OK(gex_RMA_PutBlockingVal(tm, peer, target, constant + bytes, bytes, 0));
    CHECK(gex_RMA_GetBlockingVal(tm, peer, target, bytes, 0) == ((constant + bytes) & mask));
    gex_Event_Wait(gex_RMA_PutNBVal(tm, peer, target + 8, constant - bytes, bytes, 0));
    CHECK(gex_RMA_GetBlockingVal(tm, peer, target + 8, bytes, 0) == ((constant - bytes) & mask));
    OK(gex_RMA_PutNBIVal(tm, peer, target + 16, constant, bytes, 0));
    gex_NBI_Wait(GEX_EC_PUT, 0);
    CHECK(gex_RMA_GetBlockingVal(tm, peer, target + 16, bytes, 0) == (constant & mask));
  }
}

static void explicit_events(void) {
  gex_Event_t events[COUNT], leaves[COUNT];
  uint64_t out[COUNT], in[COUNT];
  int i;
  for (i = 0; i < COUNT; i++) {
    out[i] = constant * (uint64_t)(i + 1) + rank;
    leaves[i] = GEX_EVENT_INVALID;
    events[i] = gex_RMA_PutNB(tm, peer, target + 8 * i, &out[i], 8,
                              i % 3 == 0 ? GEX_EVENT_NOW : i % 3 == 1 ? GEX_EVENT_DEFER : &leaves[i], 0);
    CHECK(events[i] != GEX_EVENT_NO_OP && leaves[i] != GEX_EVENT_NO_OP);
    if (i % 3 == 2) {
      gex_Event_t again = gex_Event_QueryLeaf(events[i], GEX_EC_LC);
      CHECK(again == leaves[i] || gex_Event_Test(again) == 0);
    }
  }
  gex_Event_WaitAll(leaves, COUNT, 0);
  gex_Event_WaitAll(events, COUNT, 0);
  for (i = 0; i < COUNT; i++) CHECK(events[i] == GEX_EVENT_INVALID && leaves[i] == GEX_EVENT_INVALID);
  for (i = 0; i < COUNT; i++) events[i] = gex_RMA_GetNB(tm, &in[i], peer, target + 8 * i, 8, 0);
  while (gex_Event_TestAll(events, COUNT, 0)) OK(gasnet_AMPoll());
  CHECK(!memcmp(in, out, sizeof(in)));
  /* Some of the events, until none is left. */
  for (i = 0; i < COUNT; i++) events[i] = gex_RMA_PutNB(tm, peer, target + 8 * i, &in[i], 8, GEX_EVENT_DEFER, 0);
  for (;;) {
    gex_Event_WaitSome(events, COUNT, 0);
    if (!gex_Event_TestAll(events, COUNT, 0)) break;
  }
  OK(gex_Event_TestSome(events, COUNT, 0));
  OK(gex_Event_Test(GEX_EVENT_INVALID));
  gex_Event_Wait(GEX_EVENT_INVALID);
  gex_Event_WaitSome(NULL, 0, 0);
  gex_Event_WaitAll(NULL, 0, 0);
  OK(gex_Event_TestSome(NULL, 0, 0));
  OK(gex_Event_TestAll(NULL, 0, 0));
  CHECK(gex_Event_QueryLeaf(GEX_EVENT_INVALID, GEX_EC_LC) == GEX_EVENT_INVALID);
}

static void implicit_events(void) {
  uint64_t out[COUNT], in[COUNT];
  gex_Event_t *const completions[] = {GEX_EVENT_NOW, GEX_EVENT_DEFER, GEX_EVENT_GROUP};
  gex_Event_t region;
  int i;
  for (i = 0; i < COUNT; i++) {
    out[i] = constant / (uint64_t)(i + 1) + rank;
    OK(gex_RMA_PutNBI(tm, peer, target + 8 * i, &out[i], 8, completions[i % 3], 0));
  }
  gex_NBI_Wait(GEX_EC_LC, 0);
  gex_NBI_Wait(GEX_EC_PUT, 0);
  OK(gex_NBI_Test(GEX_EC_PUT, 0));
  for (i = 0; i < COUNT; i++) OK(gex_RMA_GetNBI(tm, &in[i], peer, target + 8 * i, 8, 0));
  while (gex_NBI_Test(GEX_EC_GET, 0)) OK(gasnet_AMPoll());
  CHECK(!memcmp(in, out, sizeof(in)));
  gex_NBI_Wait(GEX_EC_ALL, 0);
  OK(gex_NBI_Test(GEX_EC_ALL, 0));
  /* One event for a region, in which blocking calls are allowed. */
  memset(in, 0, sizeof(in));
  gex_NBI_BeginAccessRegion(0);
  for (i = 0; i < COUNT; i++) OK(gex_RMA_GetNBI(tm, &in[i], peer, target + 8 * i, 8, 0));
  CHECK(gex_RMA_GetBlockingVal(tm, peer, target, 8, 0) == out[0]);
  region = gex_NBI_EndAccessRegion(0);
  gex_Event_Wait(region);
  CHECK(!memcmp(in, out, sizeof(in)));
  gex_NBI_BeginAccessRegion(0);
  gex_Event_Wait(gex_NBI_EndAccessRegion(0));
}

/* An immediate access happens, or has no effect. */
static void immediate(void) {
  uint64_t out = constant + rank, in = 0;
  gex_Event_t event;
  int tries = 0;
  while ((event = gex_RMA_PutNB(tm, peer, target, &out, 8, GEX_EVENT_NOW, GEX_FLAG_IMMEDIATE)) == GEX_EVENT_NO_OP &&
         tries++ < 1000000) {
    OK(gasnet_AMPoll());
  }
  gex_Event_Wait(event);
  while (gex_RMA_GetNBI(tm, &in, peer, target, 8, GEX_FLAG_IMMEDIATE) != 0 && tries++ < 1000000) OK(gasnet_AMPoll());
  gex_NBI_Wait(GEX_EC_GET, 0);
  CHECK(in == out);
}

/* Accesses through a pair of endpoints, and assertions about the place of memory. */
static void pairs(void) {
  const gex_TM_t pair = gex_TM_Pair(ep, 0);
  uint64_t in = 0;
  OK(gex_RMA_PutBlocking(pair, peer, target, &constant, 8, GEX_FLAG_PEER_SEG_BOUND | GEX_FLAG_SELF_SEG_SOME));
  OK(gex_RMA_GetBlocking(pair, &in, peer, target, 8, GEX_FLAG_PEER_SEG_BOUND));
  CHECK(in == constant);
}

int main(int argc, char **argv) {
  gex_Rank_t round;
  start(&argc, &argv, NULL, 0, SEGMENT_BYTES);
  for (round = 0; round < size; round++) {
    peer = (rank + round) % size;
    target = (unsigned char *)segment_of(peer);
    barrier();
    blocking();
    values();
    explicit_events();
    implicit_events();
    immediate();
    pairs();
  }
  finish();
}
