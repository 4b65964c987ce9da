/* Assertions that count. A program ends with check_result(). */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int check_failures, check_count;

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    check_count++;                                                                                                     \
    if (!(condition)) {                                                                                                \
      printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                                             \
      fflush(stdout);                                                                                                  \
      check_failures++;                                                                                                \
    }                                                                                                                  \
  } while (0)

/* Prints the number of checks, and returns the exit status. */
static inline int check_result(void) {
  printf("%d checks, %d failures\n", check_count, check_failures);
  fflush(stdout);
  return check_failures != 0;
}

#endif
