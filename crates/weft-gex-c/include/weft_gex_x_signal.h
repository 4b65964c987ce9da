/* Puts that tell the target. Included by gasnet_weft.h. */
#ifndef WEFT_GEX_X_SIGNAL_H
#define WEFT_GEX_X_SIGNAL_H

#define GEXW_SUPPORTS_PUT_SIGNAL 1

GEX_WEFT_BEGIN_C

/* Puts, and then performs `op` with `value` on the number at `signal`, an address at the target as `dest`. `op` is
 * GEX_OP_SET, GEX_OP_ADD, or another integer operation that fetches nothing. A thread that reads the new number there,
 * with acquire order, finds the data. The operation is complete when both are performed. */
extern gex_Event_t gexw_RMA_PutSignalNB(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                        uint64_t *signal, uint64_t value, gex_OP_t op, gex_Event_t *lc,
                                        gex_Flags_t flags);
extern int gexw_RMA_PutSignalNBI(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                 uint64_t *signal, uint64_t value, gex_OP_t op, gex_Event_t *lc, gex_Flags_t flags);
extern int gexw_RMA_PutSignalBlocking(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                      uint64_t *signal, uint64_t value, gex_OP_t op, gex_Flags_t flags);

GEX_WEFT_END_C

#endif
