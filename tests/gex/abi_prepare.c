/* Negotiated Active Messages: prepared, committed, cancelled, as requests and replies. C99 and C++11. */
#include "job.h"

#define SEGMENT_BYTES ((uintptr_t)1 << 20)
#define BYTES 3000

enum { MEDIUM_REQUEST = 200, MEDIUM_REPLY, LONG_REQUEST, LONG_REPLY };

static gasnett_atomic_t mediums = gasnett_atomic_init(0), longs = gasnett_atomic_init(0);
#define GOT(counter) gasnett_atomic_read(&(counter), GASNETT_ATOMIC_ACQ)

static int is_all(const void *bytes, size_t count, int value) {
  const unsigned char *byte = (const unsigned char *)bytes;
  while (count--) {
    if (*byte++ != value) return 0;
  }
  return 1;
}

GASNETT_BEGIN_EXTERNC
static void medium_request(gex_Token_t token, void *bytes, size_t count, gex_AM_Arg_t value) {
  gex_AM_SrcDesc_t sd;
  CHECK(count == BYTES && is_all(bytes, count, value));
  sd = gex_AM_PrepareReplyMedium(token, NULL, BYTES, BYTES, NULL, 0, 1);
  CHECK(sd != GEX_AM_SRCDESC_NO_OP && gex_AM_SrcDescSize(sd) == BYTES);
  memset(gex_AM_SrcDescAddr(sd), value + 1, BYTES);
  gex_AM_CommitReplyMedium(sd, MEDIUM_REPLY, BYTES, value + 1);
}
static void medium_reply(gex_Token_t token, void *bytes, size_t count, gex_AM_Arg_t value) {
  (void)token;
  CHECK(count == BYTES && is_all(bytes, count, value));
  gasnett_atomic_increment(&mediums, GASNETT_ATOMIC_REL);
}
static void long_request(gex_Token_t token, void *bytes, size_t count, gex_AM_Arg_t high, gex_AM_Arg_t low) {
  void *target = (void *)(((uintptr_t)(uint32_t)high << 32) | (uint32_t)low);
  gex_AM_SrcDesc_t sd;
  CHECK(count == BYTES && is_all(bytes, count, 7));
  sd = gex_AM_PrepareReplyLong(token, bytes, BYTES, BYTES, target, GEX_EVENT_NOW, 0, 0);
  CHECK(sd != GEX_AM_SRCDESC_NO_OP && gex_AM_SrcDescSize(sd) == BYTES && gex_AM_SrcDescAddr(sd) == bytes);
  OK(gex_AM_CommitReplyLong_v2(sd, LONG_REPLY, BYTES, target, 0));
}
static void long_reply(gex_Token_t token, void *bytes, size_t count) {
  (void)token;
  CHECK(count == BYTES && is_all(bytes, count, 7));
  gasnett_atomic_increment(&longs, GASNETT_ATOMIC_REL);
}
GASNETT_END_EXTERNC

static gex_AM_Entry_t table[] = {
    {MEDIUM_REQUEST, (gex_AM_Fn_t)medium_request, GEX_FLAG_AM_MEDIUM | GEX_FLAG_AM_REQUEST, 1, NULL, NULL},
    {MEDIUM_REPLY, (gex_AM_Fn_t)medium_reply, GEX_FLAG_AM_MEDIUM | GEX_FLAG_AM_REPLY, 1, NULL, NULL},
    {LONG_REQUEST, (gex_AM_Fn_t)long_request, GEX_FLAG_AM_LONG | GEX_FLAG_AM_REQUEST, 2, NULL, NULL},
    {LONG_REPLY, (gex_AM_Fn_t)long_reply, GEX_FLAG_AM_LONG | GEX_FLAG_AM_REPLY, 0, NULL, NULL},
};

