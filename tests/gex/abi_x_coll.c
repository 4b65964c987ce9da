/* Collectives beyond the interface: blocks of one and of different lengths, scans, and operations that do not commute.
 * C99 and C++11. */
#include "job.h"

#include <gasnet_weft.h>

#define SEGMENT_BYTES ((uintptr_t)1 << 20)
#define MOST_BYTES ((size_t)300000)
#define MOST_RANKS 16

static unsigned char *in, *out;

static unsigned char byte_of(size_t from, size_t to, size_t i) { return (unsigned char)(from * 31 + to * 7 + i * 13 + i / 251); }

static void fill(size_t bytes) {
  size_t i;
  for (i = 0; i < bytes; i++) out[i] = 0xEE;
}

/* Whether a block is the one of member `from` for member `to`. */
static int is_block(const unsigned char *at, size_t from, size_t to, size_t bytes) {
  size_t i;
  for (i = 0; i < bytes && at[i] == byte_of(from, to, i); i++) {}
  return i == bytes;
}

static void give(unsigned char *at, size_t from, size_t to, size_t bytes) {
  size_t i;
  for (i = 0; i < bytes; i++) at[i] = byte_of(from, to, i);
}

static void moves(gex_TM_t team, size_t bytes) {
  const gex_Rank_t me = gex_TM_QueryRank(team), members = gex_TM_QuerySize(team);
  gex_Rank_t root, m;
  for (m = 0; m < members; m++) give(in + m * bytes, me, m, bytes);
  for (root = 0; root < members; root++) {
    fill(bytes * members + 1);
    gex_Event_Wait(gexw_Coll_ScatterNB(team, root, out, in, bytes, 0));
    CHECK(is_block(out, root, me, bytes) && out[bytes] == 0xEE);
    fill(bytes * members + 1);
    gex_Event_Wait(gexw_Coll_GatherNB(team, root, me == root ? out : NULL, in, bytes, 0));
    for (m = 0; me == root && m < members; m++) CHECK(is_block(out + m * bytes, m, 0, bytes));
    CHECK(out[me == root ? bytes * members : 0] == 0xEE || bytes == 0);
  }
  fill(bytes * members + 1);
  gex_Event_Wait(gexw_Coll_GatherAllNB(team, out, in, bytes, 0));
  for (m = 0; m < members; m++) CHECK(is_block(out + m * bytes, m, 0, bytes));
  CHECK(out[bytes * members] == 0xEE);
  fill(bytes * members + 1);
  gex_Event_Wait(gexw_Coll_ExchangeNB(team, out, in, bytes, 0));
  for (m = 0; m < members; m++) CHECK(is_block(out + m * bytes, m, me, bytes));
  CHECK(out[bytes * members] == 0xEE);
}

/* The length of the block of member `from` for member `to`. */
static size_t length(size_t from, size_t to, size_t unit) { return (from * 3 + to * 5) % 4 * unit; }

