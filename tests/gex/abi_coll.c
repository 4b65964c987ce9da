/* Collectives: broadcasts and reductions of teams, of types of the interface and of the client. C99 and C++11. */
#include "job.h"

#include <gasnet_coll.h>

#define SEGMENT_BYTES ((uintptr_t)1 << 20)
#define MOST 20000

static int64_t in[MOST], out[MOST];

static void broadcasts(gex_TM_t team) {
  const size_t counts[] = {0, 1, 3, 1000, MOST};
  const gex_Rank_t own = gex_TM_QueryRank(team), members = gex_TM_QuerySize(team);
  gex_Rank_t root;
  unsigned n;
  size_t i;
  for (root = 0; root < members; root++) {
    for (n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
      for (i = 0; i < counts[n]; i++) {
        in[i] = own == root ? (int64_t)(i * 3 + root) : -1;
        out[i] = -2;
      }
      gex_Event_Wait(gex_Coll_BroadcastNB(team, root, out, in, counts[n] * sizeof(in[0]), 0));
      for (i = 0; i < counts[n]; i++) {
        if (out[i] != (int64_t)(i * 3 + root)) break;
      }
      CHECK(i == counts[n]);
      /* In place. */
      if (own != root) memset(out, 0, counts[n] * sizeof(out[0]));
      gex_Event_Wait(gex_Coll_BroadcastNB(team, root, out, out, counts[n] * sizeof(in[0]), 0));
      CHECK(counts[n] == 0 || out[counts[n] - 1] == (int64_t)((counts[n] - 1) * 3 + root));
    }
  }
}

static void reductions(gex_TM_t team) {
  const size_t counts[] = {1, 7, 1000, MOST};
  const gex_Rank_t own = gex_TM_QueryRank(team), members = gex_TM_QuerySize(team);
  const int64_t ranks_sum = (int64_t)members * (members - 1) / 2;
  gex_Rank_t root;
  unsigned n;
  size_t i;
  for (n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
    const size_t count = counts[n];
    for (i = 0; i < count; i++) in[i] = (int64_t)i + own;
    gex_Event_Wait(gex_Coll_ReduceToAllNB(team, out, in, GEX_DT_I64, 8, count, GEX_OP_ADD, NULL, NULL, 0));
    for (i = 0; i < count; i++) {
      if (out[i] != (int64_t)i * members + ranks_sum) break;
    }
    CHECK(i == count);
    gex_Event_Wait(gex_Coll_ReduceToAllNB(team, out, in, GEX_DT_I64, 8, count, GEX_OP_MAX, NULL, NULL, 0));
    CHECK(out[0] == members - 1 && out[count - 1] == (int64_t)count - 1 + members - 1);
    for (root = 0; root < members; root++) {
      memset(out, 0xFF, count * 8);
      gex_Event_Wait(gex_Coll_ReduceToOneNB(team, root, own == root ? out : NULL, in, GEX_DT_I64, 8, count, GEX_OP_MIN,
                                            NULL, NULL, 0));
      if (own == root) CHECK(out[0] == 0 && out[count - 1] == (int64_t)count - 1);
    }
    /* In place. */
    gex_Event_Wait(gex_Coll_ReduceToAllNB(team, in, in, GEX_DT_I64, 8, count, GEX_OP_ADD, NULL, NULL, 0));
    CHECK(in[count - 1] == ((int64_t)count - 1) * members + ranks_sum);
  }
}

