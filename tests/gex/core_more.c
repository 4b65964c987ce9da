/* Collectives, teams, atomics and accesses to several pieces, against results that are computed here. */
#include "core.h"

#include "gasnet_coll.h"
#include "gasnet_ratomic.h"
#include "gasnet_vis.h"

#define BYTES (1 << 20)

/* A product of 2 by 2 matrices, which does not commute. */
static void multiply(const void *left, void *right, size_t count, const void *cdata) {
  const uint32_t *a = left;
  uint32_t *b = right, c[4];
  CHECK(cdata == (const void *)&world);
  for (; count > 0; count--, a += 4, b += 4) {
    c[0] = a[0] * b[0] + a[1] * b[2];
    c[1] = a[0] * b[1] + a[1] * b[3];
    c[2] = a[2] * b[0] + a[3] * b[2];
    c[3] = a[2] * b[1] + a[3] * b[3];
    memcpy(b, c, sizeof(c));
  }
}

static void collectives(gex_TM_t tm) {
  gex_Rank_t own = gex_TM_QueryRank(tm), size = gex_TM_QuerySize(tm), root, rank;
  size_t counts[] = {0, 1, 3, 2500}, each, at;
  for (root = 0; root < size; root++) {
    for (each = 0; each < 4; each++) {
      size_t n = counts[each];
      uint32_t *data = malloc(16 * n + 16), *sum = malloc(16 * n + 16), *product = malloc(16 * n + 16), expected[4];
      double *real = malloc(8 * n + 8);
      gex_Event_t events[4];
      for (at = 0; at < 4 * n; at++) data[at] = product[at] = own + (uint32_t)at % 7 + 1;
      for (at = 0; at < n; at++) real[at] = own * 0.5 + (double)at;
      memset(sum, 0, 16 * n + 16);
      /* Several are under way at once. */
      events[0] = gex_Coll_ReduceToOneNB(tm, root, sum, data, GEX_DT_U32, 4, 4 * n, GEX_OP_ADD, NULL, NULL, 0);
      events[1] = gex_Coll_ReduceToAllNB(tm, product, product, GEX_DT_USER, 16, n, GEX_OP_USER_NC, multiply, &world, 0);
      events[2] = gex_Coll_BarrierNB(tm, 0);
      events[3] = gex_Coll_ReduceToAllNB(tm, real, real, GEX_DT_DBL, 8, n, GEX_OP_MAX, NULL, NULL, 0);
      gex_Event_WaitAll(events, 4, 0);
      for (at = 0; at < 4 * n; at++) {
        uint32_t all = size * (size - 1) / 2 + size * ((uint32_t)at % 7 + 1);
        CHECK(sum[at] == (own == root ? all : 0));
      }
      for (at = 0; at < n; at++) {
        CHECK(real[at] == (size - 1) * 0.5 + (double)at);
        for (rank = size; rank-- > 0;) {
          uint32_t one[4], part;
          for (part = 0; part < 4; part++) one[part] = rank + (uint32_t)(4 * at + part) % 7 + 1;
          if (rank == size - 1) memcpy(expected, one, 16);
          else multiply(one, expected, 1, &world);
        }
        CHECK(memcmp(expected, product + 4 * at, 16) == 0);
      }
      gex_Event_Wait(gex_Coll_BroadcastNB(tm, root, sum, data, 16 * n, 0));
      for (at = 0; at < 4 * n; at++) CHECK(sum[at] == root + (uint32_t)at % 7 + 1);
      free(data);
      free(sum);
      free(product);
      free(real);
    }
  }
}

static void teams(void) {
  gex_TM_t half = GEX_TM_INVALID, again = GEX_TM_INVALID;
  int turn;
  CHECK(gex_TM_Split(&half, world, (int)(me % 2), -(int)me, NULL, 0, 0) == 0);
  CHECK(gex_TM_QuerySize(half) == (ranks + 1 - me % 2) / 2);
  /* Keys are in falling order. */
  CHECK(gex_TM_TranslateRankToJobrank(half, gex_TM_QuerySize(half) - 1) == me % 2);
  CHECK(gex_TM_TranslateJobrankToRank(half, me) == gex_TM_QueryRank(half));
  collectives(half);
  for (turn = 0; turn < 100; turn++) gex_Coll_BarrierBlocking(half, 0);
  CHECK(gex_TM_Split(me == 0 ? NULL : &again, world, 3, (int)me, NULL, 0, 0) == 0);
  if (me > 0) CHECK(gex_TM_QuerySize(again) == ranks - 1 && gex_TM_QueryRank(again) == me - 1);
  if (me > 0) CHECK(gex_TM_Destroy(again, NULL, 0) == 0);
  CHECK(gex_TM_Destroy(half, NULL, 0) == 0);
}