static void uneven_moves(gex_TM_t team, size_t unit) {
  const gex_Rank_t me = gex_TM_QueryRank(team), members = gex_TM_QuerySize(team);
  size_t given[MOST_RANKS], given_at[MOST_RANKS], taken[MOST_RANKS], taken_at[MOST_RANKS], at, to_at;
  gex_Rank_t root, m;
  /* From each member to each, with gaps, and the results in reverse order. */
  for (m = 0, at = 0, to_at = 0; m < members; m++) {
    given[m] = length(me, m, unit);
    given_at[m] = at + 3;
    at = given_at[m] + given[m];
    give(in + given_at[m], me, m, given[m]);
  }
  for (m = members; m-- > 0;) {
    taken[m] = length(m, me, unit);
    taken_at[m] = to_at;
    to_at += taken[m] + 1;
  }
  fill(to_at);
  gex_Event_Wait(gexw_Coll_ExchangevNB(team, out, taken, taken_at, in, given, given_at, 0));
  for (m = 0; m < members; m++) CHECK(is_block(out + taken_at[m], m, me, taken[m]) && out[taken_at[m] + taken[m]] == 0xEE);
  for (root = 0; root < members; root++) {
    const size_t own = length(root, me, unit), mine = length(me, root, unit);
    fill(own + 1);
    if (me == root) {
      gex_Event_Wait(gexw_Coll_ScattervNB(team, root, out, own, in, given, given_at, 0));
    } else {
      gex_Event_Wait(gexw_Coll_ScattervNB(team, root, out, own, NULL, NULL, NULL, 0));
    }
    CHECK(is_block(out, root, me, own) && out[own] == 0xEE);
    fill(to_at);
    if (me == root) {
      gex_Event_Wait(gexw_Coll_GathervNB(team, root, out, taken, taken_at, in + given_at[root], mine, 0));
      for (m = 0; m < members; m++) CHECK(is_block(out + taken_at[m], m, root, taken[m]));
    } else {
      gex_Event_Wait(gexw_Coll_GathervNB(team, root, NULL, NULL, NULL, in + given_at[root], mine, 0));
    }
  }
  /* Each member's block for member 0, to all. */
  for (m = 0, to_at = 0; m < members; m++) {
    taken[m] = length(m, 0, unit);
    taken_at[m] = to_at;
    to_at += taken[m];
  }
  fill(to_at + 1);
  gex_Event_Wait(gexw_Coll_GatherAllvNB(team, out, taken, taken_at, in + given_at[0], length(me, 0, unit), 0));
  for (m = 0; m < members; m++) CHECK(is_block(out + taken_at[m], m, 0, taken[m]));
  CHECK(out[to_at] == 0xEE);
}

static void sums(gex_TM_t team, size_t count) {
  const gex_Rank_t me = gex_TM_QueryRank(team), members = gex_TM_QuerySize(team);
  int64_t *from = (int64_t *)in, *into = (int64_t *)out;
  size_t i;
  int64_t below = (int64_t)me * (me - 1) / 2;
  if (me == 0) below = 0;
  for (i = 0; i < count; i++) from[i] = (int64_t)i + me;
  gex_Event_Wait(gexw_Coll_ScanNB(team, into, from, GEX_DT_I64, 8, count, GEX_OP_ADD, NULL, NULL, 0));
  for (i = 0; i < count && into[i] == (int64_t)i * (me + 1) + below + me; i++) {}
  CHECK(i == count);
  into[0] = -5;
  gex_Event_Wait(gexw_Coll_ExScanNB(team, into, from, GEX_DT_I64, 8, count, GEX_OP_ADD, NULL, NULL, 0));
  for (i = 0; i < count && (me == 0 || into[i] == (int64_t)i * me + below); i++) {}
  CHECK(i == count && (me > 0 || into[0] == -5));
  /* In place. */
  gex_Event_Wait(gexw_Coll_ScanNB(team, from, from, GEX_DT_I64, 8, count, GEX_OP_MAX, NULL, NULL, 0));
  CHECK(from[count - 1] == (int64_t)(count - 1) + me);
  for (i = 0; i < count * members; i++) from[i] = (int64_t)i * 2 + me;
  gex_Event_Wait(gexw_Coll_ReduceScatterNB(team, into, from, GEX_DT_I64, 8, count, GEX_OP_ADD, NULL, NULL, 0));
  for (i = 0; i < count; i++) {
    if (into[i] != (int64_t)((me * count + i) * 2) * members + (int64_t)members * (members - 1) / 2) break;
  }
  CHECK(i == count);
}

/* Products of matrices: they associate, and do not commute. */
struct matrix {
  uint64_t a, b, c, d;
};
static int calls;

static struct matrix product(struct matrix x, struct matrix y) {
  struct matrix z;
  z.a = x.a * y.a + x.b * y.c;
  z.b = x.a * y.b + x.b * y.d;
  z.c = x.c * y.a + x.d * y.c;
  z.d = x.c * y.b + x.d * y.d;
  return z;
}

