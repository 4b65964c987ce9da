/* Endpoints with progress of their own: handlers, messages, accesses and teams of each. C99 and C++11. */
#include "job.h"

#include <gasnet_weft.h>

#define ENDPOINTS 3
#define ROUNDS 50
#define SEGMENT_BYTES ((uintptr_t)4 * GASNET_PAGESIZE)
/* Endpoint 2 is serial. */
#define SERIAL 1

static gex_EP_t endpoints[ENDPOINTS];
static gex_TM_t teams[ENDPOINTS];
static gex_Segment_t segments[ENDPOINTS];
static int requests[ENDPOINTS], replies[ENDPOINTS], bytes_seen[ENDPOINTS];

/* The endpoint that a message has reached, among those of this program. */
static int reached(gex_Token_t token) {
  gex_Token_Info_t info;
  int i;
  gex_Token_Info(token, &info, GEX_TI_ALL);
  CHECK(info.gex_srcrank < size);
  for (i = 0; i < ENDPOINTS; i++) {
    if (endpoints[i] == info.gex_ep) return i;
  }
  CHECK(!"a known endpoint");
  return 0;
}

GASNETT_BEGIN_EXTERNC
static void request(gex_Token_t token, gex_AM_Arg_t endpoint) {
  const int i = reached(token);
  CHECK(i == endpoint);
  requests[i]++;
  OK(gex_AM_ReplyShort1(token, 201, 0, i));
}
static void reply(gex_Token_t token, gex_AM_Arg_t endpoint) {
  CHECK(reached(token) == endpoint);
  replies[endpoint]++;
}
static void medium(gex_Token_t token, void *data, size_t bytes, gex_AM_Arg_t endpoint) {
  const int i = reached(token);
  CHECK(i == endpoint && ((unsigned char *)data)[bytes - 1] == 0x5a);
  bytes_seen[i] += (int)bytes;
  OK(gex_AM_ReplyMedium1(token, 203, data, bytes, GEX_EVENT_NOW, 0, endpoint));
}
static void medium_reply(gex_Token_t token, void *data, size_t bytes, gex_AM_Arg_t endpoint) {
  CHECK(reached(token) == endpoint && ((unsigned char *)data)[bytes - 1] == 0x5a);
  replies[endpoint]++;
}
static void lengthy(gex_Token_t token, void *data, size_t bytes, gex_AM_Arg_t endpoint) {
  const int i = reached(token);
  char *base = (char *)gex_Segment_QueryAddr(segments[i]);
  CHECK(i == endpoint && (char *)data >= base && (char *)data < base + SEGMENT_BYTES);
  CHECK(((unsigned char *)data)[bytes - 1] == 0x5a);
  OK(gex_AM_ReplyShort1(token, 201, 0, i));
}
/* Each endpoint has handlers of its own under one index. */
static void only_of_0(gex_Token_t token) { CHECK(reached(token) == 0); }
static void only_of_1(gex_Token_t token) { CHECK(reached(token) == 1); }
static void only_of_2(gex_Token_t token) { CHECK(reached(token) == 2); }
GASNETT_END_EXTERNC

#define ENTRY(index, function, args) {index, (gex_AM_Fn_t)function, 0, args, NULL, NULL}
static gex_AM_Fn_t only[ENDPOINTS] = {(gex_AM_Fn_t)only_of_0, (gex_AM_Fn_t)only_of_1, (gex_AM_Fn_t)only_of_2};

static void register_handlers(int i) {
  gex_AM_Entry_t table[] = {ENTRY(200, request, 1),      ENTRY(201, reply, 1),   ENTRY(202, medium, 1),
                            ENTRY(203, medium_reply, 1), ENTRY(204, lengthy, 1), ENTRY(205, only[i], 0)};
  OK(gex_EP_RegisterHandlers(endpoints[i], table, 6));
}

