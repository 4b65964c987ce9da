/* Teams: split, created, used, destroyed. C99 and C++11. */
#include "job.h"

#define SEGMENT_BYTES ((uintptr_t)1 << 20)

static gasnett_atomic_t arrived = gasnett_atomic_init(0);
static gasnett_atomic_t from = gasnett_atomic_init(0);

GASNETT_BEGIN_EXTERNC
static void note(gex_Token_t token) {
  gex_Token_Info_t info;
  CHECK(gex_Token_Info(token, &info, GEX_TI_SRCRANK) & GEX_TI_SRCRANK);
  gasnett_atomic_set(&from, info.gex_srcrank, 0);
  gasnett_atomic_increment(&arrived, GASNETT_ATOMIC_REL);
}
GASNETT_END_EXTERNC

static gex_AM_Entry_t table[] = {
    {200, (gex_AM_Fn_t)note, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, NULL},
};

/* Barriers, messages and accesses of a team. Each rank sends to the next one. */
static void use(gex_TM_t team) {
  const gex_Rank_t own = gex_TM_QueryRank(team), count = gex_TM_QuerySize(team), next = (own + 1) % count;
  const gex_Rank_t next_jobrank = gex_TM_TranslateRankToJobrank(team, next);
  const gasnett_atomic_val_t before = gasnett_atomic_read(&arrived, 0);
  uint64_t value = 1000 + rank, in = 0;
  char *target = (char *)segment_of(next_jobrank) + SEGMENT_BYTES / 2;
  CHECK(gex_TM_TranslateRankToJobrank(team, own) == rank && gex_TM_TranslateJobrankToRank(team, rank) == own);
  CHECK(gex_TM_TranslateRankToEP(team, next, 0).gex_rank == next_jobrank);
  CHECK(gex_TM_QueryEP(team) == ep && gex_TM_QueryClient(team) == client);
  gex_Coll_BarrierBlocking(team, 0);
  OK(gex_AM_RequestShort0(team, next, 200, 0));
  OK(gex_RMA_PutBlocking(team, next, target, &value, 8, 0));
  OK(gex_RMA_GetBlocking(team, &in, next, target, 8, 0));
  CHECK(in == value);
  GASNET_BLOCKUNTIL(gasnett_atomic_read(&arrived, 0) == before + 1);
  /* The handler's rank is that of the whole job. */
  CHECK(gasnett_atomic_read(&from, 0) == gex_TM_TranslateRankToJobrank(team, (own + count - 1) % count));
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
}

static void split(void) {
  gex_TM_t team = GEX_TM_INVALID, reversed = GEX_TM_INVALID, none = GEX_TM_INVALID;
  gex_Memvec_t scratch = {NULL, 0};
  const size_t bytes =
      gex_TM_Split(&team, tm, (int)(rank & 1), 0, NULL, 0, GEX_FLAG_TM_SCRATCH_SIZE_RECOMMENDED);
  CHECK(bytes >= gex_TM_Split(&team, tm, (int)(rank & 1), 0, NULL, 0, GEX_FLAG_TM_SCRATCH_SIZE_MIN));
  CHECK(gex_TM_Split(NULL, tm, 0, 0, NULL, 0, GEX_FLAG_TM_SCRATCH_SIZE_MIN) == 0);
  CHECK(team == GEX_TM_INVALID && bytes <= SEGMENT_BYTES / 4);
  (void)gex_TM_Split(&team, tm, (int)(rank & 1), (int)rank, gex_Segment_QueryAddr(segment), bytes, 0);
  CHECK(team != GEX_TM_INVALID && gex_TM_QuerySize(team) == (size + 1 - (rank & 1)) / 2);
  CHECK(gex_TM_QueryRank(team) == rank / 2);
  use(team);
  (void)gex_TM_Split(&reversed, tm, 7, -(int)rank, NULL, 0, GEX_FLAG_TM_NO_SCRATCH);
  CHECK(gex_TM_QuerySize(reversed) == size && gex_TM_QueryRank(reversed) == size - 1 - rank);
  use(reversed);
  /* A rank without a team takes part. */
  (void)gex_TM_Split(rank == 0 ? NULL : &none, tm, 1, 0, NULL, 0, GEX_FLAG_TM_NO_SCRATCH);
  if (rank == 0) {
    CHECK(none == GEX_TM_INVALID);
  } else {
    CHECK(gex_TM_QuerySize(none) == size - 1 && gex_TM_QueryRank(none) == rank - 1);
    CHECK(gex_TM_Destroy(none, NULL, 0) == 0);
  }
  if (gex_TM_Destroy(team, &scratch, 0)) {
    CHECK(scratch.gex_addr == gex_Segment_QueryAddr(segment) && scratch.gex_len == bytes);
  }
  CHECK(gex_TM_Destroy(reversed, NULL, 0) == 0);
}

static void create(void) {
  gex_EP_Location_t *members = (gex_EP_Location_t *)calloc(size, sizeof(*members));
  const gex_Rank_t even = (size + 1) / 2;
  gex_TM_t team = GEX_TM_INVALID;
  gex_Rank_t i;
  /* All ranks, the last first. */
  for (i = 0; i < size; i++) {
    members[i].gex_rank = size - 1 - i;
    members[i].gex_ep_index = 0;
  }
  (void)gex_TM_Create(&team, 1, tm, members, size, NULL, 0, GEX_FLAG_TM_NO_SCRATCH);
  CHECK(team != GEX_TM_INVALID && gex_TM_QueryRank(team) == size - 1 - rank && gex_TM_QuerySize(team) == size);
  use(team);
  CHECK(gex_TM_Destroy(team, NULL, 0) == 0);
  /* Ranks with even numbers. The others pass an empty list and room for a team, which stays as it is. */
  for (i = 0; i < even; i++) members[i].gex_rank = 2 * i;
  team = tm;
  (void)gex_TM_Create(&team, 1, tm, members, rank % 2 ? 0 : even, NULL, 0, GEX_FLAG_TM_NO_SCRATCH);
  if (rank % 2) {
    CHECK(team == tm);
  } else {
    CHECK(team != tm && gex_TM_QueryRank(team) == rank / 2 && gex_TM_QuerySize(team) == even);
    CHECK(gex_TM_Destroy(team, NULL, 0) == 0);
  }
  free(members);
}

int main(int argc, char **argv) {
  int round;
  start(&argc, &argv, table, 1, SEGMENT_BYTES);
  barrier();
  for (round = 0; round < 20; round++) {
    split();
    create();
  }
  finish();
}
