/* Operations that start when others are complete, puts with a signal, and the status of events. */
#include "job.h"

#include <gasnet_ratomic.h>
#include <gasnet_vis.h>
#include <gasnet_weft.h>

#if !defined(GEXW_SUPPORTS_AFTER_NEXT) || !defined(GEXW_SUPPORTS_PUT_SIGNAL)
#error "an extension is not announced"
#endif

enum { BYTES = 4 << 20, LONG_BYTES = 200 << 10, H_WORD = 200, H_LONG, LINKS = 8 };

static char *mine, *theirs;
static char block[LONG_BYTES], back[LONG_BYTES];
static volatile int words, longs;
static gex_Rank_t right;

static void word_handler(gex_Token_t token, gex_AM_Arg_t number) {
  (void)token;
  CHECK(number == 77);
  words++;
}

static void long_handler(gex_Token_t token, void *data, size_t bytes) {
  (void)token;
  CHECK(bytes > 0 && ((char *)data)[bytes - 1] == 5);
  longs++;
}

static void fill(char value) { memset(block, value, sizeof block); }

/* A put of a size that no message holds, so that it is under way where there is a wire. */
static gex_Event_t long_put(void) { return gex_RMA_PutNB(tm, right, theirs, block, LONG_BYTES, GEX_EVENT_DEFER, 0); }

static void finish_all(gex_Event_t *events, size_t count) {
  size_t at;
  for (at = 0; at < count; at++) {
    const int status = gexw_Event_Status(events[at]);
    CHECK(status == GASNET_OK || status == GASNET_ERR_NOT_READY);
  }
  gex_Event_WaitAll(events, count, 0);
}

/* Each put of a chain overwrites the one before, in all sizes and with all kinds of local completion. */
static void check_chain(size_t bytes, int lc_kind) {
  gex_Event_t events[2 * LINKS], lc = GEX_EVENT_INVALID;
  int at, count = 0;
  for (at = 0; at < LINKS; at++) {
    char *source = block + (size_t)at * bytes;
    gex_Event_t *const lcs[] = {GEX_EVENT_DEFER, GEX_EVENT_NOW, &lc};
    memset(source, 'a' + at, bytes);
    if (at > 0) gexw_AfterNext(&events[count - 1], 1, 0);
    lc = GEX_EVENT_INVALID;
    events[count + 1] = gex_RMA_PutNB(tm, right, theirs, source, bytes, lcs[lc_kind], 0);
    events[count] = lc;
    if (lc_kind == 1) memset(source, 'z', bytes);
    count += 2;
  }
  finish_all(events, (size_t)count);
  OK(gex_RMA_GetBlocking(tm, back, right, theirs, bytes, 0));
  CHECK(back[0] == 'a' + LINKS - 1 && back[bytes - 1] == 'a' + LINKS - 1);
}

/* A get brings what a put sends on. */
static void check_relay(void) {
  gex_Event_t events[3];
  fill(3);
  events[0] = long_put();
  gexw_AfterNext(events, 1, 0);
  events[1] = gex_RMA_GetNB(tm, back, right, theirs, LONG_BYTES, 0);
  gexw_AfterNext(events, 2, 0);
  events[2] = gex_RMA_PutNB(tm, right, theirs + LONG_BYTES, back, LONG_BYTES, GEX_EVENT_DEFER, 0);
  finish_all(events, 3);
  memset(back, 0, sizeof back);
  OK(gex_RMA_GetBlocking(tm, back, right, theirs + LONG_BYTES, LONG_BYTES, 0));
  CHECK(memcmp(back, block, LONG_BYTES) == 0);
}