static void mediums_to(gex_Rank_t peer, unsigned *sent) {
  char buffer[BYTES];
  gex_Event_t event = GEX_EVENT_INVALID;
  /* The library's buffer, of a size between the bounds. */
  gex_AM_SrcDesc_t sd = gex_AM_PrepareRequestMedium(tm, peer, NULL, BYTES, 2 * BYTES, NULL, 0, 1);
  CHECK(sd != GEX_AM_SRCDESC_NO_OP && gex_AM_SrcDescSize(sd) >= BYTES && gex_AM_SrcDescSize(sd) <= 2 * BYTES);
  memset(gex_AM_SrcDescAddr(sd), 3, BYTES);
  gex_AM_CommitRequestMedium1(sd, MEDIUM_REQUEST, BYTES, 3);
  ++*sent;
  /* The client's buffer. */
  memset(buffer, 9, BYTES);
  sd = gex_AM_PrepareRequestMedium(tm, peer, buffer, BYTES, BYTES, GEX_EVENT_NOW, 0, 1);
  CHECK(gex_AM_SrcDescAddr(sd) == (void *)buffer && gex_AM_SrcDescSize(sd) == BYTES);
  OK(gex_AM_CommitRequestMedium_v2(sd, MEDIUM_REQUEST, BYTES, 0, 9));
  memset(buffer, 11, BYTES);
  ++*sent;
  sd = gex_AM_PrepareRequestMedium(tm, peer, buffer, BYTES, BYTES, &event, 0, 1);
  OK(gex_AM_CommitRequestMedium1_v2(sd, MEDIUM_REQUEST, BYTES, 0, 11));
  gex_Event_Wait(event);
  ++*sent;
  /* Cancelled: nothing is sent. */
  sd = gex_AM_PrepareRequestMedium(tm, peer, NULL, 16, 64, NULL, 0, 0);
  OK(gex_AM_CancelRequestMedium(sd, 0));
  GASNET_BLOCKUNTIL(GOT(mediums) == *sent);
}

static void longs_to(gex_Rank_t peer, unsigned *sent) {
  char *target = (char *)segment_of(peer) + (uintptr_t)rank * 4 * BYTES;
  const uintptr_t back = (uintptr_t)segment_of(rank) + SEGMENT_BYTES / 2 + (uintptr_t)peer * 4 * BYTES;
  char buffer[BYTES];
  gex_AM_SrcDesc_t sd = gex_AM_PrepareRequestLong(tm, peer, NULL, BYTES, BYTES, target, NULL, 0, 2);
  CHECK(sd != GEX_AM_SRCDESC_NO_OP && gex_AM_SrcDescSize(sd) == BYTES);
  memset(gex_AM_SrcDescAddr(sd), 7, BYTES);
  gex_AM_CommitRequestLong(sd, LONG_REQUEST, BYTES, target, (gex_AM_Arg_t)(back >> 32), (gex_AM_Arg_t)back);
  ++*sent;
  GASNET_BLOCKUNTIL(GOT(longs) == *sent);
  /* The target may be given by the commit alone. */
  memset(buffer, 7, BYTES);
  sd = gex_AM_PrepareRequestLong(tm, peer, buffer, BYTES, BYTES, NULL, GEX_EVENT_NOW, 0, 2);
  gex_AM_CommitRequestLong2(sd, LONG_REQUEST, BYTES, target, (gex_AM_Arg_t)(back >> 32), (gex_AM_Arg_t)back);
  ++*sent;
  sd = gex_AM_PrepareRequestLong(tm, peer, buffer, 1, 1, target, GEX_EVENT_NOW, 0, 2);
  OK(gex_AM_CancelRequestLong(sd, 0));
  GASNET_BLOCKUNTIL(GOT(longs) == *sent);
}

int main(int argc, char **argv) {
  unsigned medium_count = 0, long_count = 0, round;
  gex_Rank_t i;
  start(&argc, &argv, table, sizeof(table) / sizeof(table[0]), SEGMENT_BYTES);
  barrier();
  for (round = 0; round < 20; round++) {
    for (i = 0; i < size; i++) {
      mediums_to(i, &medium_count);
      longs_to(i, &long_count);
    }
  }
  finish();
}