GASNETT_BEGIN_EXTERNC
static void multiply(const void *left, void *right_and_out, size_t count, const void *cdata) {
  const struct matrix *x = (const struct matrix *)left;
  struct matrix *y = (struct matrix *)right_and_out;
  size_t i;
  CHECK(cdata == &calls && count > 0);
  calls++;
  for (i = 0; i < count; i++) y[i] = product(x[i], y[i]);
}
GASNETT_END_EXTERNC

static struct matrix matrix_of(gex_Rank_t of, size_t i) {
  struct matrix m;
  m.a = of + 2;
  m.b = i + 1;
  m.c = of * 5 + 1;
  m.d = i * 3 + of;
  return m;
}

/* The product of the matrices of members `first` to `end` - 1. */
static struct matrix sequential(gex_Rank_t first, gex_Rank_t end, size_t i) {
  struct matrix all = matrix_of(first, i);
  while (++first < end) all = product(all, matrix_of(first, i));
  return all;
}

static int is_product(const struct matrix *at, gex_Rank_t end, size_t count, size_t offset) {
  size_t i;
  for (i = 0; i < count; i++) {
    const struct matrix wanted = sequential(0, end, i + offset);
    if (memcmp(&wanted, &at[i], sizeof(wanted))) return 0;
  }
  return 1;
}

static void products(gex_TM_t team, size_t count) {
  const gex_Rank_t me = gex_TM_QueryRank(team), members = gex_TM_QuerySize(team);
  struct matrix *from = (struct matrix *)in, *into = (struct matrix *)out;
  const size_t bytes = sizeof(struct matrix);
  gex_Rank_t root;
  size_t i;
  for (i = 0; i < count * members; i++) from[i] = matrix_of(me, i);
#define NC GEX_DT_USER, bytes, count, GEX_OP_USER_NC, multiply, &calls, 0
  gex_Event_Wait(gex_Coll_ReduceToAllNB(team, into, from, NC));
  CHECK(is_product(into, members, count, 0));
  for (root = 0; root < members; root++) {
    memset(into, 0, count * bytes);
    gex_Event_Wait(gex_Coll_ReduceToOneNB(team, root, me == root ? into : NULL, from, NC));
    CHECK(me != root || is_product(into, members, count, 0));
  }
  gex_Event_Wait(gexw_Coll_ReduceScatterNB(team, into, from, NC));
  CHECK(is_product(into, members, count, me * count));
  gex_Event_Wait(gexw_Coll_ScanNB(team, into, from, NC));
  CHECK(is_product(into, me + 1, count, 0));
  gex_Event_Wait(gexw_Coll_ExScanNB(team, into, from, NC));
  CHECK(me == 0 || is_product(into, me, count, 0));
#undef NC
}

/* Elements longer than any buffer of the library: the sum of each byte. */
static size_t element_bytes;
GASNETT_BEGIN_EXTERNC
static void add_bytes(const void *left, void *right_and_out, size_t count, const void *cdata) {
  const unsigned char *x = (const unsigned char *)left;
  unsigned char *y = (unsigned char *)right_and_out;
  size_t i;
  CHECK(cdata == NULL);
  for (i = 0; i < count * element_bytes; i++) y[i] = (unsigned char)(x[i] + y[i]);
}
GASNETT_END_EXTERNC

static void long_elements(gex_TM_t team) {
  const gex_Rank_t members = gex_TM_QuerySize(team);
  size_t i;
  element_bytes = 100003;
  for (i = 0; i < element_bytes; i++) in[i] = (unsigned char)(i + 1);
  gex_Event_Wait(gex_Coll_ReduceToAllNB(team, out, in, GEX_DT_USER, element_bytes, 1, GEX_OP_USER, add_bytes, NULL, 0));
  for (i = 0; i < element_bytes && out[i] == (unsigned char)((i + 1) * members); i++) {}
  CHECK(i == element_bytes);
}