/* Every call that can follow, after the same put. */
static void check_kinds(void) {
  gex_Event_t put, events[6], lc = GEX_EVENT_INVALID;
  const int words_before = words, longs_before = longs;
  uint64_t old = 99, *number = (uint64_t *)(void *)(theirs + BYTES / 2);
  ptrdiff_t stride = 8;
  size_t count = 2;
  gex_AD_t ad;
  gex_AD_Create(&ad, tm, GEX_DT_U64, GEX_OP_FADD | GEX_OP_SET, 0);
  fill(5);
  OK(gex_RMA_PutBlockingVal(tm, right, number, 10, 8, 0));
  put = long_put();
  gexw_AfterNext(&put, 1, 0);
  events[0] = gex_AD_OpNB_U64(ad, &old, right, number, GEX_OP_FADD, 5, 0, 0);
  gexw_AfterNext(&put, 1, 0);
  gexw_AfterNext(&events[0], 1, 0);
  events[1] = gex_RMA_PutNBVal(tm, right, number + 1, 21, 8, 0);
  gexw_AfterNext(&events[1], 1, 0);
  OK(gex_RMA_PutNBIVal(tm, right, number + 2, 22, 8, 0));
  gexw_AfterNext(&put, 1, 0);
  OK(gex_RMA_GetNBI(tm, back, right, theirs, LONG_BYTES, 0));
  gexw_AfterNext(&put, 1, 0);
  OK(gex_AD_OpNBI_U64(ad, NULL, right, number + 3, GEX_OP_SET, 23, 0, 0));
  gexw_AfterNext(&put, 1, 0);
  OK(gex_AM_RequestShort1(tm, right, H_WORD, 0, 77));
  gexw_AfterNext(&put, 1, 0);
  OK(gex_AM_RequestLong0(tm, right, H_LONG, block, 64, theirs + BYTES / 4, &lc, 0));
  events[2] = lc;
  gexw_AfterNext(&events[1], 1, 0);
  OK(gex_RMA_PutNBI(tm, right, number + 4, block, 8, GEX_EVENT_NOW, 0));
  gex_NBI_Wait(GEX_EC_ALL, 0);
  finish_all(events, 3);
  finish_all(&put, 1);
  CHECK(old == 10 && memcmp(back, block, LONG_BYTES) == 0);
  CHECK(gex_RMA_GetBlockingVal(tm, right, number, 8, 0) == 15 && gex_RMA_GetBlockingVal(tm, right, number + 1, 8, 0) == 21);
  CHECK(gex_RMA_GetBlockingVal(tm, right, number + 2, 8, 0) == 22 && gex_RMA_GetBlockingVal(tm, right, number + 3, 8, 0) == 23);
  GASNET_BLOCKUNTIL(words == words_before + 1 && longs == longs_before + 1);
  /* Calls that wait themselves. */
  fill(6);
  put = long_put();
  gexw_AfterNext(&put, 1, 0);
  OK(gex_RMA_GetBlocking(tm, back, right, theirs, LONG_BYTES, 0));
  CHECK(memcmp(back, block, LONG_BYTES) == 0);
  gexw_AfterNext(&put, 1, 0);
  OK(gex_VIS_StridedPutBlocking(tm, right, theirs, &stride, block, &stride, 8, &count, 1, 0));
  gexw_AfterNext(&put, 1, 0);
  CHECK(gex_RMA_GetBlockingVal(tm, right, theirs, 1, 0) == 6);
  gex_Event_Wait(put);
  /* Nothing to wait for. */
  gexw_AfterNext(NULL, 0, 0);
  put = GEX_EVENT_INVALID;
  gexw_AfterNext(&put, 1, 0);
  OK(gex_RMA_PutBlocking(tm, right, theirs, block, 8, 0));
  CHECK(gexw_Event_Status(GEX_EVENT_INVALID) == GASNET_OK && gexw_Event_Wait(GEX_EVENT_INVALID) == GASNET_OK);
  put = long_put();
  CHECK(gexw_Event_Wait(put) == GASNET_OK);
  gex_AD_Destroy(ad);
}

/* Short puts to one rank leave at once, and a progress thread goes on with others: a rank that computes needs no call for
 * the rest of a chain. */
static void check_busy(size_t bytes) {
  volatile int64_t *here = (volatile int64_t *)(void *)(mine + BYTES - 128);
  int64_t *there = (int64_t *)(void *)(theirs + BYTES - 128), seen;
  gex_Event_t events[LINKS];
  int at;
  *here = 0, here[1] = 0;
  barrier();
  if (rank == 0) {
    for (at = 0; at < LINKS - 1; at++) {
      if (at > 0) gexw_AfterNext(&events[at - 1], 1, 0);
      events[at] = gex_RMA_PutNB(tm, right, theirs, block, bytes, GEX_EVENT_DEFER, 0);
    }
    gexw_AfterNext(&events[at - 1], 1, 0);
    events[at] = gex_RMA_PutNBVal(tm, right, there, LINKS, 8, 0);
    gasnett_nsleep(300000000);
    seen = (int64_t)(gasnett_ticks_to_ns(gasnett_ticks_now()) / 1000);
    finish_all(events, LINKS);
    OK(gex_RMA_PutBlocking(tm, right, there + 1, &seen, 8, 0));
  } else if (rank == 1) {
    GASNET_BLOCKUNTIL(*here == LINKS);
    seen = (int64_t)(gasnett_ticks_to_ns(gasnett_ticks_now()) / 1000);
    GASNET_BLOCKUNTIL(here[1] != 0);
    CHECK(seen < here[1]);
  }
  barrier();
}

