/* Memory outside segments: by grant at any address, and errors without grant or at wrong addresses. */
#include "job.h"

#include <gasnet_weft.h>
#include <sys/mman.h>

#define ANY GEX_FLAG_PEER_SEG_UNKNOWN
enum { LONG_BYTES = 100000, H_ADDR = 200 };

static char global[LONG_BYTES];
static char block[LONG_BYTES], back[LONG_BYTES];
static const char constant[] = "cannot be written";
static volatile int told;
static uintptr_t theirs[3];

/* The addresses of a rank's variables. */
static void addr_handler(gex_Token_t token, gex_AM_Arg_t index, gex_AM_Arg_t high, gex_AM_Arg_t low) {
  (void)token;
  theirs[index] = (uintptr_t)(uint32_t)high << 32 | (uint32_t)low;
  told++;
}

static void tell(gex_Rank_t to, int index, const void *addr) {
  const uint64_t word = (uintptr_t)addr;
  gex_AM_RequestShort3(tm, to, H_ADDR, 0, index, (gex_AM_Arg_t)(uint32_t)(word >> 32), (gex_AM_Arg_t)(uint32_t)word);
}

static void check_granted(gex_Rank_t peer, char *heap) {
  char *there = (char *)theirs[0];
  gex_Event_t event, next;
  memset(block, 3 + (int)rank, sizeof block);
  OK(gex_RMA_PutBlocking(tm, peer, there, block, LONG_BYTES, ANY));
  OK(gex_RMA_GetBlocking(tm, back, peer, there, LONG_BYTES, ANY));
  CHECK(memcmp(back, block, LONG_BYTES) == 0);
  event = gex_RMA_PutNB(tm, peer, there, block + 1, 100, GEX_EVENT_NOW, ANY);
  CHECK(gexw_Event_Wait(event) == GASNET_OK);
  memset(block, 9, 8);
  event = gex_RMA_PutNB(tm, peer, there, block, 8, GEX_EVENT_DEFER, ANY);
  gexw_AfterNext(&event, 1, 0);
  next = gex_RMA_GetNB(tm, back, peer, there, 8, ANY);
  CHECK(gexw_Event_Wait(next) == GASNET_OK && memcmp(back, block, 8) == 0);
  CHECK(gexw_Event_Wait(event) == GASNET_OK);
  OK(gex_RMA_PutNBI(tm, peer, there + 8, block, 8, GEX_EVENT_NOW, ANY));
  OK(gex_RMA_GetNBI(tm, back, peer, there + 8, 8, ANY));
  gex_NBI_Wait(GEX_EC_ALL, 0);
  CHECK(memcmp(back, block, 8) == 0);
  /* The heap. */
  OK(gex_RMA_PutBlockingVal(tm, peer, (void *)theirs[1], 0x55, 1, ANY));
  CHECK(gex_RMA_GetBlockingVal(tm, peer, (void *)theirs[1], 1, ANY) == 0x55);
  gex_Event_Wait(gex_RMA_PutNBVal(tm, peer, (void *)theirs[1], 0x5566, 2, ANY));
  OK(gex_RMA_PutNBIVal(tm, peer, (char *)theirs[1] + 2, 0x7788, 2, ANY));
  gex_NBI_Wait(GEX_EC_ALL, 0);
  CHECK(gex_RMA_GetBlockingVal(tm, peer, (void *)theirs[1], 4, ANY) == 0x77885566);
  barrier();
  CHECK(memcmp(heap, "\x66\x55\x88\x77", 4) == 0 && global[0] == 9 && global[LONG_BYTES - 1] != 0);
  /* The address of a segment, and one in another segment of the rank. */
  OK(gex_RMA_PutBlocking(tm, peer, segment_of(peer), block, 8, ANY));
  OK(gex_RMA_GetBlocking(tm, back, peer, segment_of(peer), 8, GEX_FLAG_PEER_SEG_SOME));
  OK(gex_RMA_GetBlocking(tm, back, peer, segment_of(peer), 8, GEX_FLAG_PEER_SEG_BOUND | GEX_FLAG_SELF_SEG_UNKNOWN));
  CHECK(memcmp(back, block, 8) == 0);
}

