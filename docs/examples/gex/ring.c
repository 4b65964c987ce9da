/* A number goes round all ranks, by Active Messages.
 *
 * The first example: the start of a job, a handler, a wait and the end, with the calls that any implementation has.
 *
 *   cc -o ring ring.c $(pkg-config --cflags --libs gasnet-smp-seq) && gasnetrun_smp -n 4 ./ring */
#include <gasnetex.h>
#include <stdio.h>

static gex_TM_t team;
static volatile int arrived;

static void next_handler(gex_Token_t token, gex_AM_Arg_t number) {
  (void)token;
  arrived = (int)number;
}

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_Rank_t me, ranks;
  gex_AM_Entry_t table[] = {
      {GEX_AM_INDEX_BASE, (gex_AM_Fn_t)next_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, NULL, "next"}};

  if (gex_Client_Init(&client, &endpoint, &team, "RING", &argc, &argv, 0) != GASNET_OK) return 1;
  if (gex_EP_RegisterHandlers(endpoint, table, 1) != GASNET_OK) return 1;
  me = gex_TM_QueryRank(team);
  ranks = gex_TM_QuerySize(team);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));

  if (me == 0) gex_AM_RequestShort1(team, 1 % ranks, GEX_AM_INDEX_BASE, 0, 1);
  GASNET_BLOCKUNTIL(arrived != 0);
  if (me != 0) gex_AM_RequestShort1(team, (me + 1) % ranks, GEX_AM_INDEX_BASE, 0, arrived + 1);
  if (me == 0) printf("the number is %d after %u ranks\n", arrived, (unsigned)ranks);

  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  gasnet_exit(me == 0 && arrived != (int)ranks);
  return 0;
}
