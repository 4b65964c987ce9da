/* Buffers of the heap are pulled from where they are.
 *
 * A segment holds what a program has planned to share. Here the senders have ordinary buffers, of malloc(), and
 * announce their address and length by a message. The receiver gets the bytes from there. All ranks have allowed that
 * at their start, by GEXW_FLAG_OPEN_ADDRESS_SPACE. Accesses to an address that is not valid fail with a code. */
#include <gasnetex.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef WEFT_GEX
#include <gasnet_weft.h>
#endif
#ifndef GEXW_SUPPORTS_OPEN_ADDRESS_SPACE
#error "this library has no accesses outside segments"
#endif

enum { H_READY = GEX_AM_INDEX_BASE, H_DONE };

static volatile int is_ready, is_done;
static uint64_t addr, length;

static void ready_handler(gex_Token_t token, void *data, size_t bytes) {
  uint64_t words[2];
  (void)token, (void)bytes;
  memcpy(words, data, sizeof words);
  addr = words[0], length = words[1];
  is_ready = 1;
}

static void done_handler(gex_Token_t token) {
  (void)token;
  is_done = 1;
}

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_TM_t team;
  gex_Rank_t me, ranks, left, right;
  gex_AM_Entry_t table[] = {
      {H_READY, (gex_AM_Fn_t)ready_handler, GEX_FLAG_AM_MEDIUM | GEX_FLAG_AM_REQUEST, 0, NULL, "ready"},
      {H_DONE, (gex_AM_Fn_t)done_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, "done"}};
  uint64_t words[2];
  size_t bytes, at;
  char *buffer, *pulled;
  int failed;

  if (gex_Client_Init(&client, &endpoint, &team, "PULL", &argc, &argv, GEXW_FLAG_OPEN_ADDRESS_SPACE) != GASNET_OK) return 1;
  if (gex_EP_RegisterHandlers(endpoint, table, 2) != GASNET_OK) return 1;
  me = gex_TM_QueryRank(team);
  ranks = gex_TM_QuerySize(team);
  left = (me + ranks - 1) % ranks, right = (me + 1) % ranks;
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));

  /* The length is known here alone. */
  bytes = 100000 + 1000 * (size_t)me;
  buffer = (char *)malloc(bytes);
  if (buffer == NULL) gasnet_exit(1);
  for (at = 0; at < bytes; at++) buffer[at] = (char)(me + at);
  words[0] = (uintptr_t)buffer, words[1] = bytes;
  gex_AM_RequestMedium0(team, right, H_READY, words, sizeof words, GEX_EVENT_NOW, 0);

  GASNET_BLOCKUNTIL(is_ready);
  pulled = (char *)malloc((size_t)length);
  if (pulled == NULL) gasnet_exit(1);
  failed = gex_RMA_GetBlocking(team, pulled, left, (void *)(uintptr_t)addr, (size_t)length, GEX_FLAG_PEER_SEG_UNKNOWN);
  for (at = 0; at < length; at++) failed |= pulled[at] != (char)(left + at);
  gex_AM_RequestShort0(team, left, H_DONE, 0);

  /* The buffer is freed when the other rank has it. */
  GASNET_BLOCKUNTIL(is_done);
  free(buffer);
  free(pulled);
  if (me == 0) printf("rank 0 has pulled %u bytes\n", (unsigned)length);
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  gasnet_exit(failed);
  return 0;
}
