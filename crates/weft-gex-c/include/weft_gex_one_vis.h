/* GASNet-1: accesses to several pieces of memory. Included by gasnet.h. */
#ifndef WEFT_GEX_ONE_VIS_H
#define WEFT_GEX_ONE_VIS_H

GEX_WEFT_BEGIN_C

/* The three forms of an access: blocking, with a handle, implicit. `to` are its parameters, `pass` what they become. */
#define GEX_WEFT_ONE_VIS(name, call, to, pass)                                                                         \
  GEX_WEFT_INLINE void gasnet_##name##_bulk to { (void)gex_VIS_##call##Blocking pass; }                                \
  GEX_WEFT_INLINE gasnet_handle_t gasnet_##name##_nb_bulk to { return gex_VIS_##call##NB pass; }                       \
  GEX_WEFT_INLINE void gasnet_##name##_nbi_bulk to { (void)gex_VIS_##call##NBI pass; }

GEX_WEFT_ONE_VIS(putv, VectorPut,
                 (gasnet_node_t node, size_t dest_count, const gasnet_memvec_t *dest_list, size_t src_count,
                  const gasnet_memvec_t *src_list),
                 (gex_weft_tm0(), node, dest_count, (const gex_Memvec_t *)(const void *)dest_list, src_count,
                  (const gex_Memvec_t *)(const void *)src_list, 0))
GEX_WEFT_ONE_VIS(getv, VectorGet,
                 (size_t dest_count, const gasnet_memvec_t *dest_list, gasnet_node_t node, size_t src_count,
                  const gasnet_memvec_t *src_list),
                 (gex_weft_tm0(), dest_count, (const gex_Memvec_t *)(const void *)dest_list, node, src_count,
                  (const gex_Memvec_t *)(const void *)src_list, 0))
GEX_WEFT_ONE_VIS(puti, IndexedPut,
                 (gasnet_node_t node, size_t dest_count, void *const *dest_list, size_t dest_bytes, size_t src_count,
                  void *const *src_list, size_t src_bytes),
                 (gex_weft_tm0(), node, dest_count, dest_list, dest_bytes, src_count, src_list, src_bytes, 0))
GEX_WEFT_ONE_VIS(geti, IndexedGet,
                 (size_t dest_count, void *const *dest_list, size_t dest_bytes, gasnet_node_t node, size_t src_count,
                  void *const *src_list, size_t src_bytes),
                 (gex_weft_tm0(), dest_count, dest_list, dest_bytes, node, src_count, src_list, src_bytes, 0))
/* Strides are unsigned here, and the first count is the number of bytes of an element. */
GEX_WEFT_ONE_VIS(puts, StridedPut,
                 (gasnet_node_t node, void *dest, const size_t *dest_strides, const void *src,
                  const size_t *src_strides, const size_t *count, size_t levels),
                 (gex_weft_tm0(), node, dest, (const ptrdiff_t *)(const void *)dest_strides, src,
                  (const ptrdiff_t *)(const void *)src_strides, count[0], count + 1, levels, 0))
GEX_WEFT_ONE_VIS(gets, StridedGet,
                 (void *dest, const size_t *dest_strides, gasnet_node_t node, const void *src,
                  const size_t *src_strides, const size_t *count, size_t levels),
                 (gex_weft_tm0(), dest, (const ptrdiff_t *)(const void *)dest_strides, node, src,
                  (const ptrdiff_t *)(const void *)src_strides, count[0], count + 1, levels, 0))
#undef GEX_WEFT_ONE_VIS

GEX_WEFT_END_C

#endif
