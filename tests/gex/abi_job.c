/* The job, clients, endpoints, segments and teams. C99 and C++11. */
#include "job.h"

#define SEGMENT_BYTES ((uintptr_t)16 * GASNET_PAGESIZE)

static int hooks;
static void *hooked;
GASNETT_BEGIN_EXTERNC
static void attach_hook(void *address, uintptr_t bytes) {
  hooks++;
  hooked = address;
  CHECK(bytes >= SEGMENT_BYTES);
}
GASNETT_END_EXTERNC

static void system_queries(void) {
  gex_RankInfo_t *nbrhd = NULL, *host = NULL;
  gex_Rank_t nbrhd_count = 0, nbrhd_own = 9, host_count = 0, host_own = 9, a, b, c, d, i;
  const gex_ProgressThreadInfo_t *threads = NULL;
  unsigned int thread_count = 9;
  const int verbose = gex_System_GetVerboseErrors();
  CHECK(gex_System_QueryJobRank() == rank && gex_System_QueryJobSize() == size);
  gex_System_QueryNbrhdInfo(&nbrhd, &nbrhd_count, &nbrhd_own);
  gex_System_QueryHostInfo(&host, &host_count, &host_own);
  CHECK(nbrhd_count >= 1 && nbrhd_count <= host_count && host_count <= size);
  CHECK(nbrhd[nbrhd_own].gex_jobrank == rank && host[host_own].gex_jobrank == rank);
  for (i = 1; i < nbrhd_count; i++) CHECK(nbrhd[i - 1].gex_jobrank < nbrhd[i].gex_jobrank);
  gex_System_QueryMyPosition(&a, &b, &c, &d);
  CHECK(a >= 1 && b < a && c >= 1 && d < c);
  gex_System_QueryMyPosition(NULL, NULL, NULL, NULL);
#ifdef GASNET_SEQ
  CHECK(gex_System_QueryMaxThreads() == 1);
#else
  CHECK(gex_System_QueryMaxThreads() >= 256);
#endif
  CHECK(gex_System_QueryHiddenAMConcurrencyLevel() <= GASNET_HIDDEN_AM_CONCURRENCY_LEVEL);
  (void)gex_System_QueryProgressThreads(client, &thread_count, &threads, 0);
  gex_System_SetVerboseErrors(0);
  CHECK(gex_System_GetVerboseErrors() == 0);
  gex_System_SetVerboseErrors(verbose);
}

static void client_and_endpoint(void) {
  int mark;
  CHECK(client != GEX_CLIENT_INVALID && ep != GEX_EP_INVALID && tm != GEX_TM_INVALID);
  CHECK(!strcmp(gex_Client_QueryName(client), "weft-test") && gex_Client_QueryFlags(client) == 0);
  CHECK(gex_Client_QueryCData(client) == NULL);
  gex_Client_SetCData(client, &mark);
  CHECK(gex_Client_QueryCData(client) == &mark);
  CHECK(gex_EP_QueryClient(ep) == client && gex_EP_QueryIndex(ep) == 0);
  (void)gex_EP_QueryFlags(ep);
  gex_EP_SetCData(ep, &mark);
  CHECK(gex_EP_QueryCData(ep) == &mark);
  CHECK(gex_EP_QuerySegment(ep) == GEX_SEGMENT_INVALID);
}

static void team(void) {
  int mark;
  gex_EP_Location_t place;
  gex_Rank_t i;
  CHECK(gex_TM_QueryClient(tm) == client && gex_TM_QueryEP(tm) == ep && rank < size);
  (void)gex_TM_QueryFlags(tm);
  gex_TM_SetCData(tm, &mark);
  CHECK(gex_TM_QueryCData(tm) == &mark);
  for (i = 0; i < size; i++) {
    CHECK(gex_TM_TranslateRankToJobrank(tm, i) == i && gex_TM_TranslateJobrankToRank(tm, i) == i);
    place = gex_TM_TranslateRankToEP(tm, i, 0);
    CHECK(place.gex_rank == i && place.gex_ep_index == 0);
  }
  CHECK(gex_TM_TranslateJobrankToRank(tm, size) == GEX_RANK_INVALID);
  CHECK(gex_TM_Pair(ep, 0) == gex_TM_Pair(ep, 0) && gex_TM_Pair(ep, 0) != tm);
  CHECK(gex_TM_TranslateRankToJobrank(gex_TM_Pair(ep, 0), size - 1) == size - 1);
}

