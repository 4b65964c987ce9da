/* Accesses to several pieces of memory: vectors, indexed blocks, strided arrays with transposition and reflection, with
 * events and without, and the GASNet-1 forms. C99 and C++11. */
#include "job.h"

#define SEGMENT_BYTES ((uintptr_t)1 << 21)
#define ROWS 12
#define COLUMNS 9

static gex_Rank_t peer;
/* A place in the peer's segment that no other rank uses. */
static int *remote;
static int sent[ROWS * COLUMNS], got[ROWS * COLUMNS];

static void reset(void) {
  int i;
  for (i = 0; i < ROWS * COLUMNS; i++) {
    sent[i] = (int)rank * 1000 + i;
    got[i] = -1;
  }
  OK(gex_RMA_PutBlocking(tm, peer, remote, got, sizeof(got), 0));
}

static void fetch(void) { OK(gex_RMA_GetBlocking(tm, got, peer, remote, sizeof(got), 0)); }

static void vectors(void) {
  gex_Memvec_t local[2], far[3];
  int i;
  reset();
  local[0].gex_addr = sent;
  local[0].gex_len = 5 * sizeof(int);
  local[1].gex_addr = sent + 50;
  local[1].gex_len = 7 * sizeof(int);
  far[0].gex_addr = remote + 3;
  far[0].gex_len = 2 * sizeof(int);
  far[1].gex_addr = remote + 20;
  far[1].gex_len = 9 * sizeof(int);
  far[2].gex_addr = remote + 40;
  far[2].gex_len = 1 * sizeof(int);
  OK(gex_VIS_VectorPutBlocking(tm, peer, 3, far, 2, local, 0));
  fetch();
  CHECK(got[2] == -1 && got[3] == sent[0] && got[4] == sent[1] && got[5] == -1);
  CHECK(got[20] == sent[2] && got[22] == sent[4] && got[23] == sent[50] && got[28] == sent[55] && got[29] == -1);
  CHECK(got[40] == sent[56]);
  /* Back to other places. */
  for (i = 0; i < ROWS * COLUMNS; i++) sent[i] = -2;
  gex_Event_Wait(gex_VIS_VectorGetNB(tm, 2, local, peer, 3, far, 0));
  CHECK(sent[0] == (int)rank * 1000 && sent[4] == (int)rank * 1000 + 4 && sent[5] == -2);
  CHECK(sent[50] == (int)rank * 1000 + 50 && sent[56] == (int)rank * 1000 + 56);
  OK(gex_VIS_VectorGetBlocking(tm, 0, NULL, peer, 0, NULL, 0));
}

static void indexed(void) {
  void *local[6], *far[4];
  int i;
  reset();
  for (i = 0; i < 6; i++) local[i] = sent + 10 * i;
  for (i = 0; i < 4; i++) far[i] = remote + 20 * i;
  /* 6 pieces of 2 become 4 of 3. */
  OK(gex_VIS_IndexedPutNBI(tm, peer, 4, far, 3 * sizeof(int), 6, local, 2 * sizeof(int), 0));
  gex_NBI_Wait(GEX_EC_PUT, 0);
  fetch();
  CHECK(got[0] == sent[0] && got[1] == sent[1] && got[2] == sent[10] && got[3] == -1);
  CHECK(got[20] == sent[11] && got[21] == sent[20] && got[62] == sent[51]);
  for (i = 0; i < ROWS * COLUMNS; i++) sent[i] = -2;
  OK(gex_VIS_IndexedGetNBI(tm, 6, local, 2 * sizeof(int), peer, 4, far, 3 * sizeof(int), 0));
  gex_NBI_Wait(GEX_EC_GET, 0);
  for (i = 0; i < 6; i++) CHECK(sent[10 * i] == (int)rank * 1000 + 10 * i && sent[10 * i + 1] == sent[10 * i] + 1);
  OK(gex_VIS_IndexedPutBlocking(tm, peer, 4, far, 3 * sizeof(int), 6, local, 2 * sizeof(int), 0));
  OK(gex_VIS_IndexedGetBlocking(tm, 6, local, 2 * sizeof(int), peer, 4, far, 3 * sizeof(int), 0));
}

