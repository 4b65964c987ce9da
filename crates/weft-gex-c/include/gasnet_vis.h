/* Accesses to several pieces of memory in one call: vectors, indexed blocks, and strided arrays. */
#ifndef GASNET_VIS_H
#define GASNET_VIS_H

#include "gasnetex.h"

GEX_WEFT_BEGIN_C

/* Each kind of access has a blocking form, one with an event, and an implicit one. */
#define GEX_WEFT_VIS(name, parameters)                                                                                 \
  extern int gex_VIS_##name##Blocking parameters;                                                                      \
  extern gex_Event_t gex_VIS_##name##NB parameters;                                                                    \
  extern int gex_VIS_##name##NBI parameters;

GEX_WEFT_VIS(VectorPut, (gex_TM_t tm, gex_Rank_t dest_rank, size_t dest_count, const gex_Memvec_t *dest_list,
                         size_t src_count, const gex_Memvec_t *src_list, gex_Flags_t flags))
GEX_WEFT_VIS(VectorGet, (gex_TM_t tm, size_t dest_count, const gex_Memvec_t *dest_list, gex_Rank_t src_rank,
                         size_t src_count, const gex_Memvec_t *src_list, gex_Flags_t flags))
GEX_WEFT_VIS(IndexedPut,
             (gex_TM_t tm, gex_Rank_t dest_rank, size_t dest_count, void *const *dest_list, size_t dest_bytes,
              size_t src_count, void *const *src_list, size_t src_bytes, gex_Flags_t flags))
GEX_WEFT_VIS(IndexedGet,
             (gex_TM_t tm, size_t dest_count, void *const *dest_list, size_t dest_bytes, gex_Rank_t src_rank,
              size_t src_count, void *const *src_list, size_t src_bytes, gex_Flags_t flags))
GEX_WEFT_VIS(StridedPut,
             (gex_TM_t tm, gex_Rank_t dest_rank, void *dest, const ptrdiff_t *dest_strides, const void *src,
              const ptrdiff_t *src_strides, size_t element_bytes, const size_t *counts, size_t levels,
              gex_Flags_t flags))
GEX_WEFT_VIS(StridedGet,
             (gex_TM_t tm, void *dest, const ptrdiff_t *dest_strides, gex_Rank_t src_rank, const void *src,
              const ptrdiff_t *src_strides, size_t element_bytes, const size_t *counts, size_t levels,
              gex_Flags_t flags))
#undef GEX_WEFT_VIS

/* Bytes that the handler of the next put may take along. */
#define GEX_VIS_MAX_PEERCOMPLETION 127
extern void gex_VIS_SetPeerCompletionHandler(gex_AM_Index_t handler, const void *src, size_t bytes, gex_Flags_t flags);

GEX_WEFT_END_C

#endif
