/* Collectives beyond those of the interface. All members of a team call them in one order, as those of the interface.
 *
 * Each returns an event that is complete when this member has its result, and gives its source back. Source and result
 * do not overlap, except in reductions and scans where they may be the same. Lengths and offsets are in bytes. */
#ifndef WEFT_GEX_X_COLL_H
#define WEFT_GEX_X_COLL_H

#include "gasnet_coll.h"

#define GEXW_SUPPORTS_COLL 1

GEX_WEFT_BEGIN_C

/* Block m of the root's source, of the given length, becomes the result of member m. */
extern gex_Event_t gexw_Coll_ScatterNB(gex_TM_t tm, gex_Rank_t root, void *dest, const void *src, size_t bytes,
                                       gex_Flags_t flags);
/* The sources of all members, in their order, become the root's result. */
extern gex_Event_t gexw_Coll_GatherNB(gex_TM_t tm, gex_Rank_t root, void *dest, const void *src, size_t bytes,
                                      gex_Flags_t flags);
/* The sources of all members, in their order, become the result of each member. */
extern gex_Event_t gexw_Coll_GatherAllNB(gex_TM_t tm, void *dest, const void *src, size_t bytes, gex_Flags_t flags);
/* Block m of member k's source becomes block k of member m's result. */
extern gex_Event_t gexw_Coll_ExchangeNB(gex_TM_t tm, void *dest, const void *src, size_t bytes, gex_Flags_t flags);

/* The same with blocks of different lengths. Lists have one entry for each member. Those of a rooted collective are the
 * root's, and other members may pass NULL. The lengths on both sides must agree. */
extern gex_Event_t gexw_Coll_ScattervNB(gex_TM_t tm, gex_Rank_t root, void *dest, size_t bytes, const void *src,
                                        const size_t *src_bytes, const size_t *src_offsets, gex_Flags_t flags);
extern gex_Event_t gexw_Coll_GathervNB(gex_TM_t tm, gex_Rank_t root, void *dest, const size_t *dest_bytes,
                                       const size_t *dest_offsets, const void *src, size_t bytes, gex_Flags_t flags);
extern gex_Event_t gexw_Coll_GatherAllvNB(gex_TM_t tm, void *dest, const size_t *dest_bytes, const size_t *dest_offsets,
                                          const void *src, size_t bytes, gex_Flags_t flags);
extern gex_Event_t gexw_Coll_ExchangevNB(gex_TM_t tm, void *dest, const size_t *dest_bytes, const size_t *dest_offsets,
                                         const void *src, const size_t *src_bytes, const size_t *src_offsets,
                                         gex_Flags_t flags);

/* The source has `count` elements for each member. Member m receives the reduction of those for it. */
extern gex_Event_t gexw_Coll_ReduceScatterNB(gex_TM_t tm, void *dest, const void *src, gex_DT_t dt,
                                             size_t element_bytes, size_t count, gex_OP_t op, gex_Coll_ReduceFn_t fn,
                                             void *cdata, gex_Flags_t flags);
/* Member m receives the reduction of the sources of members 0 to m. */
extern gex_Event_t gexw_Coll_ScanNB(gex_TM_t tm, void *dest, const void *src, gex_DT_t dt, size_t element_bytes,
                                    size_t count, gex_OP_t op, gex_Coll_ReduceFn_t fn, void *cdata, gex_Flags_t flags);
/* Member m receives the reduction of the sources of members 0 to m - 1. The result of member 0 is not written. */
extern gex_Event_t gexw_Coll_ExScanNB(gex_TM_t tm, void *dest, const void *src, gex_DT_t dt, size_t element_bytes,
                                      size_t count, gex_OP_t op, gex_Coll_ReduceFn_t fn, void *cdata,
                                      gex_Flags_t flags);

GEX_WEFT_END_C

#endif
