/* Measures a library with the GASNet-EX API between two ranks of a job: `weft bench gex` runs it.
 *
 * It uses public calls only, so the same source can be compiled against any such library, and the results of several
 * libraries compared. Calls of weft's own are measured where gasnet_weft.h exists. Rank 0 prints one line for each
 * measurement: name, value, unit. A value is the median of batches.
 * An argument limits the time of each measurement, in milliseconds.
 */
#include <gasnetex.h>
#include <gasnet_coll.h>
#include <gasnet_ratomic.h>
#include <gasnet_vis.h>
#ifdef WEFT_GEX
#include <gasnet_weft.h>
#endif

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { H_PING = 200, H_PONG, H_PING_MEDIUM, H_PONG_MEDIUM, H_LONG, H_LONG_SEEN, H_COMPUTED };
enum { BATCHES = 15, LONG_BYTES = 64 << 10, SEGMENT_BYTES = 8 << 20, PIECES = 64, PIECE_BYTES = 64, IN_FLIGHT = 16 };

static gex_TM_t team;
static gex_Rank_t me, peer;
static char *near, *far;
static volatile int pongs, longs, computed;
static double limit_ns = 50e6;
static char block[LONG_BYTES];

static double now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static void ping(gex_Token_t token, gex_AM_Arg_t number) { gex_AM_ReplyShort1(token, H_PONG, 0, number); }

static void pong(gex_Token_t token, gex_AM_Arg_t number) {
  (void)token, (void)number;
  pongs++;
}

static void ping_medium(gex_Token_t token, void *data, size_t bytes) {
  gex_AM_ReplyMedium0(token, H_PONG_MEDIUM, data, bytes, GEX_EVENT_NOW, 0);
}

static void pong_medium(gex_Token_t token, void *data, size_t bytes) {
  (void)token, (void)data, (void)bytes;
  pongs++;
}

static void long_here(gex_Token_t token, void *data, size_t bytes) {
  (void)data, (void)bytes;
  gex_AM_ReplyShort0(token, H_LONG_SEEN, 0);
}

static void long_seen(gex_Token_t token) {
  (void)token;
  longs++;
}

static void end_of_computation(gex_Token_t token) {
  (void)token;
  computed = 1;
}

/* One operation, or several; returns how many. */
typedef int (*Operation)(void);

static int put_8(void) {
  gex_RMA_PutBlocking(team, peer, far, block, 8, 0);
  return 1;
}

static int get_8(void) {
  gex_RMA_GetBlocking(team, block, peer, far, 8, 0);
  return 1;
}

#ifdef GEXW_SUPPORTS_SEG_OFFSET
/* The same accesses by an offset in the segment. */
#define BY_OFFSET (GEX_FLAG_PEER_SEG_OFFSET | GEX_FLAG_SELF_SEG_OFFSET)

static int put_8_offset(void) {
  gex_RMA_PutBlocking(team, peer, (void *)8192, (void *)64, 8, BY_OFFSET);
  return 1;
}

static int get_8_offset(void) {
  gex_RMA_GetBlocking(team, (void *)64, peer, (void *)8192, 8, BY_OFFSET);
  return 1;
}
#endif

#ifdef GEXW_SUPPORTS_OPEN_ADDRESS_SPACE
#define INIT_FLAGS GEXW_FLAG_OPEN_ADDRESS_SPACE
static void *outside;

/* Tells the peer where memory outside of the segment is. */
static void exchange_outside(void) {
  void *mine = block;
  gex_RMA_PutBlocking(team, peer, far + 8192, &mine, sizeof mine, 0);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  memcpy(&outside, near + 8192, sizeof outside);
}

static int get_8_outside(void) {
  static char result[8];
  gex_RMA_GetBlocking(team, result, peer, outside, 8, GEX_FLAG_PEER_SEG_UNKNOWN);
  return 1;
}
#else
#define INIT_FLAGS 0
#endif

#ifdef GEXW_SUPPORTS_AFTER_NEXT
enum { CHAIN = 8, WORK = 1000000 };
static gex_Event_t chain[CHAIN];

