/* Remote memory access, events and implicit accesses. Included by gasnetex.h. */
#ifndef WEFT_GEX_RMA_H
#define WEFT_GEX_RMA_H

GEX_WEFT_BEGIN_C

extern int gex_RMA_PutBlocking(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                               gex_Flags_t flags);
extern int gex_RMA_PutNBI(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes, gex_Event_t *lc,
                          gex_Flags_t flags);
extern gex_Event_t gex_RMA_PutNB(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                 gex_Event_t *lc, gex_Flags_t flags);
extern int gex_RMA_GetBlocking(gex_TM_t tm, void *dest, gex_Rank_t rank, const void *src, size_t bytes,
                               gex_Flags_t flags);
extern int gex_RMA_GetNBI(gex_TM_t tm, void *dest, gex_Rank_t rank, const void *src, size_t bytes, gex_Flags_t flags);
extern gex_Event_t gex_RMA_GetNB(gex_TM_t tm, void *dest, gex_Rank_t rank, const void *src, size_t bytes,
                                 gex_Flags_t flags);
extern gex_RMA_Value_t gex_RMA_GetBlockingVal(gex_TM_t tm, gex_Rank_t rank, const void *src, size_t bytes,
                                              gex_Flags_t flags);
extern int gex_RMA_PutBlockingVal(gex_TM_t tm, gex_Rank_t rank, void *dest, gex_RMA_Value_t value, size_t bytes,
                                  gex_Flags_t flags);
extern int gex_RMA_PutNBIVal(gex_TM_t tm, gex_Rank_t rank, void *dest, gex_RMA_Value_t value, size_t bytes,
                             gex_Flags_t flags);
extern gex_Event_t gex_RMA_PutNBVal(gex_TM_t tm, gex_Rank_t rank, void *dest, gex_RMA_Value_t value, size_t bytes,
                                    gex_Flags_t flags);

/* Events. A test returns 0 when it succeeds, and GASNET_ERR_NOT_READY otherwise. */
extern int gex_Event_Test(gex_Event_t event);
extern void gex_Event_Wait(gex_Event_t event);
extern int gex_Event_TestSome(gex_Event_t *events, size_t count, gex_Flags_t flags);
extern void gex_Event_WaitSome(gex_Event_t *events, size_t count, gex_Flags_t flags);
extern int gex_Event_TestAll(gex_Event_t *events, size_t count, gex_Flags_t flags);
extern void gex_Event_WaitAll(gex_Event_t *events, size_t count, gex_Flags_t flags);
extern gex_Event_t gex_Event_QueryLeaf(gex_Event_t root, gex_EC_t category);

/* Implicit accesses of the calling thread. */
extern int gex_NBI_Test(gex_EC_t mask, gex_Flags_t flags);
extern void gex_NBI_Wait(gex_EC_t mask, gex_Flags_t flags);
extern void gex_NBI_BeginAccessRegion(gex_Flags_t flags);
extern gex_Event_t gex_NBI_EndAccessRegion(gex_Flags_t flags);

/* The barrier of a team. */
extern gex_Event_t gex_Coll_BarrierNB(gex_TM_t tm, gex_Flags_t flags);
extern void gex_Coll_BarrierBlocking(gex_TM_t tm, gex_Flags_t flags);

GEX_WEFT_END_C

#endif