static void attach(void) {
  gasnet_seginfo_t *table = (gasnet_seginfo_t *)calloc(size, sizeof(*table));
  gasnet_nodeinfo_t *nodes = (gasnet_nodeinfo_t *)calloc(size, sizeof(*nodes));
  void *owner, *local;
  uintptr_t bytes;
  int mark;
  gex_Rank_t i;
  const uintptr_t most = gasnet_getMaxLocalSegmentSize();
  CHECK(most >= SEGMENT_BYTES && most % GASNET_PAGESIZE == 0 && gasnet_getMaxGlobalSegmentSize() <= most);
  CHECK(gex_Segment_QueryBound(tm, rank, &owner, &local, &bytes) != GASNET_OK);
  gasnet_client_attach_hook = attach_hook;
  OK(gex_Segment_Attach(&segment, tm, SEGMENT_BYTES));
  CHECK(segment != GEX_SEGMENT_INVALID && gex_EP_QuerySegment(ep) == segment);
  CHECK(hooks == 1 && hooked == gex_Segment_QueryAddr(segment));
  CHECK(gex_Segment_QuerySize(segment) == SEGMENT_BYTES && gex_Segment_QueryClient(segment) == client);
  (void)gex_Segment_QueryFlags(segment);
  gex_Segment_SetCData(segment, &mark);
  CHECK(gex_Segment_QueryCData(segment) == &mark);
  CHECK((uintptr_t)gex_Segment_QueryAddr(segment) % GASNET_PAGESIZE == 0);
  OK(gasnet_getSegmentInfo(table, (int)size));
  OK(gasnet_getNodeInfo(nodes, (int)size));
  for (i = 0; i < size; i++) {
    owner = local = NULL;
    OK(gex_Segment_QueryBound(tm, i, &owner, &local, &bytes));
    CHECK(owner == table[i].addr && bytes == SEGMENT_BYTES && table[i].size == bytes);
    /* Ranks on one host map each other's segments. */
    if (nodes[i].supernode == nodes[rank].supernode) CHECK(local != NULL);
    gex_Event_Wait(gex_EP_QueryBoundSegmentNB(tm, i, &owner, &local, &bytes, 0));
    CHECK(owner == table[i].addr && bytes == SEGMENT_BYTES);
    if (i == rank) {
      CHECK(owner == gex_Segment_QueryAddr(segment) && local == owner);
      memset(local, 1, bytes);
    }
  }
  free(table);
  free(nodes);
}

/* The others of a neighbourhood read at once what a rank writes to its segment. */
static void mapped(void) {
  void *owner, *local;
  uintptr_t bytes;
  gex_RankInfo_t *nbrhd;
  gex_Rank_t count, own, i;
  *(gex_Rank_t *)gex_Segment_QueryAddr(segment) = rank + 100;
  barrier();
  gex_System_QueryNbrhdInfo(&nbrhd, &count, &own);
  for (i = 0; i < count; i++) {
    OK(gex_Segment_QueryBound(tm, nbrhd[i].gex_jobrank, &owner, &local, &bytes));
    CHECK(local != NULL && *(gex_Rank_t *)local == nbrhd[i].gex_jobrank + 100);
  }
  barrier();
}

static void kept(void) {
  CHECK(!strcmp(gasnet_ErrorName(GASNET_OK), "GASNET_OK"));
  CHECK(!strcmp(gasnet_ErrorName(GASNET_ERR_NOT_READY), "GASNET_ERR_NOT_READY"));
  CHECK(strlen(gasnet_ErrorDesc(GASNET_ERR_BAD_ARG)) > 0 && gasnet_ErrorName(-5) != NULL);
  OK(gasnet_set_waitmode(GASNET_WAIT_SPIN));
  OK(gasnet_set_waitmode(GASNET_WAIT_BLOCK));
  OK(gasnet_set_waitmode(GASNET_WAIT_SPINBLOCK));
  CHECK(gasnet_set_waitmode(17) != GASNET_OK);
  CHECK(gasnet_getenv("PATH") != NULL && gasnet_getenv("WEFT_GEX_NONE") == NULL);
  OK(gasnet_AMPoll());
}

static int posted(gasnet_threadinfo_t threadinfo) {
  GASNET_POST_THREADINFO(threadinfo);
  return GASNET_GET_THREADINFO() == threadinfo;
}

int main(int argc, char **argv) {
  GASNET_BEGIN_FUNCTION();
  start(&argc, &argv, NULL, 0, 0);
  CHECK(argc >= 1 && argv[0] != NULL && posted(GASNET_GET_THREADINFO()));
  system_queries();
  client_and_endpoint();
  team();
  attach();
  mapped();
  kept();
  finish();
}