/* Puts that follow one another. */
static void start_chain(void) {
  for (int at = 0; at < CHAIN; at++) {
    if (at > 0) gexw_AfterNext(&chain[at - 1], 1, 0);
    chain[at] = gex_RMA_PutNB(team, peer, far + 8 * at, block, 8, GEX_EVENT_NOW, 0);
  }
}

static int chain_8(void) {
  start_chain();
  gex_Event_WaitAll(chain, CHAIN, 0);
  return 1;
}

/* Work of some milliseconds without a call of the library. */
static int work(void) {
  static volatile double sum;
  for (int at = 1; at < WORK; at++) sum += 1.0 / at;
  return 1;
}

/* The same work while a chain is under way. The share of the work in the time is the availability of the processor. */
static int work_chain_8(void) {
  start_chain();
  work();
  gex_Event_WaitAll(chain, CHAIN, 0);
  return 1;
}
#endif

#ifdef GEXW_SUPPORTS_PUT_SIGNAL
static int put_8_signal(void) {
  gexw_RMA_PutSignalBlocking(team, peer, far, block, 8, (uint64_t *)(void *)(far + 4096), 1, GEX_OP_ADD, 0);
  return 1;
}
#endif

static int put_long(void) {
  gex_RMA_PutBlocking(team, peer, far, block, LONG_BYTES, 0);
  return 1;
}

static int am_short(void) {
  const int before = pongs;
  gex_AM_RequestShort1(team, peer, H_PING, 0, 7);
  GASNET_BLOCKUNTIL(pongs != before);
  return 1;
}

static int am_medium(void) {
  const int before = pongs;
  gex_AM_RequestMedium0(team, peer, H_PING_MEDIUM, block, 1024, GEX_EVENT_NOW, 0);
  GASNET_BLOCKUNTIL(pongs != before);
  return 1;
}

static int long_flood(void) {
  const int before = longs;
  for (int at = 0; at < IN_FLIGHT; at++)
    gex_AM_RequestLong0(team, peer, H_LONG, block, LONG_BYTES, far + LONG_BYTES, GEX_EVENT_NOW, 0);
  GASNET_BLOCKUNTIL(longs - before >= IN_FLIGHT);
  return IN_FLIGHT;
}

static gex_AD_t domain;

static int fetch_add(void) {
  uint64_t old;
  gex_Event_Wait(gex_AD_OpNB_U64(domain, &old, peer, far + 4096, GEX_OP_FADD, 1, 0, 0));
  return 1;
}

/* The instruction of such an operation, at the same place. */
static uint64_t *counter;

static int locked_add(void) {
  volatile uint64_t old = __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
  (void)old;
  return 1;
}

static int barrier(void) {
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  return 1;
}

static char blocks[2][2 * 4096];

static int reduce_8(void) {
  gex_Event_Wait(gex_Coll_ReduceToAllNB(team, blocks[0], blocks[1], GEX_DT_U64, 8, 1, GEX_OP_ADD, NULL, NULL, 0));
  return 1;
}

#ifdef GEXW_SUPPORTS_COLL
static int exchange_8(void) {
  gex_Event_Wait(gexw_Coll_ExchangeNB(team, blocks[0], blocks[1], 8, 0));
  return 1;
}

static int exchange_4k(void) {
  gex_Event_Wait(gexw_Coll_ExchangeNB(team, blocks[0], blocks[1], 4096, 0));
  return 1;
}

static int gather_all_4k(void) {
  gex_Event_Wait(gexw_Coll_GatherAllNB(team, blocks[0], blocks[1], 4096, 0));
  return 1;
}

static int scan_8(void) {
  gex_Event_Wait(gexw_Coll_ScanNB(team, blocks[0], blocks[1], GEX_DT_U64, 8, 1, GEX_OP_ADD, NULL, NULL, 0));
  return 1;
}
#endif

static int strided_put(void) {
  const ptrdiff_t here = PIECE_BYTES, there = 2 * PIECE_BYTES;
  const size_t count = PIECES;
  gex_VIS_StridedPutBlocking(team, peer, far, (ptrdiff_t *)&there, block, (ptrdiff_t *)&here, PIECE_BYTES, (size_t *)&count, 1, 0);
  return 1;
}