/* Every failure is told to the caller, and no process ends. */
static void check_refusals(gex_Rank_t peer, void *bad) {
  gex_Event_t events[2];
  memset(back, 1, 8);
  CHECK(gex_RMA_PutBlocking(tm, peer, bad, block, 8, ANY) == GASNET_ERR_RESOURCE);
  CHECK(gex_RMA_GetBlocking(tm, back, peer, bad, 8, ANY) == GASNET_ERR_RESOURCE);
  CHECK(gex_RMA_PutNBI(tm, peer, bad, block, 8, GEX_EVENT_NOW, ANY) == GASNET_ERR_RESOURCE);
  CHECK(gex_RMA_GetNBI(tm, back, peer, bad, 8, ANY) == GASNET_ERR_RESOURCE);
  CHECK(gex_RMA_PutBlockingVal(tm, peer, bad, 1, 8, ANY) == GASNET_ERR_RESOURCE);
  CHECK(back[0] == 1);
  /* What follows a failed operation is cancelled. */
  OK(gex_RMA_PutBlockingVal(tm, peer, segment_of(peer), 7, 8, 0));
  events[0] = gex_RMA_PutNB(tm, peer, bad, block, 8, GEX_EVENT_NOW, ANY);
  gexw_AfterNext(&events[0], 1, 0);
  events[1] = gex_RMA_PutNBVal(tm, peer, segment_of(peer), 8, 8, 0);
  gexw_AfterNext(&events[1], 1, 0);
  CHECK(gex_RMA_PutBlockingVal(tm, peer, segment_of(peer), 9, 8, 0) == GASNET_ERR_RESOURCE);
  CHECK(gexw_Event_Status(events[0]) == GASNET_ERR_RESOURCE && gexw_Event_Status(events[1]) == GASNET_ERR_RESOURCE);
  gex_Event_WaitAll(events, 2, 0);
  CHECK(gex_RMA_GetBlockingVal(tm, peer, segment_of(peer), 8, 0) == 7);
  gex_NBI_Wait(GEX_EC_ALL, 0);
  gex_NBI_BeginAccessRegion(0);
  events[0] = gex_NBI_EndAccessRegion(0);
  CHECK(gexw_Event_Wait(events[0]) == GASNET_OK);
}

/* With an argument, the ranks grant nothing. */
int main(int argc, char **argv) {
  gex_AM_Entry_t table[] = {{H_ADDR, (gex_AM_Fn_t)addr_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 3, NULL, "addr"}};
  const int grants = argc < 2;
  gex_Rank_t peer, from;
  char *heap = (char *)malloc(64);
  void *gone = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OK(gex_Client_Init(&client, &ep, &tm, "OUTSIDE", &argc, &argv, grants ? GEXW_FLAG_OPEN_ADDRESS_SPACE : 0));
  rank = gex_TM_QueryRank(tm), size = gex_TM_QuerySize(tm);
  OK(gex_EP_RegisterHandlers(ep, table, 1));
  OK(gex_Segment_Attach(&segment, tm, 1 << 16));
  munmap(gone, 1 << 20);
  peer = (rank + 1) % size, from = (rank + size - 1) % size;
  tell(from, 0, global);
  tell(from, 1, heap);
  tell(from, 2, constant);
  GASNET_BLOCKUNTIL(told == 3);
  barrier();
  if (grants) {
    check_granted(peer, heap);
    check_refusals(peer, (void *)64);
    CHECK(gex_RMA_PutBlocking(tm, peer, (void *)theirs[2], block, 4, ANY) == GASNET_ERR_RESOURCE);
    OK(gex_RMA_GetBlocking(tm, back, peer, (void *)theirs[2], sizeof constant, ANY));
    CHECK(strcmp(back, constant) == 0);
  } else if (size > 1) {
    check_refusals(peer, (void *)theirs[0]);
  }
  barrier();
  CHECK(strcmp(constant, "cannot be written") == 0);
  finish();
}
