/* All ranks sort their keys together: each rank gets a range of the keys, in order.
 *
 * The collectives of weft: an exchange of counts, an exchange of blocks of different lengths, and a scan.
 *
 *   cc -o sort sort.c $(pkg-config --cflags --libs gasnet-smp-seq) && gasnetrun_smp -n 4 ./sort */
#include <gasnet_weft.h>
#include <stdio.h>
#include <stdlib.h>

#define KEYS 10000

static int compare(const void *one, const void *two) {
  const uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)two;
  return (a > b) - (a < b);
}

int main(int argc, char **argv) {
  gex_Client_t client;
  gex_EP_t endpoint;
  gex_TM_t team;
  gex_Rank_t me, ranks, r;
  uint32_t *keys, *mine, state, last = 0, least;
  size_t *given, *given_at, *taken, *taken_at, bytes, i;
  uint64_t count, before = 0, total;
  int sorted = 1;

  if (gex_Client_Init(&client, &endpoint, &team, "SORT", &argc, &argv, 0) != GASNET_OK) return 1;
  me = gex_TM_QueryRank(team);
  ranks = gex_TM_QuerySize(team);
  keys = (uint32_t *)malloc(KEYS * sizeof(*keys));
  given = (size_t *)calloc(4 * (size_t)ranks, sizeof(*given));
  given_at = given + ranks;
  taken = given_at + ranks;
  taken_at = taken + ranks;

  /* Keys from 0 to 2^31, and the rank that gets each. Sorted keys of a rank lie together. */
  for (i = 0, state = me + 1; i < KEYS; i++) {
    state = state * 1664525u + 1013904223u;
    keys[i] = state >> 1;
  }
  qsort(keys, KEYS, sizeof(*keys), compare);
  for (i = 0; i < KEYS; i++) given[(uint64_t)keys[i] * ranks >> 31] += sizeof(*keys);
  gex_Event_Wait(gexw_Coll_ExchangeNB(team, taken, given, sizeof(*given), 0));
  for (r = 1; r < ranks; r++) {
    given_at[r] = given_at[r - 1] + given[r - 1];
    taken_at[r] = taken_at[r - 1] + taken[r - 1];
  }
  bytes = taken_at[ranks - 1] + taken[ranks - 1];
  mine = (uint32_t *)malloc(bytes + 1);
  gex_Event_Wait(gexw_Coll_ExchangevNB(team, mine, taken, taken_at, keys, given, given_at, 0));
  count = bytes / sizeof(*mine);
  qsort(mine, (size_t)count, sizeof(*mine), compare);

  /* The place of the first key of this rank in the order of all, and the largest key of the ranks before. */
  gex_Event_Wait(gexw_Coll_ExScanNB(team, &before, &count, GEX_DT_U64, 8, 1, GEX_OP_ADD, NULL, NULL, 0));
  gex_Event_Wait(gex_Coll_ReduceToAllNB(team, &total, &count, GEX_DT_U64, 8, 1, GEX_OP_ADD, NULL, NULL, 0));
  least = count ? mine[count - 1] : 0;
  gex_Event_Wait(gexw_Coll_ExScanNB(team, &last, &least, GEX_DT_U32, 4, 1, GEX_OP_MAX, NULL, NULL, 0));
  sorted = total == (uint64_t)KEYS * ranks && (count == 0 || mine[0] >= last);
  printf("rank %u has keys %lu to %lu%s\n", (unsigned)me, (unsigned long)before, (unsigned long)(before + count),
         sorted ? "" : ", which are not in order");
  gex_Event_Wait(gex_Coll_BarrierNB(team, 0));
  free(mine);
  free(given);
  free(keys);
  gasnet_exit(!sorted);
  return 0;
}