/* An operation that waits has not started, and its event is valid. */
static void check_pending(void) {
  gex_Event_t put, next, last;
  fill(4);
  put = long_put();
  if (put == GEX_EVENT_INVALID) return;
  gexw_AfterNext(&put, 1, 0);
  next = gex_RMA_PutNB(tm, right, theirs + LONG_BYTES, block, LONG_BYTES, GEX_EVENT_DEFER, 0);
  gexw_AfterNext(&next, 1, 0);
  last = gex_RMA_PutNBVal(tm, right, theirs + 2 * LONG_BYTES, 1, 1, 0);
  CHECK(gexw_Event_Status(put) == GASNET_ERR_NOT_READY && gexw_Event_Status(next) == GASNET_ERR_NOT_READY);
  CHECK(gexw_Event_Wait(last) == GASNET_OK);
  CHECK(gexw_Event_Status(put) == GASNET_OK && gexw_Event_Status(next) == GASNET_OK);
  CHECK(gexw_Event_Wait(put) == GASNET_OK && gexw_Event_Wait(next) == GASNET_OK);
}

/* The flags decide whether a source is copied, and the bytes arrive either way. */
static void check_copies(void) {
  const gex_Flags_t flags[] = {GEX_FLAG_LC_COPY_YES, GEX_FLAG_LC_COPY_NO};
  const size_t sizes[] = {64, LONG_BYTES};
  int at;
  for (at = 0; at < 8; at++) {
    const gex_Flags_t flag = flags[at % 2];
    const size_t bytes = sizes[at / 2 % 2];
    gex_Event_t event = GEX_EVENT_INVALID, lc = GEX_EVENT_INVALID, before = GEX_EVENT_INVALID;
    fill((char)('A' + at));
    if (at >= 4) {
      before = long_put();
      gexw_AfterNext(&before, 1, 0);
    }
    event = gex_RMA_PutNB(tm, right, theirs + LONG_BYTES, block, bytes, &lc, flag);
    if (flag == GEX_FLAG_LC_COPY_YES) CHECK(lc == GEX_EVENT_INVALID);
    gex_Event_Wait(lc);
    if (at < 4) fill('z');
    gex_Event_Wait(event);
    gex_Event_Wait(before);
    OK(gex_RMA_GetBlocking(tm, back, right, theirs + LONG_BYTES, bytes, 0));
    CHECK(back[0] == 'A' + at && back[bytes - 1] == 'A' + at);
    fill('y');
    OK(gex_RMA_PutNBI(tm, right, theirs, block, bytes, GEX_EVENT_NOW, flag));
    fill('z');
    gex_NBI_Wait(GEX_EC_ALL, 0);
    OK(gex_RMA_GetBlocking(tm, back, right, theirs, bytes, 0));
    CHECK(back[0] == 'y' && back[bytes - 1] == 'y');
  }
}

/* Long requests do not wait for their payload, unless their source is to be free. */
static void check_long_requests(void) {
  const int before = longs;
  gex_Event_t put, lc = GEX_EVENT_INVALID;
  barrier();
  fill(5);
  OK(gasnet_AMRequestLongAsync0(right, H_LONG, block, LONG_BYTES, theirs));
  OK(gex_AM_RequestLong0(tm, right, H_LONG, block, LONG_BYTES, theirs + LONG_BYTES, &lc, 0));
  OK(gex_AM_RequestLong0(tm, right, H_LONG, block, LONG_BYTES, theirs + 2 * LONG_BYTES, GEX_EVENT_GROUP, 0));
  gex_Event_Wait(lc);
  gex_NBI_Wait(GEX_EC_AM, 0);
  put = gex_RMA_PutNB(tm, right, theirs + 3 * LONG_BYTES, block, LONG_BYTES, GEX_EVENT_DEFER, 0);
  gexw_AfterNext(&put, 1, 0);
  OK(gex_AM_RequestLong0(tm, right, H_LONG, block, LONG_BYTES, theirs + 4 * LONG_BYTES, &lc, 0));
  gexw_AfterNext(&put, 1, 0);
  OK(gex_AM_RequestLong0(tm, right, H_LONG, block, LONG_BYTES, theirs + 5 * LONG_BYTES, GEX_EVENT_NOW, 0));
  gex_Event_Wait(lc);
  GASNET_BLOCKUNTIL(longs == before + 5);
  gex_Event_Wait(put);
  barrier();
}

/* An access region, and the barrier of a team, are events as others. */
static void check_other_events(void) {
  gex_Event_t region, barrier_done, put;
  fill(7);
  gex_NBI_BeginAccessRegion(0);
  OK(gex_RMA_PutNBI(tm, right, theirs, block, LONG_BYTES, GEX_EVENT_DEFER, 0));
  OK(gex_RMA_PutNBI(tm, right, theirs + LONG_BYTES, block, LONG_BYTES, GEX_EVENT_DEFER, 0));
  region = gex_NBI_EndAccessRegion(0);
  gexw_AfterNext(&region, 1, 0);
  put = gex_RMA_PutNB(tm, right, theirs, block, 8, GEX_EVENT_NOW, 0);
  gex_Event_Wait(put);
  gex_Event_Wait(region);
  barrier();
  OK(gex_RMA_PutBlockingVal(tm, right, theirs + 64, 1, 8, 0));
  barrier_done = gex_Coll_BarrierNB(tm, 0);
  gexw_AfterNext(&barrier_done, 1, 0);
  put = gex_RMA_PutNBVal(tm, right, theirs + 64, 2, 8, 0);
  gex_Event_Wait(put);
  gex_Event_Wait(barrier_done);
  CHECK(gex_RMA_GetBlockingVal(tm, right, theirs + 64, 8, 0) == 2);
  barrier();
}

