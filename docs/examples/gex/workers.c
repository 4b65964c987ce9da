/* Rank 0 gives tasks to workers. A worker fails, and the others do its tasks.
 *
 * The handler for failures of weft, with Active Messages.
 *
 *   cc -o workers workers.c $(pkg-config --cflags --libs gasnet-smp-seq) && gasnetrun_smp -n 4 ./workers */
#include <gasnet_weft.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define TASKS 40
#define TASK GEX_AM_INDEX_BASE
#define RESULT (GEX_AM_INDEX_BASE + 1)
#define END (GEX_AM_INDEX_BASE + 2)
#define NONE GEX_RANK_INVALID

static gex_TM_t team;
/* At rank 0: the worker of each task, and its result. */
static gex_Rank_t worker_of[TASKS];
static int result_of[TASKS];
static volatile int results, ended;
/* At a worker: the task that it has got. */
static volatile int task = -1;

static void task_handler(gex_Token_t token, gex_AM_Arg_t number) {
  (void)token;
  task = (int)number;
}

static void result_handler(gex_Token_t token, gex_AM_Arg_t number, gex_AM_Arg_t result) {
  (void)token;
  if (!result_of[number]) results++;
  result_of[number] = (int)result;
}

static void end_handler(gex_Token_t token) {
  (void)token;
  ended = 1;
}

/* The tasks of the worker that are not done are free again. */
static void failure_handler(gex_Rank_t jobrank) {
  int i;
  for (i = 0; i < TASKS; i++) {
    if (worker_of[i] == jobrank && !result_of[i]) worker_of[i] = NONE;
  }
}

static void lead(gex_Rank_t ranks) {
  gex_Rank_t next = 0, r;
  int i;
  for (i = 0; i < TASKS; i++) worker_of[i] = NONE;
  while (results < TASKS) {
    for (i = 0; i < TASKS; i++) {
      int busy = 0, j;
      if (worker_of[i] != NONE) continue;
      next = next % (ranks - 1) + 1;
      for (j = 0; j < TASKS; j++) busy |= worker_of[j] == next && !result_of[j];
      if (busy || gexw_System_HasFailed(next)) continue;
      worker_of[i] = next;
      /* A request to a rank that has failed is refused. */
      if (gex_AM_RequestShort1(team, next, TASK, 0, i) != GASNET_OK) worker_of[i] = NONE;
    }
    gasnet_AMPoll();
  }
  for (r = 1; r < ranks; r++) {
    if (!gexw_System_HasFailed(r)) (void)gex_AM_RequestShort0(team, r, END, 0);
  }
}

static void work(gex_Rank_t me, int fails) {
  int done = 0;
  while (!ended) {
    int now;
    GASNET_BLOCKUNTIL(task >= 0 || ended);
    now = task;
    if (now < 0) continue;
    task = -1;
    if (fails && ++done == 3) kill(getpid(), SIGKILL);
    if (gex_AM_RequestShort2(team, 0, RESULT, 0, now, (gex_AM_Arg_t)(now * now + 1)) != GASNET_OK) return;
  }
  (void)me;
}

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_Rank_t me, ranks;
  int i, wrong = 0;
  gex_AM_Entry_t table[] = {
      {TASK, (gex_AM_Fn_t)task_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, NULL, "task"},
      {RESULT, (gex_AM_Fn_t)result_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 2, NULL, "result"},
      {END, (gex_AM_Fn_t)end_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, "end"}};

  if (gex_Client_Init(&client, &endpoint, &team, "WORKERS", &argc, &argv, 0) != GASNET_OK) return 1;
  if (gex_EP_RegisterHandlers(endpoint, table, 3) != GASNET_OK) return 1;
  gexw_System_SetFailureHandler(failure_handler);
  me = gex_TM_QueryRank(team);
  ranks = gex_TM_QuerySize(team);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  if (ranks > 1) {
    if (me == 0) lead(ranks);
    else work(me, ranks > 2 && me == ranks - 1);
  }
  for (i = 0; me == 0 && ranks > 1 && i < TASKS; i++) wrong += result_of[i] != i * i + 1;
  if (me == 0) printf("%d results, %d wrong\n", results, wrong);
  gasnet_exit(wrong);
  return 0;
}
