/* Atomic domains: atomic operations on memory of other ranks. */
#ifndef GASNET_RATOMIC_H
#define GASNET_RATOMIC_H

#include "gasnetex.h"

GEX_WEFT_BEGIN_C

extern void gex_AD_Create(gex_AD_t *ad, gex_TM_t tm, gex_DT_t dt, gex_OP_t ops, gex_Flags_t flags);
extern void gex_AD_Destroy(gex_AD_t ad);
extern gex_Flags_t gex_AD_QueryFlags(gex_AD_t ad);
extern gex_TM_t gex_AD_QueryTM(gex_AD_t ad);
extern gex_DT_t gex_AD_QueryDT(gex_AD_t ad);
extern gex_OP_t gex_AD_QueryOps(gex_AD_t ad);
extern void gex_AD_SetCData(gex_AD_t ad, const void *cdata);
extern void *gex_AD_QueryCData(gex_AD_t ad);

#define GEX_WEFT_AD_OP(name, type)                                                                                     \
  extern gex_Event_t gex_AD_OpNB_##name(gex_AD_t ad, type *result, gex_Rank_t rank, void *target, gex_OP_t op,         \
                                        type operand1, type operand2, gex_Flags_t flags);                              \
  extern int gex_AD_OpNBI_##name(gex_AD_t ad, type *result, gex_Rank_t rank, void *target, gex_OP_t op, type operand1, \
                                 type operand2, gex_Flags_t flags);
GEX_WEFT_AD_OP(I32, int32_t)
GEX_WEFT_AD_OP(U32, uint32_t)
GEX_WEFT_AD_OP(I64, int64_t)
GEX_WEFT_AD_OP(U64, uint64_t)
GEX_WEFT_AD_OP(FLT, float)
GEX_WEFT_AD_OP(DBL, double)
#undef GEX_WEFT_AD_OP

GEX_WEFT_END_C

#include "weft_gex_fast_ad.h"

#endif
