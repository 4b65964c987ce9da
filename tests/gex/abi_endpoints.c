/* Further endpoints, with segments of their own, as clients use them for accesses. C99 and C++11. */
#include "job.h"

#define ENDPOINTS 4
#define SEGMENT_BYTES ((uintptr_t)16 * GASNET_PAGESIZE)

static gex_EP_t endpoints[ENDPOINTS];
static gex_Segment_t segments[ENDPOINTS];

static void create(void) {
  void *owner = NULL;
  uintptr_t bytes = 0;
  int i;
  for (i = 0; i < ENDPOINTS; i++) {
    OK(gex_EP_Create(&endpoints[i], client, GEX_EP_CAPABILITY_RMA, 0));
    CHECK(gex_EP_QueryIndex(endpoints[i]) == i + 1 && gex_EP_QueryClient(endpoints[i]) == client);
    CHECK(gex_EP_QuerySegment(endpoints[i]) == GEX_SEGMENT_INVALID);
    OK(gex_Segment_Create(&segments[i], client, NULL, SEGMENT_BYTES * (uintptr_t)(i + 1), GEX_MK_HOST, 0));
    CHECK(gex_Segment_QuerySize(segments[i]) == SEGMENT_BYTES * (uintptr_t)(i + 1));
    CHECK(gex_Segment_QueryAddr(segments[i]) != NULL && gex_Segment_QueryClient(segments[i]) == client);
    OK(gex_EP_BindSegment(endpoints[i], segments[i], 0));
    CHECK(gex_EP_QuerySegment(endpoints[i]) == segments[i]);
    /* A process knows its own segments before it publishes them. */
    gex_Event_Wait(gex_EP_QueryBoundSegmentNB(gex_TM_Pair(ep, (gex_EP_Index_t)(i + 1)), rank, &owner, NULL, &bytes, 0));
    CHECK(owner == gex_Segment_QueryAddr(segments[i]) && bytes == gex_Segment_QuerySize(segments[i]));
  }
  OK(gex_EP_PublishBoundSegment(tm, endpoints, ENDPOINTS, 0));
}

/* Every rank puts a word into every segment of every rank, from each of its endpoints. */
static void access_all(void) {
  gex_Rank_t peer;
  int i;
  for (peer = 0; peer < size; peer++) {
    for (i = 0; i < ENDPOINTS; i++) {
      const gex_TM_t pair = gex_TM_Pair(endpoints[(i + 1) % ENDPOINTS], (gex_EP_Index_t)(i + 1));
      void *owner = NULL, *local = NULL;
      uintptr_t bytes = 0;
      uint64_t value = (uint64_t)rank * 100 + (uint64_t)i, in = 0;
      gex_Event_Wait(gex_EP_QueryBoundSegmentNB(pair, peer, &owner, &local, &bytes, 0));
      CHECK(owner != NULL && bytes == SEGMENT_BYTES * (uintptr_t)(i + 1));
      if (peer == rank) CHECK(owner == gex_Segment_QueryAddr(segments[i]));
      OK(gex_RMA_PutBlocking(pair, peer, (uint64_t *)owner + rank, &value, 8, 0));
      gex_Event_Wait(gex_RMA_GetNB(pair, &in, peer, (uint64_t *)owner + rank, 8, 0));
      CHECK(in == value);
    }
  }
  barrier();
  for (i = 0; i < ENDPOINTS; i++) {
    for (peer = 0; peer < size; peer++) {
      CHECK(((uint64_t *)gex_Segment_QueryAddr(segments[i]))[peer] == (uint64_t)peer * 100 + (uint64_t)i);
    }
  }
}

static void pairs(void) {
  CHECK(gex_TM_Pair(endpoints[0], 1) == gex_TM_Pair(endpoints[0], 1));
  CHECK(gex_TM_Pair(endpoints[0], 1) != gex_TM_Pair(endpoints[0], 2));
  CHECK(gex_TM_Pair(endpoints[0], 1) != gex_TM_Pair(endpoints[1], 1));
  CHECK(gex_TM_QuerySize(gex_TM_Pair(endpoints[0], 1)) == size);
}

/* No more than GASNET_MAXEPS endpoints exist. */
static void exhaust(void) {
  gex_EP_t more;
  int made = 1 + ENDPOINTS, verbose = gex_System_GetVerboseErrors();
  gex_System_SetVerboseErrors(0);
  while (made < 100 && gex_EP_Create(&more, client, GEX_EP_CAPABILITY_RMA, 0) == GASNET_OK) made++;
  CHECK(made == GASNET_MAXEPS);
  gex_System_SetVerboseErrors(verbose);
}

int main(int argc, char **argv) {
  start(&argc, &argv, NULL, 0, GASNET_PAGESIZE);
  create();
  pairs();
  access_all();
  exhaust();
  barrier();
  gex_Segment_Destroy(segments[0], 0);
  finish();
}