static gex_TM_t make_team(gex_EP_t endpoint) {
  gex_EP_Location_t members[64];
  gex_TM_t team = GEX_TM_INVALID;
  gex_Rank_t r;
  for (r = 0; r < size; r++) {
    members[r].gex_rank = r;
    members[r].gex_ep_index = gex_EP_QueryIndex(endpoint);
  }
  CHECK(gex_TM_Create(&team, 1, tm, members, size, NULL, 0, 0) == 0);
  CHECK(gex_TM_QueryEP(team) == endpoint && gex_TM_QuerySize(team) == size && gex_TM_QueryRank(team) == rank);
  CHECK(gex_TM_TranslateRankToEP(team, size - 1, 0).gex_ep_index == gex_EP_QueryIndex(endpoint));
  return team;
}

static void create(void) {
  int i;
  for (i = 0; i < ENDPOINTS; i++) {
    OK(gex_EP_Create(&endpoints[i], client, GEX_EP_CAPABILITY_ALL, i == SERIAL ? GEXW_FLAG_EP_SERIAL : 0));
    CHECK(gex_EP_QueryIndex(endpoints[i]) == i + 1);
    register_handlers(i);
    OK(gex_Segment_Create(&segments[i], client, NULL, SEGMENT_BYTES, GEX_MK_HOST, 0));
    OK(gex_EP_BindSegment(endpoints[i], segments[i], 0));
    teams[i] = make_team(endpoints[i]);
  }
  OK(gex_EP_PublishBoundSegment(tm, endpoints, ENDPOINTS, 0));
}

static void message_all(int i) {
  static unsigned char data[4096];
  gex_Rank_t peer;
  int round;
  memset(data, 0x5a, sizeof data);
  for (round = 0; round < ROUNDS; round++) {
    for (peer = 0; peer < size; peer++) {
      void *owner = NULL;
      uintptr_t bytes;
      const int before = replies[i];
      gex_Event_Wait(gex_EP_QueryBoundSegmentNB(teams[i], peer, &owner, NULL, &bytes, 0));
      OK(gex_AM_RequestShort1(teams[i], peer, 200, 0, i));
      OK(gex_AM_RequestMedium1(teams[i], peer, 202, data, (size_t)round * 80 + 1, GEX_EVENT_NOW, 0, i));
      OK(gex_AM_RequestLong1(teams[i], peer, 204, data, 512, (char *)owner + 512 * rank, GEX_EVENT_NOW, 0, i));
      OK(gex_AM_RequestShort0(teams[i], peer, 205, 0));
      GEXW_EP_BLOCKUNTIL(endpoints[i], replies[i] == before + 3);
    }
  }
}

/* Every rank puts into every segment, and reads it back, by each endpoint. */
static void access_all(int i) {
  gex_Rank_t peer;
  for (peer = 0; peer < size; peer++) {
    void *owner = NULL;
    uintptr_t bytes;
    uint64_t value = rank * 100 + (uint64_t)i, in = 0;
    gex_Event_Wait(gex_EP_QueryBoundSegmentNB(teams[i], peer, &owner, NULL, &bytes, 0));
    gex_Event_Wait(gex_RMA_PutNB(teams[i], peer, (uint64_t *)owner + rank, &value, 8, GEX_EVENT_NOW, 0));
    OK(gex_RMA_GetBlocking(teams[i], &in, peer, (uint64_t *)owner + rank, 8, 0));
    CHECK(in == value);
  }
}

/* A team in which each rank has two endpoints. */
static void twins(void) {
  gex_EP_Location_t members[128];
  gex_TM_t both[2] = {GEX_TM_INVALID, GEX_TM_INVALID};
  gex_Rank_t r;
  const int before = replies[0];
  for (r = 0; r < size; r++) {
    members[2 * r].gex_rank = members[2 * r + 1].gex_rank = r;
    members[2 * r].gex_ep_index = gex_EP_QueryIndex(endpoints[0]);
    members[2 * r + 1].gex_ep_index = gex_EP_QueryIndex(endpoints[2]);
  }
  CHECK(gex_TM_Create(both, 2, tm, members, 2 * size, NULL, 0, 0) == 0);
  CHECK(gex_TM_QueryRank(both[0]) == 2 * rank && gex_TM_QueryRank(both[1]) == 2 * rank + 1);
  CHECK(gex_TM_QuerySize(both[1]) == 2 * size && gex_TM_QueryEP(both[1]) == endpoints[2]);
  OK(gex_AM_RequestShort1(both[0], (2 * rank + 2) % (2 * size), 200, 0, 0));
  GASNET_BLOCKUNTIL(replies[0] == before + 1);
  barrier();
  gex_TM_Destroy(both[0], NULL, GEX_FLAG_GLOBALLY_QUIESCED);
  gex_TM_Destroy(both[1], NULL, GEX_FLAG_GLOBALLY_QUIESCED);
}

