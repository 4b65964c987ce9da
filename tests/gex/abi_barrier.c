/* Barriers: of the job, by name or anonymous, with mismatches, and of a team. C99 and C++11. */
#include "job.h"

/* Each rank tells all others how many barriers it has entered. None may be behind after a barrier. */
static gasnett_atomic_t entered[64];
static int own;

GASNETT_BEGIN_EXTERNC
static void tell(gex_Token_t token, gex_AM_Arg_t count) {
  gex_Token_Info_t info;
  CHECK(gex_Token_Info(token, &info, GEX_TI_SRCRANK) & GEX_TI_SRCRANK);
  gasnett_atomic_set(&entered[info.gex_srcrank], (gasnett_atomic_val_t)count, GASNETT_ATOMIC_REL);
}
GASNETT_END_EXTERNC

static gex_AM_Entry_t table[] = {
    {200, (gex_AM_Fn_t)tell, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, NULL, NULL},
};

static void enter(void) {
  gex_Rank_t i;
  own++;
  for (i = 0; i < size; i++) OK(gex_AM_RequestShort1(tm, i, 200, 0, own));
}

static void all_entered(void) {
  gex_Rank_t i;
  for (i = 0; i < size; i++) GASNET_BLOCKUNTIL(gasnett_atomic_read(&entered[i], 0) >= (unsigned)own);
}

static void separates(void) {
  volatile int *word = (volatile int *)gex_Segment_QueryAddr(segment);
  int round, peer_word;
  for (round = 1; round <= 200; round++) {
    *word = round;
    switch (round % 4) {
    case 0: barrier(); break;
    case 1: OK(gasnet_barrier(round, 0)); break;
    case 2: gex_Event_Wait(gex_Coll_BarrierNB(tm, 0)); break;
    default: gex_Coll_BarrierBlocking(tm, 0);
    }
    OK(gex_RMA_GetBlocking(tm, &peer_word, (rank + 1) % size, segment_of((rank + 1) % size), sizeof(int), 0));
    CHECK(peer_word == round || peer_word == round + 1);
    gex_Coll_BarrierBlocking(tm, 0);
  }
}

/* Messages are handled while a rank waits in a barrier. */
static void handles(void) {
  int round;
  for (round = 0; round < 20; round++) {
    enter();
    barrier();
    all_entered();
  }
}

static void names(void) {
  int id = -1;
  gasnet_barrier_notify(17, 0);
  OK(gasnet_barrier_wait(17, 0));
  CHECK(gasnet_barrier_result(&id) == 0 && id == 17);
  /* The anonymous rank takes part in any. */
  if (rank == 0) {
    OK(gasnet_barrier(5, GASNET_BARRIERFLAG_ANONYMOUS));
  } else {
    OK(gasnet_barrier(42, 0));
  }
  CHECK((gasnet_barrier_result(&id) == 0) == (size > 1));
  if (size > 1) CHECK(id == 42);
  OK(gasnet_barrier(0, GASNET_BARRIERFLAG_UNNAMED));
  CHECK(gasnet_barrier_result(&id) != 0);
}

static void mismatches(void) {
  int answer;
  /* Forced by one rank, all get the error. */
  gasnet_barrier_notify(3, rank == size - 1 ? GASNET_BARRIERFLAG_MISMATCH : 0);
  answer = gasnet_barrier_wait(3, rank == size - 1 ? GASNET_BARRIERFLAG_MISMATCH : 0);
  CHECK(answer == GASNET_ERR_BARRIER_MISMATCH);
  if (size > 1) {
    CHECK(gasnet_barrier((int)rank, 0) == GASNET_ERR_BARRIER_MISMATCH);
  }
  OK(gasnet_barrier(8, 0));
}

static void tries(void) {
  int answer;
  gasnet_barrier_notify(9, 0);
  while ((answer = gasnet_barrier_try(9, 0)) == GASNET_ERR_NOT_READY) OK(gasnet_AMPoll());
  OK(answer);
}

/* Several barriers of a team may be under way, and other work meanwhile. */
static void overlaps(void) {
  gex_Event_t events[4];
  int i;
  for (i = 0; i < 4; i++) events[i] = gex_Coll_BarrierNB(tm, 0);
  enter();
  gex_Event_WaitAll(events, 4, 0);
  all_entered();
}

int main(int argc, char **argv) {
  start(&argc, &argv, table, 1, GASNET_PAGESIZE);
  barrier();
  separates();
  handles();
  names();
  mismatches();
  tries();
  overlaps();
  finish();
}
