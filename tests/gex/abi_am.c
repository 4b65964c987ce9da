/* Active Messages: fixed ones of all kinds and numbers of arguments, limits, tokens. C99 and C++11. */
#include "job.h"

#define SEGMENT_BYTES ((uintptr_t)4 << 20)
#define ROUNDS 200

enum { SHORT_REQUEST = 200, SHORT_REPLY, MEDIUM_REQUEST, MEDIUM_REPLY, LONG_REQUEST, LONG_REPLY, ALL_REQUEST, ONE_WAY };

/* Handlers of several threads may run at once, so counts are atomic. */
static gasnett_atomic_t shorts = gasnett_atomic_init(0), mediums = gasnett_atomic_init(0);
static gasnett_atomic_t longs = gasnett_atomic_init(0), alls = gasnett_atomic_init(0), ones = gasnett_atomic_init(0);
static unsigned char *data;
#define ADD(counter) gasnett_atomic_increment(&(counter), GASNETT_ATOMIC_REL)
#define GOT(counter) gasnett_atomic_read(&(counter), GASNETT_ATOMIC_ACQ)

static void check_token(gex_Token_t token, int is_request, int is_long, int index) {
  gex_Token_Info_t info;
  const gex_TI_t known = gex_Token_Info(token, &info, GEX_TI_ALL);
  CHECK((known & GEX_TI_ALL) == GEX_TI_ALL);
  CHECK(info.gex_srcrank < size && info.gex_ep == ep);
  CHECK(!info.gex_is_req == !is_request && !info.gex_is_long == !is_long);
  CHECK(info.gex_entry->gex_index == index && info.gex_entry->gex_cdata == &shorts);
}

static int is_pattern(const void *bytes, size_t count, unsigned seed) {
  const unsigned char *byte = (const unsigned char *)bytes;
  size_t i;
  for (i = 0; i < count; i++) {
    if (byte[i] != (unsigned char)(i * 7 + seed)) return 0;
  }
  return 1;
}

static void fill(void *bytes, size_t count, unsigned seed) {
  unsigned char *byte = (unsigned char *)bytes;
  size_t i;
  for (i = 0; i < count; i++) byte[i] = (unsigned char)(i * 7 + seed);
}

GASNETT_BEGIN_EXTERNC
static void short_request(gex_Token_t token, gex_AM_Arg_t a, gex_AM_Arg_t b) {
  check_token(token, 1, 0, SHORT_REQUEST);
  CHECK(a == -1 && b == 0x7FFFFFFF);
  OK(gex_AM_ReplyShort(token, SHORT_REPLY, 0, b, a));
}
static void short_reply(gex_Token_t token, gex_AM_Arg_t b, gex_AM_Arg_t a) {
  check_token(token, 0, 0, SHORT_REPLY);
  CHECK(a == -1 && b == 0x7FFFFFFF);
  ADD(shorts);
}
static void medium_request(gex_Token_t token, void *bytes, size_t count, gex_AM_Arg_t seed) {
  check_token(token, 1, 0, MEDIUM_REQUEST);
  CHECK(is_pattern(bytes, count, (unsigned)seed));
  CHECK(count == 0 || ((uintptr_t)bytes & 7) == 0);
  CHECK(gex_Token_MaxReplyMedium(token, GEX_EVENT_NOW, 0, 1) >= 512);
  OK(gex_AM_ReplyMedium(token, MEDIUM_REPLY, bytes, count, GEX_EVENT_NOW, 0, seed));
}
static void medium_reply(gex_Token_t token, void *bytes, size_t count, gex_AM_Arg_t seed) {
  check_token(token, 0, 0, MEDIUM_REPLY);
  CHECK(is_pattern(bytes, count, (unsigned)seed));
  ADD(mediums);
}
/* The reply's place is half of the segment further. */
static void long_request(gex_Token_t token, void *bytes, size_t count, gex_AM_Arg_t high, gex_AM_Arg_t low,
                         gex_AM_Arg_t seed) {
  void *target = (void *)(((uintptr_t)(uint32_t)high << 32) | (uint32_t)low);
  size_t most;
  check_token(token, 1, 1, LONG_REQUEST);
  CHECK(is_pattern(bytes, count, (unsigned)seed));
  most = gex_Token_MaxReplyLong(token, GEX_EVENT_NOW, 0, 3);
  CHECK(most >= 512);
  OK(gex_AM_ReplyLong(token, LONG_REPLY, bytes, count < most ? count : most, target, GEX_EVENT_NOW, 0, high, low, seed));
}
static void long_reply(gex_Token_t token, void *bytes, size_t count, gex_AM_Arg_t high, gex_AM_Arg_t low,
                       gex_AM_Arg_t seed) {
  check_token(token, 0, 1, LONG_REPLY);
  CHECK((uintptr_t)bytes == (((uintptr_t)(uint32_t)high << 32) | (uint32_t)low));
  CHECK(is_pattern(bytes, count, (unsigned)seed));
  ADD(longs);
}
static void all_request(gex_Token_t token, gex_AM_Arg_t a1, gex_AM_Arg_t a2, gex_AM_Arg_t a3, gex_AM_Arg_t a4,
                        gex_AM_Arg_t a5, gex_AM_Arg_t a6, gex_AM_Arg_t a7, gex_AM_Arg_t a8, gex_AM_Arg_t a9,
                        gex_AM_Arg_t a10, gex_AM_Arg_t a11, gex_AM_Arg_t a12, gex_AM_Arg_t a13, gex_AM_Arg_t a14,
                        gex_AM_Arg_t a15, gex_AM_Arg_t a16) {
  (void)token;
  CHECK(a1 == 1 && a2 == 2 && a3 == 3 && a4 == 4 && a5 == 5 && a6 == 6 && a7 == 7 && a8 == 8);
  CHECK(a9 == 9 && a10 == 10 && a11 == 11 && a12 == 12 && a13 == 13 && a14 == 14 && a15 == 15 && a16 == 16);
  ADD(alls);
}
static void one_way(gex_Token_t token) {
  (void)token;
  ADD(ones);
}
GASNETT_END_EXTERNC

