/* Active messages of all kinds between all pairs of ranks, also to the own rank; replies; negotiated messages. */
#include "core.h"

#define BYTES (1 << 20)

enum { ECHO_SHORT = 200, ECHO_MEDIUM, ECHO_LONG, BACK_SHORT, BACK_MEDIUM, BACK_LONG, COUNT, LAST };

static volatile int replies, counted;
static size_t expected_bytes;
static char *peer_reply_area; /* in this rank's segment */

static void token_check(gex_Token_t token, int is_req, int is_long, int index) {
  gex_Token_Info_t info;
  gex_TI_t known = gex_Token_Info(token, &info, GEX_TI_ALL);
  CHECK(known & GEX_TI_SRCRANK && info.gex_srcrank < ranks);
  if (known & GEX_TI_IS_REQ) CHECK(info.gex_is_req == is_req);
  if (known & GEX_TI_IS_LONG) CHECK(info.gex_is_long == is_long);
  if (known & GEX_TI_EP) CHECK(info.gex_ep == ep);
  if (known & GEX_TI_ENTRY) CHECK(info.gex_entry->gex_index == index && info.gex_entry->gex_cdata == &replies);
}

static void echo_short(gex_Token_t token, gex_AM_Arg_t a, gex_AM_Arg_t b) {
  token_check(token, 1, 0, ECHO_SHORT);
  CHECK(gex_AM_ReplyShort(token, BACK_SHORT, 0, a, b) == 0);
}
static void back_short(gex_Token_t token, gex_AM_Arg_t a, gex_AM_Arg_t b) {
  token_check(token, 0, 0, BACK_SHORT);
  CHECK(a == -5 && b == (gex_AM_Arg_t)me);
  replies++;
}
static void check_bytes(const unsigned char *bytes, size_t n) {
  size_t at;
  for (at = 0; at < n; at++) CHECK(bytes[at] == (unsigned char)(at * 13 + n));
}
static void echo_medium(gex_Token_t token, void *buf, size_t n, gex_AM_Arg_t a) {
  token_check(token, 1, 0, ECHO_MEDIUM);
  CHECK((uintptr_t)buf % 8 == 0);
  check_bytes(buf, n);
  if (a == 1) {
    gex_AM_SrcDesc_t sd = gex_AM_PrepareReplyMedium(token, NULL, n, n, NULL, 0, 2);
    memcpy(gex_AM_SrcDescAddr(sd), buf, n);
    gex_AM_CommitReplyMedium(sd, BACK_MEDIUM, n, 3, 4);
  } else {
    CHECK(gex_AM_ReplyMedium(token, BACK_MEDIUM, buf, n, GEX_EVENT_NOW, 0, 3, 4) == 0);
  }
}
static void back_medium(gex_Token_t token, void *buf, size_t n, gex_AM_Arg_t a, gex_AM_Arg_t b) {
  token_check(token, 0, 0, BACK_MEDIUM);
  CHECK(a == 3 && b == 4 && n == expected_bytes && (uintptr_t)buf % 8 == 0);
  check_bytes(buf, n);
  replies++;
}
/* A reply carries less than a request where it cannot wait. */
static size_t reply_bytes(size_t n) {
  size_t most = gex_AM_LUBReplyLong();
  return n < most ? n : most;
}
static void echo_long(gex_Token_t token, void *buf, size_t n, gex_AM_Arg_t high, gex_AM_Arg_t low) {
  void *dest = (void *)(uintptr_t)(((uint64_t)(uint32_t)high << 32) | (uint32_t)low);
  token_check(token, 1, 1, ECHO_LONG);
  check_bytes(buf, n);
  CHECK(gex_Token_MaxReplyLong(token, GEX_EVENT_NOW, 0, 0) >= gex_AM_LUBReplyLong());
  CHECK(gex_AM_ReplyLong(token, BACK_LONG, buf, reply_bytes(n), dest, GEX_EVENT_NOW, 0) == 0);
}
static void back_long(gex_Token_t token, void *buf, size_t n) {
  token_check(token, 0, 1, BACK_LONG);
  CHECK(buf == peer_reply_area && n == reply_bytes(expected_bytes));
  if (n == expected_bytes) check_bytes(buf, n);
  replies++;
}
static void count(gex_Token_t token, gex_AM_Arg_t a0, gex_AM_Arg_t a1, gex_AM_Arg_t a2, gex_AM_Arg_t a3,
                  gex_AM_Arg_t a4, gex_AM_Arg_t a5, gex_AM_Arg_t a6, gex_AM_Arg_t a7, gex_AM_Arg_t a8, gex_AM_Arg_t a9,
                  gex_AM_Arg_t a10, gex_AM_Arg_t a11, gex_AM_Arg_t a12, gex_AM_Arg_t a13, gex_AM_Arg_t a14,
                  gex_AM_Arg_t a15) {
  (void)token;
  CHECK(a0 == 0 && a1 == 1 && a2 == 2 && a3 == 3 && a4 == 4 && a5 == 5 && a6 == 6 && a7 == 7 && a8 == 8 && a9 == 9);
  CHECK(a10 == 10 && a11 == 11 && a12 == 12 && a13 == 13 && a14 == 14 && a15 == 15);
  counted++;
}