/* A matrix of ROWS by COLUMNS there is one of COLUMNS by ROWS here, its rows backwards. */
static void strided(void) {
  const ptrdiff_t near_strides[2] = {sizeof(int), COLUMNS * (ptrdiff_t)sizeof(int)};
  const ptrdiff_t transposed[2] = {ROWS * (ptrdiff_t)sizeof(int), -(ptrdiff_t)sizeof(int)};
  const size_t counts[2] = {COLUMNS, ROWS};
  gex_Event_t event, leaf;
  int r, c;
  reset();
  OK(gex_VIS_StridedPutBlocking(tm, peer, remote + ROWS - 1, transposed, sent, near_strides, sizeof(int), counts, 2, 0));
  fetch();
  for (r = 0; r < ROWS; r++) {
    for (c = 0; c < COLUMNS; c++) CHECK(got[c * ROWS + ROWS - 1 - r] == sent[r * COLUMNS + c]);
  }
  memset(got, 0, sizeof(got));
  gex_Event_Wait(gex_VIS_StridedGetNB(tm, got, near_strides, peer, remote + ROWS - 1, transposed, sizeof(int), counts, 2, 0));
  CHECK(!memcmp(got, sent, sizeof(got)));
  /* Local completion by a leaf. */
  event = gex_VIS_StridedPutNB(tm, peer, remote, near_strides, sent, near_strides, sizeof(int), counts, 2,
                               GEX_FLAG_ENABLE_LEAF_LC);
  leaf = gex_Event_QueryLeaf(event, GEX_EC_LC);
  gex_Event_Wait(leaf);
  gex_Event_Wait(event);
  OK(gex_VIS_StridedGetNBI(tm, got, near_strides, peer, remote, near_strides, sizeof(int), counts, 2, 0));
  gex_NBI_Wait(GEX_EC_GET, 0);
  CHECK(!memcmp(got, sent, sizeof(got)));
  /* No levels: one element. No counts: nothing. */
  OK(gex_VIS_StridedPutBlocking(tm, peer, remote, NULL, sent + 7, NULL, 3 * sizeof(int), NULL, 0, 0));
  fetch();
  CHECK(!memcmp(got, sent + 7, 3 * sizeof(int)) && got[3] == sent[3]);
  {
    const size_t none[2] = {0, ROWS};
    OK(gex_VIS_StridedPutBlocking(tm, peer, remote, near_strides, sent, near_strides, sizeof(int), none, 2, 0));
    OK(gex_VIS_StridedPutBlocking(tm, peer, remote, near_strides, sent, near_strides, 0, counts, 2, 0));
  }
  fetch();
  CHECK(!memcmp(got, sent + 7, 3 * sizeof(int)));
}

static void old_forms(void) {
  gasnet_memvec_t local, far;
  void *near_piece = sent, *far_piece = remote;
  const size_t stride = COLUMNS * sizeof(int), counts[2] = {3 * sizeof(int), ROWS};
  int r;
  reset();
  local.addr = sent;
  far.addr = remote;
  local.len = far.len = 8;
  gasnet_putv_bulk(peer, 1, &far, 1, &local);
  gasnet_wait_syncnb(gasnet_getv_nb_bulk(1, &local, peer, 1, &far));
  gasnet_puti_nbi_bulk(peer, 1, &far_piece, 12, 1, &near_piece, 12);
  gasnet_wait_syncnbi_puts();
  gasnet_geti_bulk(1, &near_piece, 12, peer, 1, &far_piece, 12);
  gasnet_puts_bulk(peer, remote, &stride, sent, &stride, counts, 1);
  fetch();
  for (r = 0; r < ROWS; r++) {
    CHECK(!memcmp(got + r * COLUMNS, sent + r * COLUMNS, 3 * sizeof(int)));
    CHECK(got[r * COLUMNS + 3] == -1);
  }
  memset(got, 0, sizeof(got));
  gasnet_wait_syncnb(gasnet_gets_nb_bulk(got, &stride, peer, remote, &stride, counts, 1));
  CHECK(got[COLUMNS + 2] == sent[COLUMNS + 2] && got[COLUMNS + 3] == 0);
}

/* Pieces of many lengths, which need several messages between hosts. They are 3 bytes apart there, and touch here. */
#define MANY 300
#define APART 3

static void many(void) {
  static unsigned char data[MANY * 1500], back[MANY * 1500], whole[MANY * 1500];
  gex_Memvec_t local[MANY], far[MANY];
  char *there = (char *)segment_of(peer) + (SEGMENT_BYTES >> 1) + (size_t)rank * (SEGMENT_BYTES >> 3);
  size_t i, bytes = 0, extent;
  for (i = 0; i < MANY; i++) {
    local[i].gex_addr = data + bytes;
    far[i].gex_addr = there + bytes + APART * i;
    local[i].gex_len = far[i].gex_len = i % 4 == 0 ? i * 7 % 1500 : i % 60;
    bytes += local[i].gex_len;
  }
  extent = bytes + APART * MANY;
  CHECK(extent <= SEGMENT_BYTES >> 3);
  for (i = 0; i < bytes; i++) data[i] = (unsigned char)(i * 31 + rank + 1);
  memset(whole, 0, extent);
  OK(gex_RMA_PutBlocking(tm, peer, there, whole, extent, 0));
  OK(gex_VIS_VectorPutBlocking(tm, peer, MANY, far, MANY, local, 0));
  OK(gex_RMA_GetBlocking(tm, whole, peer, there, extent, 0));
  for (i = 0; i < MANY; i++) {
    size_t start = (size_t)((char *)far[i].gex_addr - there), end = start + far[i].gex_len;
    CHECK(!memcmp(whole + start, local[i].gex_addr, far[i].gex_len));
    CHECK(whole[end] == 0 && whole[end + APART - 1] == 0);
    local[i].gex_addr = back + ((unsigned char *)local[i].gex_addr - data);
  }
  memset(back, 0, bytes);
  OK(gex_VIS_VectorGetBlocking(tm, MANY, local, peer, MANY, far, 0));
  CHECK(!memcmp(back, data, bytes));
}

int main(int argc, char **argv) {
  int round;
  start(&argc, &argv, NULL, 0, SEGMENT_BYTES);
  barrier();
  for (round = 0; round < 10; round++) {
    for (peer = 0; peer < size; peer++) {
      remote = (int *)segment_of(peer) + (size_t)rank * 2 * ROWS * COLUMNS;
      vectors();
      indexed();
      strided();
      old_forms();
      if (round < 2) many();
    }
  }
  finish();
}
