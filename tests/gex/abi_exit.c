/* Ends of jobs. The first argument is the situation, the second the status that the job must have. C99 and C++11. */
#include "job.h"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static int code;

GASNETT_BEGIN_EXTERNC
static void end_handler(gex_Token_t token) {
  (void)token;
  gasnet_exit(code);
}
static void end_signal(int signal) {
  (void)signal;
  gasnet_exit(code);
}
static void *end_thread(void *unused) {
  (void)unused;
  gasnet_exit(code);
}
GASNETT_END_EXTERNC

static gex_AM_Entry_t table[] = {
    {200, (gex_AM_Fn_t)end_handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 0, NULL, NULL},
};

static GASNETT_NORETURN void wait_for_the_end(void) {
  for (;;) GASNET_BLOCKUNTIL(0);
}

int main(int argc, char **argv) {
  const char *situation;
  start(&argc, &argv, table, 1, GASNET_PAGESIZE);
  situation = argc > 1 ? argv[1] : "";
  code = argc > 2 ? atoi(argv[2]) : 0;
  barrier();
  if (!strcmp(situation, "all")) gasnet_exit(code);
  if (!strcmp(situation, "return")) return code;
  if (!strcmp(situation, "exit")) exit(code);
  if (!strcmp(situation, "last-waits-in-barrier")) {
    if (rank != size - 1) gasnet_exit(code);
    barrier();
    barrier();
  }
  if (rank != 0) {
    if (!strcmp(situation, "one-others-sleep")) {
      for (;;) pause();
    }
    wait_for_the_end();
  }
  if (!strcmp(situation, "one")) gasnet_exit(code);
  if (!strcmp(situation, "one-others-sleep")) gasnet_exit(code);
  if (!strcmp(situation, "handler")) {
    OK(gex_AM_RequestShort0(tm, size - 1, 200, 0));
    wait_for_the_end();
  }
  if (!strcmp(situation, "own-handler")) OK(gex_AM_RequestShort0(tm, rank, 200, 0));
  if (!strcmp(situation, "signal-handler")) {
    gasnett_reghandler(SIGUSR1, end_signal);
    raise(SIGUSR1);
  }
  if (!strcmp(situation, "quit-handler")) {
    /* A fatal signal lets the client's handler of SIGQUIT choose the code. */
    gasnett_reghandler(SIGQUIT, end_signal);
    raise(SIGINT);
  }
  if (!strcmp(situation, "killed")) raise(SIGKILL);
  if (!strcmp(situation, "abort")) abort();
  if (!strcmp(situation, "thread")) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, end_thread, NULL));
    wait_for_the_end();
  }
  printf("unknown situation %s\n", situation);
  gasnet_exit(99);
}