/* Many at once, on two teams, completed in another order. */
static void overlapping(gex_TM_t half) {
  enum { MANY = 20 };
  static int64_t from[MANY], into[MANY][MOST_RANKS], sum[MANY];
  gex_Event_t events[2 * MANY];
  const gex_Rank_t members = gex_TM_QuerySize(half), me = gex_TM_QueryRank(half);
  int i;
  gex_Rank_t m;
  for (i = 0; i < MANY; i++) {
    from[i] = (int64_t)rank * 100 + i;
    events[2 * i] = gexw_Coll_GatherAllNB(tm, into[i], &from[i], 8, 0);
    events[2 * i + 1] = gexw_Coll_ScanNB(half, &sum[i], &from[i], GEX_DT_I64, 8, 1, GEX_OP_MAX, NULL, NULL, 0);
  }
  for (i = MANY; i-- > 0;) gex_Event_Wait(events[i * 2]);
  for (i = 0; i < MANY; i++) gex_Event_Wait(events[i * 2 + 1]);
  for (i = 0; i < MANY; i++) {
    for (m = 0; m < size; m++) CHECK(into[i][m] == (int64_t)m * 100 + i);
    CHECK(sum[i] == from[i] && me < members);
  }
}

/* A source may be changed as soon as its leaf is complete. */
static void sources(gex_TM_t team, size_t bytes) {
  const gex_Rank_t me = gex_TM_QueryRank(team), members = gex_TM_QuerySize(team);
  gex_Event_t root, leaf, again;
  gex_Rank_t m;
  int what;
  for (what = 0; what < 4; what++) {
    size_t i;
    for (m = 0; m < members; m++) give(in + m * bytes, me, m, bytes);
    fill(bytes * members);
    if (what == 0) root = gexw_Coll_GatherAllNB(team, out, in, bytes, 0);
    else if (what == 1) root = gexw_Coll_ExchangeNB(team, out, in, bytes, 0);
    else if (what == 2) root = gex_Coll_BroadcastNB(team, 0, out, in, bytes, 0);
    else root = gex_Coll_ReduceToAllNB(team, out, in, GEX_DT_U32, 4, bytes / 4, GEX_OP_OR, NULL, NULL, 0);
    leaf = gex_Event_QueryLeaf(root, GEX_EC_LC);
    again = gex_Event_QueryLeaf(root, GEX_EC_LC);
    CHECK(leaf == again || again == GEX_EVENT_INVALID);
    (void)gex_Event_Test(leaf);
    gex_Event_Wait(leaf);
    if (what != 2 || me == 0) memset(in, 0x77, bytes * members);
    gex_Event_Wait(root);
    for (m = 0; what < 2 && m < members; m++) CHECK(is_block(out + m * bytes, m, what ? me : 0, bytes));
    if (what == 2) CHECK(is_block(out, 0, 0, bytes));
    for (i = 0; what == 3 && i < bytes; i++) {
      unsigned char all = 0;
      for (m = 0; m < members; m++) all |= byte_of(m, 0, i);
      if (out[i] != all) break;
    }
    CHECK(what != 3 || i == bytes);
  }
}

int main(int argc, char **argv) {
  gex_TM_t half = GEX_TM_INVALID;
  start(&argc, &argv, NULL, 0, SEGMENT_BYTES);
  in = (unsigned char *)calloc(MOST_RANKS * MOST_BYTES / 8, 1);
  out = (unsigned char *)calloc(MOST_RANKS * MOST_BYTES / 8, 1);
  CHECK(size <= MOST_RANKS);
  (void)gex_TM_Split(&half, tm, (int)(rank & 1), (int)rank, NULL, 0, GEX_FLAG_TM_NO_SCRATCH);
  moves(tm, 0);
  moves(tm, 1);
  moves(half, 8);
  moves(tm, 1000);
  moves(tm, 33333);
  uneven_moves(tm, 1);
  uneven_moves(half, 700);
  uneven_moves(tm, 12000);
  sums(tm, 1);
  sums(half, 100);
  sums(tm, 3000);
  products(tm, 1);
  products(half, 3);
  products(tm, 500);
  long_elements(tm);
  sources(tm, 8);
  sources(half, 4000);
  sources(tm, 40000);
  overlapping(half);
  gex_TM_Destroy(half, NULL, 0);
  free(in);
  free(out);
  finish();
}