static int unpacked_put(void) {
  for (int at = 0; at < PIECES; at++)
    gex_RMA_PutBlocking(team, peer, far + 2 * PIECE_BYTES * at, block + PIECE_BYTES * at, PIECE_BYTES, 0);
  return 1;
}

static int by_value(const void *a, const void *b) {
  const double one = *(const double *)a, other = *(const double *)b;
  return (one > other) - (one < other);
}

/* Nanoseconds of one operation: the median of batches. */
static double time_of(Operation operation) {
  double batches[BATCHES];
  int count = 1;
  double start = now_ns();
  while (now_ns() - start < limit_ns / BATCHES / 4 || count == 1) {
    for (int at = 0; at < count; at++) operation();
    if (now_ns() - start > limit_ns / BATCHES / 4) break;
    count *= 2;
  }
  for (int batch = 0; batch < BATCHES; batch++) {
    int done = 0;
    start = now_ns();
    for (int at = 0; at < count; at++) done += operation();
    batches[batch] = (now_ns() - start) / done;
  }
  qsort(batches, BATCHES, sizeof batches[0], by_value);
  return batches[BATCHES / 2];
}

static void run_alone(const char *name, Operation operation) {
  printf("%s %.2f ns\n", name, time_of(operation));
  fflush(stdout);
}

static void run(const char *name, Operation operation) {
  if (me == 0) run_alone(name, operation);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
}

/* A measurement that takes both ranks: the number of operations is fixed. */
static void run_together(const char *name, Operation operation) {
  enum { COUNT = 2000 };
  double batches[BATCHES];
  for (int batch = 0; batch < BATCHES; batch++) {
    gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
    const double start = now_ns();
    for (int at = 0; at < COUNT; at++) operation();
    batches[batch] = (now_ns() - start) / COUNT;
  }
  qsort(batches, BATCHES, sizeof batches[0], by_value);
  if (me == 0) printf("%s %.2f ns\n", name, batches[BATCHES / 2]), fflush(stdout);
}

/* A measurement whose target computes, and polls only once in a millisecond. */
static void run_computing(const char *name, Operation operation) {
  enum { BETWEEN_POLLS_NS = 1000000 };
  computed = 0;
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  if (me == 0) {
    run_alone(name, operation);
    gex_AM_RequestShort0(team, peer, H_COMPUTED, 0);
  } else {
    for (double last = now_ns(); !computed;) {
      if (now_ns() - last > BETWEEN_POLLS_NS) gasnet_AMPoll(), last = now_ns();
    }
  }
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
}

static void pin(int to) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  const int number = to % CPU_COUNT(&all);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all) && seen++ == number) {
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
}

/* The time that a cache line needs from one processor to another: half of the round trip between two processes, in the
 * fastest of the batches that fit into the limit. On a busy machine there may be none. */