static void types(void) {
  const int32_t i32 = (int32_t)rank - 1;
  const uint32_t u32 = 1u << rank;
  const uint64_t u64 = ~((uint64_t)1 << rank);
  const float flt = 0.5f;
  const double dbl = (double)rank + 1;
  int32_t i32_out;
  uint32_t u32_out;
  uint64_t u64_out;
  float flt_out;
  double dbl_out, factorial = 1;
  gex_Rank_t i;
  for (i = 1; i <= size; i++) factorial *= i;
  gex_Event_Wait(gex_Coll_ReduceToAllNB(tm, &i32_out, &i32, GEX_DT_I32, 4, 1, GEX_OP_MIN, NULL, NULL, 0));
  CHECK(i32_out == -1);
  gex_Event_Wait(gex_Coll_ReduceToAllNB(tm, &u32_out, &u32, GEX_DT_U32, 4, 1, GEX_OP_OR, NULL, NULL, 0));
  CHECK(u32_out == (1u << size) - 1);
  gex_Event_Wait(gex_Coll_ReduceToAllNB(tm, &u32_out, &u32, GEX_DT_U32, 4, 1, GEX_OP_XOR, NULL, NULL, 0));
  CHECK(u32_out == (1u << size) - 1);
  gex_Event_Wait(gex_Coll_ReduceToAllNB(tm, &u64_out, &u64, GEX_DT_U64, 8, 1, GEX_OP_AND, NULL, NULL, 0));
  CHECK(u64_out == ~(((uint64_t)1 << size) - 1));
  gex_Event_Wait(gex_Coll_ReduceToAllNB(tm, &flt_out, &flt, GEX_DT_FLT, 4, 1, GEX_OP_ADD, NULL, NULL, 0));
  CHECK(flt_out == 0.5f * (float)size);
  gex_Event_Wait(gex_Coll_ReduceToAllNB(tm, &dbl_out, &dbl, GEX_DT_DBL, 8, 1, GEX_OP_MULT, NULL, NULL, 0));
  CHECK(dbl_out == factorial);
}

/* Elements of 24 bytes: the smallest value with its rank, and a count. */
struct best {
  int64_t value;
  int64_t owner;
  int64_t count;
};
static int calls;
GASNETT_BEGIN_EXTERNC
static void take_best(const void *arg1, void *arg2_and_out, size_t count, const void *cdata) {
  const struct best *one = (const struct best *)arg1;
  struct best *two = (struct best *)arg2_and_out;
  size_t i;
  calls++;
  CHECK(cdata == &calls);
  for (i = 0; i < count; i++) {
    if (one[i].value < two[i].value || (one[i].value == two[i].value && one[i].owner < two[i].owner)) {
      two[i].value = one[i].value;
      two[i].owner = one[i].owner;
    }
    two[i].count += one[i].count;
  }
}
GASNETT_END_EXTERNC

static void user_operations(void) {
  struct best mine[100], all[100];
  size_t i;
  for (i = 0; i < 100; i++) {
    mine[i].value = (int64_t)((rank + i) % size);
    mine[i].owner = rank;
    mine[i].count = 1;
  }
  gex_Event_Wait(
      gex_Coll_ReduceToAllNB(tm, all, mine, GEX_DT_USER, sizeof(mine[0]), 100, GEX_OP_USER, take_best, &calls, 0));
  for (i = 0; i < 100; i++) {
    CHECK(all[i].value == 0 && all[i].count == (int64_t)size && (all[i].owner + (int64_t)i) % (int64_t)size == 0);
  }
}

/* Several at once, on one team and on two. */
static void overlapping(gex_TM_t half) {
  gex_Event_t events[4];
  int32_t a = (int32_t)rank, b = 1, a_out = -1, b_out = -1, c = (int32_t)rank + 50, d = 0;
  events[0] = gex_Coll_ReduceToAllNB(tm, &a_out, &a, GEX_DT_I32, 4, 1, GEX_OP_MAX, NULL, NULL, 0);
  events[1] = gex_Coll_BarrierNB(tm, 0);
  events[2] = gex_Coll_ReduceToAllNB(half, &b_out, &b, GEX_DT_I32, 4, 1, GEX_OP_ADD, NULL, NULL, 0);
  events[3] = gex_Coll_BroadcastNB(tm, size - 1, &d, &c, 4, 0);
  gex_Event_WaitAll(events, 4, 0);
  CHECK(a_out == (int32_t)size - 1 && b_out == (int32_t)gex_TM_QuerySize(half) && d == (int32_t)size - 1 + 50);
}

int main(int argc, char **argv) {
  gex_TM_t half = GEX_TM_INVALID;
  int round;
  start(&argc, &argv, NULL, 0, SEGMENT_BYTES);
  (void)gex_TM_Split(&half, tm, (int)(rank & 1), (int)rank, NULL, 0, GEX_FLAG_TM_NO_SCRATCH);
  broadcasts(tm);
  broadcasts(half);
  reductions(tm);
  reductions(half);
  for (round = 0; round < 50; round++) {
    types();
    user_operations();
    overlapping(half);
  }
  finish();
}
