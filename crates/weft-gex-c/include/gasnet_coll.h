/* Collectives. gasnetex.h has the barrier. */
#ifndef GASNET_COLL_H
#define GASNET_COLL_H

#include "gasnetex.h"

GEX_WEFT_BEGIN_C

extern gex_Event_t gex_Coll_BroadcastNB(gex_TM_t tm, gex_Rank_t root, void *dest, const void *src, size_t bytes,
                                        gex_Flags_t flags);
extern gex_Event_t gex_Coll_ReduceToOneNB(gex_TM_t tm, gex_Rank_t root, void *dest, const void *src, gex_DT_t dt,
                                          size_t element_bytes, size_t count, gex_OP_t op, gex_Coll_ReduceFn_t fn,
                                          void *cdata, gex_Flags_t flags);
extern gex_Event_t gex_Coll_ReduceToAllNB(gex_TM_t tm, void *dest, const void *src, gex_DT_t dt, size_t element_bytes,
                                          size_t count, gex_OP_t op, gex_Coll_ReduceFn_t fn, void *cdata,
                                          gex_Flags_t flags);

GEX_WEFT_END_C

#endif