#define ENTRY(index, function, kind, direction, nargs)                                                                 \
  { index, (gex_AM_Fn_t)function, GEX_FLAG_AM_##kind | GEX_FLAG_AM_##direction, nargs, &shorts, #function }
static gex_AM_Entry_t table[] = {
    ENTRY(SHORT_REQUEST, short_request, SHORT, REQUEST, 2),   ENTRY(SHORT_REPLY, short_reply, SHORT, REPLY, 2),
    ENTRY(MEDIUM_REQUEST, medium_request, MEDIUM, REQUEST, 1), ENTRY(MEDIUM_REPLY, medium_reply, MEDIUM, REPLY, 1),
    ENTRY(LONG_REQUEST, long_request, LONG, REQUEST, 3),      ENTRY(LONG_REPLY, long_reply, LONG, REPLY, 3),
    ENTRY(ALL_REQUEST, all_request, SHORT, REQUEST, 16),      ENTRY(ONE_WAY, one_way, SHORT, REQUEST, 0),
};

static void limits(void) {
  gex_Rank_t i;
  unsigned n;
  CHECK(gex_AM_MaxArgs() == 16);
  for (i = 0; i < size; i++) {
    for (n = 0; n <= 16; n++) {
      CHECK(gex_AM_MaxRequestMedium(tm, i, GEX_EVENT_NOW, 0, n) >= gex_AM_LUBRequestMedium());
      CHECK(gex_AM_MaxReplyMedium(tm, i, GEX_EVENT_NOW, 0, n) >= gex_AM_LUBReplyMedium());
      CHECK(gex_AM_MaxRequestLong(tm, i, GEX_EVENT_GROUP, 0, n) >= gex_AM_LUBRequestLong());
      CHECK(gex_AM_MaxReplyLong(tm, i, GEX_EVENT_NOW, 0, n) >= gex_AM_LUBReplyLong());
    }
  }
  CHECK(gex_AM_LUBRequestMedium() >= 512 && gex_AM_LUBReplyMedium() >= 512);
  CHECK(gex_AM_LUBRequestLong() >= 512 && gex_AM_LUBReplyLong() >= 512);
  CHECK(gex_AM_MaxRequestMedium(tm, GEX_RANK_INVALID, GEX_EVENT_NOW, GEX_FLAG_AM_PREPARE_LEAST_ALLOC, 3) >= 512);
  CHECK(gex_AM_MaxRequestMedium(tm, 0, NULL, GEX_FLAG_AM_PREPARE_LEAST_CLIENT, 0) >= 512);
}

/* Every rank sends to every rank, itself too. */
static void shorts_to_all(void) {
  gex_Rank_t i;
  int round;
  for (round = 0; round < ROUNDS; round++) {
    for (i = 0; i < size; i++) {
      OK(gex_AM_RequestShort2(tm, i, SHORT_REQUEST, 0, -1, 0x7FFFFFFF));
      OK(gex_AM_RequestShort(tm, i, ALL_REQUEST, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16));
    }
  }
  GASNET_BLOCKUNTIL(GOT(shorts) == ROUNDS * size && GOT(alls) == ROUNDS * size);
}

/* A message to oneself has run when the call returns. */
static void self(void) {
  const gasnett_atomic_val_t before = GOT(ones);
  OK(gex_AM_RequestShort0(tm, rank, ONE_WAY, 0));
  CHECK(GOT(ones) == before + 1);
}

static void mediums_to_all(void) {
  const size_t most = gex_AM_LUBRequestMedium() < gex_AM_LUBReplyMedium() ? gex_AM_LUBRequestMedium()
                                                                            : gex_AM_LUBReplyMedium();
  const size_t sizes[] = {0, 1, 7, 64, 511, 4096, most};
  const unsigned count = sizeof(sizes) / sizeof(sizes[0]);
  unsigned n, round;
  gex_Rank_t i;
  gex_Event_t event;
  unsigned sent = 0;
  for (round = 0; round < 10; round++) {
    for (n = 0; n < count && sizes[n] <= most; n++) {
      for (i = 0; i < size; i++) {
        const unsigned seed = round + n + i;
        fill(data, sizes[n], seed);
        switch (round % 3) {
        case 0:
          OK(gex_AM_RequestMedium1(tm, i, MEDIUM_REQUEST, data, sizes[n], GEX_EVENT_NOW, 0, (gex_AM_Arg_t)seed));
          break;
        case 1:
          event = GEX_EVENT_INVALID;
          OK(gex_AM_RequestMedium1(tm, i, MEDIUM_REQUEST, data, sizes[n], &event, 0, (gex_AM_Arg_t)seed));
          gex_Event_Wait(event);
          break;
        default:
          OK(gex_AM_RequestMedium1(tm, i, MEDIUM_REQUEST, data, sizes[n], GEX_EVENT_GROUP, 0, (gex_AM_Arg_t)seed));
          gex_NBI_Wait(GEX_EC_AM, 0);
        }
        /* The source may be written as soon as it is free. */
        memset(data, 0xEE, sizes[n]);
        sent++;
      }
    }
  }
  GASNET_BLOCKUNTIL(GOT(mediums) == sent);
}

static void longs_to_all(void) {
  const size_t sizes[] = {0, 1, 100, 4096, 65536, 262144};
  const unsigned count = sizeof(sizes) / sizeof(sizes[0]);
  unsigned n, sent = 0;
  gex_Rank_t i;
  for (n = 0; n < count && sizes[n] <= gex_AM_LUBRequestLong(); n++) {
    for (i = 0; i < size; i++) {
      /* Each source has a slot in the segment of each target: 512 KiB for requests, and for replies half way up. */
      const uintptr_t slot = (uintptr_t)rank * 524288, half = SEGMENT_BYTES / 2;
      unsigned char *target = (unsigned char *)segment_of(i) + slot;
      const uintptr_t back = (uintptr_t)segment_of(rank) + half + (uintptr_t)i * 524288;
      fill(data, sizes[n], n + i);
      OK(gex_AM_RequestLong(tm, i, LONG_REQUEST, data, sizes[n], target, GEX_EVENT_NOW, 0, (gex_AM_Arg_t)(back >> 32),
                            (gex_AM_Arg_t)back, (gex_AM_Arg_t)(n + i)));
      sent++;
      GASNET_BLOCKUNTIL(GOT(longs) == sent);
    }
  }
}

/* An immediate request is sent, or has no effect. */
static void immediate(void) {
  unsigned sent = 0, tries = 0;
  const gasnett_atomic_val_t before = GOT(ones);
  barrier();
  while (sent < 100 && tries++ < 1000000) {
    if (gex_AM_RequestShort0(tm, (rank + 1) % size, ONE_WAY, GEX_FLAG_IMMEDIATE) == 0) {
      sent++;
    } else {
      OK(gasnet_AMPoll());
    }
  }
  CHECK(sent == 100);
  GASNET_BLOCKUNTIL(GOT(ones) == before + 100);
  barrier();
}

/* Indices of 0 are assigned from the highest, in the order of the table. */
static void indices(void) {
  gex_AM_Entry_t free_table[] = {
      {0, (gex_AM_Fn_t)one_way, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, NULL},
      {255, (gex_AM_Fn_t)one_way, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, NULL},
      {0, (gex_AM_Fn_t)one_way, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, NULL},
  };
  const gasnett_atomic_val_t before = GOT(ones);
  OK(gex_EP_RegisterHandlers(ep, free_table, 3));
  CHECK(free_table[0].gex_index == 254 && free_table[1].gex_index == 255 && free_table[2].gex_index == 253);
  barrier();
  OK(gex_AM_RequestShort(tm, (rank + 1) % size, free_table[2].gex_index, 0));
  GASNET_BLOCKUNTIL(GOT(ones) == before + 1);
  barrier();
}

int main(int argc, char **argv) {
  start(&argc, &argv, table, sizeof(table) / sizeof(table[0]), SEGMENT_BYTES);
  data = (unsigned char *)malloc(1 << 20);
  limits();
  barrier();
  shorts_to_all();
  self();
  barrier();
  mediums_to_all();
  barrier();
  if (size <= 4) longs_to_all();
  immediate();
  indices();
  free(data);
  finish();
}