/* The signal is seen after the data, for all sizes and forms. */
static void check_signals(size_t bytes) {
  volatile uint64_t *here = (volatile uint64_t *)(void *)(mine + BYTES - 64);
  uint64_t *there = (uint64_t *)(void *)(theirs + BYTES - 64), round;
  barrier();
  *here = 0;
  barrier();
  for (round = 1; round <= 6; round++) {
    const gex_OP_t op = round % 2 ? GEX_OP_SET : GEX_OP_ADD;
    const uint64_t value = round % 2 ? round : 1;
    char *to = theirs + round % 2 * LONG_BYTES;
    const char *from = mine + round % 2 * LONG_BYTES;
    gex_Event_t event = GEX_EVENT_INVALID, lc = GEX_EVENT_INVALID;
    size_t at;
    memset(block, (int)round, bytes);
    if (round < 3) {
      event = gexw_RMA_PutSignalNB(tm, right, to, block, bytes, there, value, op, round == 1 ? GEX_EVENT_DEFER : &lc, 0);
    } else if (round < 5) {
      OK(gexw_RMA_PutSignalNBI(tm, right, to, block, bytes, there, value, op, round == 3 ? GEX_EVENT_NOW : GEX_EVENT_DEFER, 0));
    } else {
      OK(gexw_RMA_PutSignalBlocking(tm, right, to, block, bytes, there, value, op, 0));
    }
    GASNET_BLOCKUNTIL(__atomic_load_n(here, __ATOMIC_ACQUIRE) >= round);
    CHECK(*here == round);
    for (at = 0; at < bytes && from[at] == (char)round; at++) {
    }
    CHECK(at == bytes);
    gex_Event_Wait(lc);
    gex_Event_Wait(event);
    gex_NBI_Wait(GEX_EC_PUT, 0);
    barrier();
  }
}

/* A signal that follows another put. */
static void check_signal_after(void) {
  volatile uint64_t *here = (volatile uint64_t *)(void *)(mine + BYTES - 64);
  uint64_t *there = (uint64_t *)(void *)(theirs + BYTES - 64);
  gex_Event_t put, signal;
  barrier();
  *here = 0;
  barrier();
  fill(9);
  put = long_put();
  gexw_AfterNext(&put, 1, 0);
  signal = gexw_RMA_PutSignalNB(tm, right, theirs + LONG_BYTES, block, LONG_BYTES, there, 4, GEX_OP_SET, GEX_EVENT_DEFER, 0);
  gexw_AfterNext(&signal, 1, 0);
  OK(gexw_RMA_PutSignalBlocking(tm, right, theirs, block, 8, there, 1, GEX_OP_ADD, 0));
  GASNET_BLOCKUNTIL(__atomic_load_n(here, __ATOMIC_ACQUIRE) == 5);
  CHECK(mine[0] == 9 && mine[LONG_BYTES - 1] == 9 && mine[2 * LONG_BYTES - 1] == 9);
  gex_Event_Wait(signal);
  gex_Event_Wait(put);
}

int main(int argc, char **argv) {
  gex_AM_Entry_t table[] = {
      {H_WORD, (gex_AM_Fn_t)word_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, NULL, "word"},
      {H_LONG, (gex_AM_Fn_t)long_handler, GEX_FLAG_AM_LONG | GEX_FLAG_AM_REQUEST, 0, NULL, "long"}};
  const size_t sizes[] = {8, 1000, LONG_BYTES / LINKS};
  int at, lc;
  start(&argc, &argv, table, 2, BYTES);
  right = (rank + 1) % size;
  mine = (char *)gex_Segment_QueryAddr(segment);
  theirs = (char *)segment_of(right);
  barrier();
  for (at = 0; at < 3; at++) {
    for (lc = 0; lc < 3; lc++) check_chain(sizes[at], lc);
  }
  check_relay();
  check_pending();
  barrier();
  if (size > 1) check_busy(8);
  if (size > 1 && gex_System_QueryHiddenAMConcurrencyLevel() > 0) check_busy(LONG_BYTES);
  check_kinds();
  check_other_events();
  check_copies();
  check_long_requests();
  check_signals(0);
  check_signals(8);
  check_signals(LONG_BYTES);
  check_signal_after();
  finish();
}