/* Endpoints are made and destroyed more often than there are numbers for them. */
static void renew(void) {
  int i;
  for (i = 0; i < 40; i++) {
    gex_EP_t made;
    gex_TM_t team;
    gex_EP_t before = endpoints[0];
    const int seen = replies[0];
    OK(gex_EP_Create(&made, client, GEX_EP_CAPABILITY_AM, i % 2 ? GEXW_FLAG_EP_SERIAL : 0));
    CHECK(gex_EP_QueryIndex(made) == ENDPOINTS + 1);
    endpoints[0] = made;
    register_handlers(0);
    team = make_team(made);
    if (i % 8 == 0) {
      OK(gex_AM_RequestShort1(team, (rank + 1) % size, 200, 0, 0));
      GEXW_EP_BLOCKUNTIL(made, replies[0] == seen + 1);
      gasnet_barrier_notify(0, GASNET_BARRIERFLAG_ANONYMOUS);
      while (gasnet_barrier_try(0, GASNET_BARRIERFLAG_ANONYMOUS) != GASNET_OK) OK(gexw_EP_Poll(made, 0));
    }
    gex_TM_Destroy(team, NULL, 0);
    OK(gexw_EP_Destroy(made, 0));
    endpoints[0] = before;
    barrier();
  }
}

static void refusals(void) {
  gex_EP_t made;
  const int verbose = gex_System_GetVerboseErrors();
  gex_System_SetVerboseErrors(0);
  CHECK(gex_EP_Create(&made, client, 0, 0) == GASNET_ERR_BAD_ARG);
  CHECK(gex_EP_Create(&made, client, 64, 0) == GASNET_ERR_BAD_ARG);
  CHECK(gex_EP_Create(&made, client, GEX_EP_CAPABILITY_AM, 1u << 30) == GASNET_ERR_BAD_ARG);
  CHECK(gexw_EP_Destroy(ep, 0) == GASNET_ERR_BAD_ARG);
  CHECK(gexw_EP_Destroy(GEX_EP_INVALID, 0) == GASNET_ERR_BAD_ARG);
  CHECK(gexw_EP_Destroy(endpoints[0], 1) == GASNET_ERR_BAD_ARG);
  gex_System_SetVerboseErrors(verbose);
}

/* Polls all endpoints until all ranks are here. */
static void meet(void) {
  gasnet_barrier_notify(0, GASNET_BARRIERFLAG_ANONYMOUS);
  while (gasnet_barrier_try(0, GASNET_BARRIERFLAG_ANONYMOUS) != GASNET_OK) OK(gexw_EP_Poll(endpoints[SERIAL], 0));
}

int main(int argc, char **argv) {
  int i;
  start(&argc, &argv, NULL, 0, GASNET_PAGESIZE);
  create();
  refusals();
  meet();
  for (i = 0; i < ENDPOINTS; i++) {
    message_all(i);
    meet();
    CHECK(requests[i] == ROUNDS * (int)size && bytes_seen[i] > 0);
    access_all(i);
    meet();
  }
  gex_Event_Wait(gex_Coll_BarrierNB(teams[0], 0));
  twins();
  renew();
  for (i = 0; i < ENDPOINTS; i++) gex_TM_Destroy(teams[i], NULL, 0);
  for (i = 0; i < ENDPOINTS; i++) OK(gexw_EP_Destroy(endpoints[i], 0));
  finish();
}
