/* Ranks that wait for an end from outside. */
#include "core.h"

int main(int argc, char **argv) {
  start(&argc, &argv);
  barrier();
  if (me == 0) {
    printf("up\n");
    fflush(stdout);
  }
  for (;;) gasnet_AMPoll();
}