#define ENTRY(index, function, flags, nargs)                                                                           \
  {index, (gex_AM_Fn_t)function, flags, nargs, (const void *)&replies, #function}
static gex_AM_Entry_t table[] = {
    ENTRY(ECHO_SHORT, echo_short, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_SHORT, 2),
    ENTRY(ECHO_MEDIUM, echo_medium, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_MEDIUM, 1),
    ENTRY(ECHO_LONG, echo_long, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_LONG, 2),
    ENTRY(BACK_SHORT, back_short, GEX_FLAG_AM_REPLY | GEX_FLAG_AM_SHORT, 2),
    ENTRY(BACK_MEDIUM, back_medium, GEX_FLAG_AM_REPLY | GEX_FLAG_AM_MEDIUM, 2),
    ENTRY(BACK_LONG, back_long, GEX_FLAG_AM_REPLY | GEX_FLAG_AM_LONG, 0),
    ENTRY(COUNT, count, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_SHORT, 16),
};

static void await(int number) { GASNET_BLOCKUNTIL(replies == number); }

static void talk(gex_Rank_t peer, size_t n) {
  unsigned char *source = malloc(n + 1);
  char *dest = segment_of(peer) + BYTES / 2;
  gex_Event_t lc = GEX_EVENT_INVALID;
  gex_AM_SrcDesc_t sd;
  size_t at;
  uint64_t area = (uint64_t)(uintptr_t)peer_reply_area;
  replies = 0;
  expected_bytes = n;
  for (at = 0; at < n; at++) source[at] = (unsigned char)(at * 13 + n);
  CHECK(gex_AM_RequestShort(world, peer, ECHO_SHORT, 0, -5, (gex_AM_Arg_t)me) == 0);
  await(1);
  if (n <= gex_AM_LUBRequestMedium()) {
    CHECK(gex_AM_RequestMedium(world, peer, ECHO_MEDIUM, source, n, GEX_EVENT_NOW, 0, 0) == 0);
    await(2);
    sd = gex_AM_PrepareRequestMedium(world, peer, NULL, n, gex_AM_MaxRequestMedium(world, peer, NULL, 0, 1), NULL, 0, 1);
    CHECK(gex_AM_SrcDescSize(sd) >= n);
    memcpy(gex_AM_SrcDescAddr(sd), source, n);
    gex_AM_CommitRequestMedium(sd, ECHO_MEDIUM, n, 1);
    await(3);
  } else {
    replies = 3;
  }
  CHECK(gex_AM_RequestLong(world, peer, ECHO_LONG, source, n, dest, &lc, 0, (gex_AM_Arg_t)(area >> 32),
                           (gex_AM_Arg_t)area) == 0);
  gex_Event_Wait(lc);
  await(4);
  memset(peer_reply_area, 0, n);
  sd = gex_AM_PrepareRequestLong(world, peer, source, n, n, dest, GEX_EVENT_NOW, 0, 2);
  CHECK(gex_AM_SrcDescAddr(sd) == (void *)source);
  CHECK(gex_AM_CommitRequestLong_v2(sd, ECHO_LONG, n, dest, 0, (gex_AM_Arg_t)(area >> 32), (gex_AM_Arg_t)area) == 0);
  await(5);
  sd = gex_AM_PrepareRequestMedium(world, peer, NULL, 0, 64, NULL, 0, 1);
  CHECK(gex_AM_CancelRequestMedium(sd, 0) == 0);
  free(source);
}

int main(int argc, char **argv) {
  size_t lengths[] = {0, 1, 8, 511, 4096, 32000, 200000};
  size_t at;
  gex_Rank_t peer, turn;
  int number;
  start(&argc, &argv);
  CHECK(gex_EP_RegisterHandlers(ep, table, sizeof(table) / sizeof(*table)) == GASNET_OK);
  attach(BYTES);
  CHECK(gex_AM_MaxArgs() >= 16 && gex_AM_LUBRequestMedium() >= 512 && gex_AM_LUBReplyLong() >= 512);
  peer_reply_area = segment_of(me);
  barrier();
  /* One rank at a time, because the places in the segments are common. */
  for (turn = 0; turn < ranks; turn++) {
    for (peer = 0; turn == me && peer < ranks; peer++) {
      for (at = 0; at < sizeof(lengths) / sizeof(*lengths); at++) talk(peer, lengths[at]);
    }
    barrier();
  }
  /* All ranks flood one another, beyond all credit. */
  for (number = 0; number < 3000; number++) {
    for (peer = 0; peer < ranks; peer++) {
      CHECK(gex_AM_RequestShort(world, peer, COUNT, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) == 0);
    }
  }
  GASNET_BLOCKUNTIL(counted == 3000 * (int)ranks);
  /* Immediate calls may be refused, and polls mend that. */
  replies = 0;
  for (number = 0; number < 1000; number++) {
    while (gex_AM_RequestShort(world, (me + 1) % ranks, ECHO_SHORT, GEX_FLAG_IMMEDIATE, -5, (gex_AM_Arg_t)me) != 0) {
      gasnet_AMPoll();
    }
  }
  await(1000);
  finish();
  return 0;
}