static void atomics(void) {
  uint64_t *words = (uint64_t *)segment_of(0), old = 0;
  double real = 0;
  gex_AD_t ad, reals;
  int turn;
  if (me == 0) memset(words, 0, 64);
  gex_AD_Create(&ad, world, GEX_DT_U64, GEX_OP_FADD | GEX_OP_GET | GEX_OP_FCAS | GEX_OP_MAX | GEX_OP_SWAP, 0);
  gex_AD_Create(&reals, world, GEX_DT_DBL, GEX_OP_ADD | GEX_OP_GET, 0);
  CHECK(gex_AD_QueryDT(ad) == GEX_DT_U64 && gex_AD_QueryTM(ad) == world);
  for (turn = 0; turn < 10000; turn++) {
    uint64_t expected;
    gex_Event_Wait(gex_AD_OpNB_U64(ad, &old, 0, words, GEX_OP_FADD, 3, 0, 0));
    CHECK(old % 3 == 0);
    CHECK(gex_AD_OpNBI_U64(ad, NULL, 0, words + 1, GEX_OP_MAX, me * 10000u + (unsigned)turn, 0, 0) == 0);
    do {
      gex_Event_Wait(gex_AD_OpNB_U64(ad, &expected, 0, words + 2, GEX_OP_GET, 0, 0, 0));
      gex_Event_Wait(gex_AD_OpNB_U64(ad, &old, 0, words + 2, GEX_OP_FCAS, expected, expected + 5, 0));
    } while (old != expected);
    gex_Event_Wait(gex_AD_OpNB_DBL(reals, NULL, 0, words + 3, GEX_OP_ADD, 0.25, 0, 0));
  }
  gex_NBI_Wait(GEX_EC_RMW, 0);
  barrier();
  if (me == 0) {
    gex_Event_Wait(gex_AD_OpNB_DBL(reals, &real, 0, words + 3, GEX_OP_GET, 0, 0, 0));
    CHECK(words[0] == 30000u * ranks && words[1] == ranks * 10000u - 1 && words[2] == 50000u * ranks);
    CHECK(real == 2500.0 * ranks);
  }
  gex_AD_Destroy(reals);
  gex_AD_Destroy(ad);
}

static void pieces(void) {
  gex_Rank_t peer = (me + 1) % ranks;
  char *base = segment_of(peer) + 4096;
  unsigned char mine[6][10], back[10][6], flat[60];
  ptrdiff_t rows[2] = {1, 10}, columns[2] = {6, 1}, reversed[2] = {-1, -10};
  size_t counts[2] = {10, 6};
  gex_Memvec_t near_list[2], far_list[3];
  void *near_blocks[3], *far_blocks[2];
  size_t at;
  for (at = 0; at < 60; at++) mine[at / 10][at % 10] = (unsigned char)(at + me);
  /* A transposition there and a copy back. */
  CHECK(gex_VIS_StridedPutBlocking(world, peer, base, columns, mine, rows, 1, counts, 2, 0) == 0);
  gex_Event_Wait(gex_RMA_GetNB(world, back, peer, base, 60, 0));
  for (at = 0; at < 60; at++) CHECK(back[at % 10][at / 10] == mine[at / 10][at % 10]);
  /* A reflection. */
  CHECK(gex_VIS_StridedPutNBI(world, peer, base + 59, reversed, mine, rows, 1, counts, 2, 0) == 0);
  gex_NBI_Wait(GEX_EC_PUT, 0);
  gex_Event_Wait(gex_VIS_StridedGetNB(world, flat, rows, peer, base, rows, 1, counts, 2, 0));
  for (at = 0; at < 60; at++) CHECK(flat[at] == mine[(59 - at) / 10][(59 - at) % 10]);
  near_list[0].gex_addr = mine[0];
  near_list[0].gex_len = 25;
  near_list[1].gex_addr = mine[3];
  near_list[1].gex_len = 5;
  for (at = 0; at < 3; at++) {
    far_list[at].gex_addr = base + 100 * at;
    far_list[at].gex_len = 10;
    near_blocks[at] = flat + 20 * at;
  }
  gex_Event_Wait(gex_VIS_VectorPutNB(world, peer, 3, far_list, 2, near_list, 0));
  far_blocks[0] = base;
  far_blocks[1] = base + 100;
  memset(flat, 0, 60);
  CHECK(gex_VIS_IndexedGetBlocking(world, 2, near_blocks, 10, peer, 2, far_blocks, 10, 0) == 0);
  CHECK(memcmp(flat, mine[0], 10) == 0 && memcmp(flat + 20, mine[1], 10) == 0 && flat[40] == 0);
}

int main(int argc, char **argv) {
  start(&argc, &argv);
  attach(BYTES);
  collectives(world);
  teams();
  atomics();
  pieces();
  finish();
  return 0;
}
