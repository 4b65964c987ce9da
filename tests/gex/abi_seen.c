/* A rank that `weft stat` shows: it sends messages, and then runs the command on itself. C99 and C++11.
 *
 *     abi_seen WEFT */
#include "job.h"

#include <stdlib.h>
#include <unistd.h>

enum { PING = 200, PONG, COUNT = 1000 };

static volatile int pongs;

GASNETT_BEGIN_EXTERNC
static void ping(gex_Token_t token) { gex_AM_ReplyShort0(token, PONG, 0); }
static void pong(gex_Token_t token) {
  (void)token;
  pongs++;
}
GASNETT_END_EXTERNC

int main(int argc, char **argv) {
  gex_AM_Entry_t table[] = {
      {PING, (gex_AM_Fn_t)ping, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_SHORT, 0, NULL, "ping"},
      {PONG, (gex_AM_Fn_t)pong, GEX_FLAG_AM_REPLY | GEX_FLAG_AM_SHORT, 0, NULL, "pong"},
  };
  char command[4096];
  int at;
  start(&argc, &argv, table, 2, 0);
  for (at = 0; at < COUNT; at++) gex_AM_RequestShort0(tm, (rank + 1) % size, PING, 0);
  GASNET_BLOCKUNTIL(pongs == COUNT);
  /* The counters are published ten times a second. */
  for (at = 0; at < 300; at++) {
    int round;
    for (round = 0; round < 300; round++) gasnet_AMPoll();
    usleep(1000);
  }
  barrier();
  if (rank == 1) {
    snprintf(command, sizeof command, "%s stat --json %d", argv[1], (int)getpid());
    fflush(stdout);
    CHECK(system(command) == 0);
  }
  barrier();
  finish();
}
