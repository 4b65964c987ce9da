/* Atomic domains: every type with every operation, counters that all ranks change, and kinds of memory. C99 and C++11. */
#include "job.h"

#include <gasnet_mk.h>
#include <gasnet_ratomic.h>

#define SEGMENT_BYTES ((uintptr_t)64 * 1024)
#define ROUNDS 500

#define PLAIN                                                                                                          \
  (GEX_OP_SET | GEX_OP_CAS | GEX_OP_ADD | GEX_OP_SUB | GEX_OP_MULT | GEX_OP_MIN | GEX_OP_MAX | GEX_OP_INC | GEX_OP_DEC)
#define BITS (GEX_OP_AND | GEX_OP_OR | GEX_OP_XOR)
#define REAL_OPS (PLAIN | GEX_OP_TO_FETCHING(PLAIN) | GEX_OP_GET)
#define INTEGER_OPS (REAL_OPS | BITS | GEX_OP_TO_FETCHING(BITS))

static gex_Rank_t peer;
/* A cell of the peer's segment that no other rank uses. */
static void *cell;

/* One operation in its plain form with an event, and in its fetching form, implicit. `before` and `after` are the values
 * of the cell. */
#define TRY(NAME, type, ad, op, a, b, before, after)                                                                   \
  do {                                                                                                                 \
    type fetched = (type)77, result = (type)0;                                                                         \
    gex_Event_Wait(gex_AD_OpNB_##NAME(ad, NULL, peer, cell, GEX_OP_SET, (type)(before), (type)0, 0));                  \
    gex_Event_Wait(gex_AD_OpNB_##NAME(ad, NULL, peer, cell, op, (type)(a), (type)(b), 0));                             \
    gex_Event_Wait(gex_AD_OpNB_##NAME(ad, &result, peer, cell, GEX_OP_GET, (type)0, (type)0, 0));                      \
    CHECK(result == (type)(after));                                                                                    \
    CHECK(gex_AD_OpNBI_##NAME(ad, NULL, peer, cell, GEX_OP_SET, (type)(before), (type)0, 0) == 0);                     \
    gex_NBI_Wait(GEX_EC_PUT, 0);                                                                                       \
    CHECK(gex_AD_OpNBI_##NAME(ad, &fetched, peer, cell, GEX_OP_TO_FETCHING(op), (type)(a), (type)(b), 0) == 0);        \
    gex_NBI_Wait(GEX_EC_RMW, 0);                                                                                       \
    CHECK(fetched == (type)(before));                                                                                  \
    CHECK(gex_AD_OpNBI_##NAME(ad, &result, peer, cell, GEX_OP_GET, (type)0, (type)0,                                   \
                              GEX_FLAG_AD_ACQ | GEX_FLAG_AD_REL) == 0);                                                \
    gex_NBI_Wait(GEX_EC_GET, 0);                                                                                       \
    CHECK(result == (type)(after));                                                                                    \
  } while (0)

#define TRY_PLAIN(NAME, type, ad)                                                                                      \
  TRY(NAME, type, ad, GEX_OP_SET, 9, 0, 5, 9);                                                                         \
  TRY(NAME, type, ad, GEX_OP_CAS, 5, 8, 5, 8);                                                                         \
  TRY(NAME, type, ad, GEX_OP_CAS, 6, 8, 5, 5);                                                                         \
  TRY(NAME, type, ad, GEX_OP_ADD, 3, 0, 5, 8);                                                                         \
  TRY(NAME, type, ad, GEX_OP_SUB, 3, 0, 5, 2);                                                                         \
  TRY(NAME, type, ad, GEX_OP_MULT, 3, 0, 5, 15);                                                                       \
  TRY(NAME, type, ad, GEX_OP_MIN, 3, 0, 5, 3);                                                                         \
  TRY(NAME, type, ad, GEX_OP_MIN, 7, 0, 5, 5);                                                                         \
  TRY(NAME, type, ad, GEX_OP_MAX, 3, 0, 5, 5);                                                                         \
  TRY(NAME, type, ad, GEX_OP_MAX, 7, 0, 5, 7);                                                                         \
  TRY(NAME, type, ad, GEX_OP_INC, 0, 0, 5, 6);                                                                         \
  TRY(NAME, type, ad, GEX_OP_DEC, 0, 0, 5, 4)
#define TRY_BITS(NAME, type, ad)                                                                                       \
  TRY(NAME, type, ad, GEX_OP_AND, 6, 0, 5, 4);                                                                         \
  TRY(NAME, type, ad, GEX_OP_OR, 6, 0, 5, 7);                                                                          \
  TRY(NAME, type, ad, GEX_OP_XOR, 6, 0, 5, 3)

#define TRY_TYPE(NAME, type, ops, tries)                                                                               \
  do {                                                                                                                 \
    gex_AD_t ad = GEX_AD_INVALID;                                                                                      \
    gex_AD_Create(&ad, tm, GEX_DT_##NAME, ops, favour);                                                                \
    CHECK(ad != GEX_AD_INVALID && gex_AD_QueryDT(ad) == GEX_DT_##NAME && gex_AD_QueryTM(ad) == tm);                    \
    CHECK((gex_AD_QueryOps(ad) & (ops)) == (ops));                                                                     \
    (void)gex_AD_QueryFlags(ad);                                                                                       \
    gex_AD_SetCData(ad, &ad);                                                                                          \
    CHECK(gex_AD_QueryCData(ad) == &ad);                                                                               \
    for (peer = 0; peer < size; peer++) {                                                                              \
      cell = (char *)segment_of(peer) + 64 * (size_t)(rank + 1);                                                       \
      tries;                                                                                                           \
    }                                                                                                                  \
    barrier();                                                                                                         \
    gex_AD_Destroy(ad);                                                                                                \
  } while (0)

static void operations(gex_Flags_t favour) {
  TRY_TYPE(I32, int32_t, INTEGER_OPS, TRY_PLAIN(I32, int32_t, ad); TRY_BITS(I32, int32_t, ad);
           TRY(I32, int32_t, ad, GEX_OP_MIN, -3, 0, 5, -3); TRY(I32, int32_t, ad, GEX_OP_MAX, 5, 0, -7, 5));
  TRY_TYPE(U32, uint32_t, INTEGER_OPS, TRY_PLAIN(U32, uint32_t, ad); TRY_BITS(U32, uint32_t, ad);
           TRY(U32, uint32_t, ad, GEX_OP_MIN, -3, 0, 5, 5); TRY(U32, uint32_t, ad, GEX_OP_ADD, -6, 0, 5, -1));
  TRY_TYPE(I64, int64_t, INTEGER_OPS, TRY_PLAIN(I64, int64_t, ad); TRY_BITS(I64, int64_t, ad);
           TRY(I64, int64_t, ad, GEX_OP_MIN, -3, 0, 5, -3));
  TRY_TYPE(U64, uint64_t, INTEGER_OPS, TRY_PLAIN(U64, uint64_t, ad); TRY_BITS(U64, uint64_t, ad);
           TRY(U64, uint64_t, ad, GEX_OP_MAX, -3, 0, 5, -3));
  TRY_TYPE(FLT, float, REAL_OPS, TRY_PLAIN(FLT, float, ad); TRY(FLT, float, ad, GEX_OP_MULT, 0.5, 0, 5, 2.5));
  TRY_TYPE(DBL, double, REAL_OPS, TRY_PLAIN(DBL, double, ad); TRY(DBL, double, ad, GEX_OP_ADD, 0.25, 0, 5, 5.25));
}

/* All ranks count in one cell of rank 0, and take tickets from another. */
static void contended(void) {
  gex_AD_t ad;
  uint64_t ticket, last = 0, total = 0;
  char *base = (char *)segment_of(0) + SEGMENT_BYTES / 2;
  int i;
  gex_AD_Create(&ad, tm, GEX_DT_U64, GEX_OP_INC | GEX_OP_FADD | GEX_OP_GET | GEX_OP_FCAS, 0);
  barrier();
  for (i = 0; i < ROUNDS; i++) {
    uint64_t seen, now;
    gex_Event_Wait(gex_AD_OpNB_U64(ad, NULL, 0, base, GEX_OP_INC, 0, 0, 0));
    gex_Event_Wait(gex_AD_OpNB_U64(ad, &ticket, 0, base + 8, GEX_OP_FADD, 1, 0, GEX_FLAG_RANK_IS_JOBRANK));
    CHECK(i == 0 || ticket > last);
    last = ticket;
    /* A swap that succeeds once for each rank and round. */
    gex_Event_Wait(gex_AD_OpNB_U64(ad, &now, 0, base + 16, GEX_OP_GET, 0, 0, 0));
    do {
      seen = now;
      gex_Event_Wait(gex_AD_OpNB_U64(ad, &now, 0, base + 16, GEX_OP_CSWAP, seen, seen + 3, 0));
    } while (now != seen);
  }
  barrier();
  for (i = 0; i < 3; i++) {
    gex_Event_Wait(gex_AD_OpNB_U64(ad, &total, 0, base + 8 * i, GEX_OP_GET, 0, 0, 0));
    CHECK(total == (uint64_t)ROUNDS * size * (i == 2 ? 3 : 1));
  }
  barrier();
  gex_AD_Destroy(ad);
}

/* weft has no memory but the host's. */
static void kinds(void) {
  gex_MK_Create_args_t args;
  gex_MK_t kind = GEX_MK_INVALID;
  const int verbose = gex_System_GetVerboseErrors();
  memset(&args, 0, sizeof(args));
  args.gex_class = GEX_MK_CLASS_CUDA_UVA;
  args.gex_args.gex_class_cuda_uva.gex_CUdevice = 0;
  gex_System_SetVerboseErrors(0);
  CHECK(gex_MK_Create(&kind, client, &args, 0) != GASNET_OK && kind == GEX_MK_INVALID);
  gex_System_SetVerboseErrors(verbose);
}

int main(int argc, char **argv) {
  start(&argc, &argv, NULL, 0, SEGMENT_BYTES);
  memset(gex_Segment_QueryAddr(segment), 0, SEGMENT_BYTES);
  barrier();
  operations(0);
  operations(GEX_FLAG_AD_FAVOR_MY_NBRHD);
  operations(GEX_FLAG_AD_FAVOR_REMOTE);
  contended();
  kinds();
  finish();
}