static double hand_over_ns(const cpu_set_t *all) {
  enum { BATCH = 500, LINE_WORDS = 32, OVER = -1 };
  volatile int *line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (line == MAP_FAILED) return 0;
  const pid_t child = fork();
  if (child == 0) {
    sched_setaffinity(0, sizeof *all, all);
    pin(1);
    for (int at = 1; line[0] != OVER;)
      if (line[0] == at) line[LINE_WORDS] = at++;
    _exit(0);
  }
  double best = 0;
  const double begin = now_ns();
  for (int at = 1; now_ns() - begin < limit_ns;) {
    const double start = now_ns();
    int done = 0;
    for (; done < BATCH && now_ns() - begin < limit_ns; done++, at++) {
      line[0] = at;
      while (line[LINE_WORDS] != at && now_ns() - begin < 2 * limit_ns) {
      }
    }
    const double time = (now_ns() - start) / done / 2;
    if (done == BATCH && (best == 0 || time < best)) best = time;
  }
  line[0] = OVER;
  waitpid(child, NULL, 0);
  munmap((void *)line, 4096);
  return best;
}

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_Segment_t segment;
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  pin(0);
  const double line_ns = CPU_COUNT(&all) > 1 ? hand_over_ns(&all) : 0;
  sched_setaffinity(0, sizeof all, &all);
  gex_Client_Init(&client, &endpoint, &team, "GEXBENCH", &argc, &argv, INIT_FLAGS);
  if (argc > 1) limit_ns = atof(argv[1]) * 1e6;
  me = gex_TM_QueryRank(team);
  pin((int)me);
  if (gex_TM_QuerySize(team) != 2) {
    if (me == 0) fprintf(stderr, "gexbench: a job of %u ranks; start two\n", (unsigned)gex_TM_QuerySize(team));
    gasnet_exit(2);
  }
  peer = 1 - me;
  gex_AM_Entry_t handlers[] = {
      {H_PING, (gex_AM_Fn_t)ping, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_SHORT, 1, NULL, "ping"},
      {H_PONG, (gex_AM_Fn_t)pong, GEX_FLAG_AM_REPLY | GEX_FLAG_AM_SHORT, 1, NULL, "pong"},
      {H_PING_MEDIUM, (gex_AM_Fn_t)ping_medium, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_MEDIUM, 0, NULL, "ping medium"},
      {H_PONG_MEDIUM, (gex_AM_Fn_t)pong_medium, GEX_FLAG_AM_REPLY | GEX_FLAG_AM_MEDIUM, 0, NULL, "pong medium"},
      {H_LONG, (gex_AM_Fn_t)long_here, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_LONG, 0, NULL, "long"},
      {H_LONG_SEEN, (gex_AM_Fn_t)long_seen, GEX_FLAG_AM_REPLY | GEX_FLAG_AM_SHORT, 0, NULL, "long seen"},
      {H_COMPUTED, (gex_AM_Fn_t)end_of_computation, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_SHORT, 0, NULL, "computed"},
  };
  gex_Segment_Attach(&segment, team, SEGMENT_BYTES);
  gex_EP_RegisterHandlers(endpoint, handlers, sizeof handlers / sizeof handlers[0]);
  void *owner, *local;
  uintptr_t bytes;
  gex_Segment_QueryBound(team, peer, &owner, &local, &bytes);
  far = owner;
  near = gex_Segment_QueryAddr(segment);
  memset(near, 1, SEGMENT_BYTES);
  memset(block, 1, sizeof block);
  gex_AD_Create(&domain, team, GEX_DT_U64, GEX_OP_FADD, 0);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  if (me == 0 && line_ns > 0) printf("cache-line %.2f ns\n", line_ns);

  run("put-8", put_8);
  run("get-8", get_8);
#ifdef GEXW_SUPPORTS_SEG_OFFSET
  run("put-8-offset", put_8_offset);
  run("get-8-offset", get_8_offset);
#endif
#ifdef GEXW_SUPPORTS_OPEN_ADDRESS_SPACE
  exchange_outside();
  run("get-8-outside", get_8_outside);
#endif
#ifdef GEXW_SUPPORTS_PUT_SIGNAL
  run("put-8-signal", put_8_signal);
#endif
#ifdef GEXW_SUPPORTS_AFTER_NEXT
  run("chain-8", chain_8);
  run("work", work);
  run("work-chain-8", work_chain_8);
#endif
  run("put-64k", put_long);
  if (local != NULL) {
    counter = (uint64_t *)(void *)((char *)local + 4096);
    run("locked-add", locked_add);
  }
  run("fetch-add", fetch_add);
  run("am-short", am_short);
  run("am-medium-1k", am_medium);
  run("am-long-64k", long_flood);
  run("strided-64x64", strided_put);
  run("unpacked-64x64", unpacked_put);
  run_together("barrier", barrier);
  run_together("reduce-8", reduce_8);
#ifdef GEXW_SUPPORTS_COLL
  run_together("exchange-8", exchange_8);
  run_together("exchange-4k", exchange_4k);
  run_together("gather-all-4k", gather_all_4k);
  run_together("scan-8", scan_8);
#endif
  run_computing("put-8-computing", put_8);
  run_computing("get-8-computing", get_8);
  run_computing("am-computing", am_short);
  gex_AD_Destroy(domain);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  gasnet_exit(0);
  return 0;
}
