/* Accesses to memory of the host, and events of complete operations, that need no call of the library. Included by
 * gasnetex.h and gasnet_ratomic.h.
 *
 * A macro takes the place of each function. Where the segment of the rank is mapped and the address lies in it, the
 * access is performed here; otherwise the function is called, which also reports errors. */
#ifndef WEFT_GEX_FAST_H
#define WEFT_GEX_FAST_H

GEX_WEFT_INLINE void *gex_weft_here(gex_TM_t tm, gex_Rank_t rank, const void *addr, size_t bytes, gex_Flags_t flags) {
  const gex_weft_segment_t *segment;
  uintptr_t at;
  if (tm != gex_weft_world.tm || rank >= gex_weft_world.ranks) return NULL;
  segment = &gex_weft_world.segments[rank];
  at = (uintptr_t)addr;
  if (!(flags & GEX_FLAG_PEER_SEG_OFFSET)) at -= segment->base;
  if (at > segment->bytes || bytes > segment->bytes - at) return NULL;
  return (void *)(segment->base + segment->shift + at);
}

/* Makes an address of an offset in the own segment. Returns 0 if the segment is not known, or does not have it. */
GEX_WEFT_INLINE int gex_weft_self(void **addr, size_t bytes, gex_Flags_t flags) {
  void *here;
  if (!(flags & GEX_FLAG_SELF_SEG_OFFSET)) return 1;
  here = gex_weft_here(gex_weft_world.tm, gex_weft_world.rank, *addr, bytes, GEX_FLAG_PEER_SEG_OFFSET);
  if (here == NULL) return 0;
  *addr = here;
  return 1;
}

/* Puts and gets if both sides are memory of this process. Returns whether it did. */
GEX_WEFT_INLINE int gex_weft_put_here(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                      gex_Flags_t flags) {
  void *there = gex_weft_here(tm, rank, dest, bytes, flags), *self = (void *)(uintptr_t)src;
  if (there == NULL || !gex_weft_self(&self, bytes, flags)) return 0;
  memcpy(there, self, bytes);
  return 1;
}
GEX_WEFT_INLINE int gex_weft_get_here(gex_TM_t tm, void *dest, gex_Rank_t rank, const void *src, size_t bytes,
                                      gex_Flags_t flags) {
  const void *there = gex_weft_here(tm, rank, src, bytes, flags);
  if (there == NULL || !gex_weft_self(&dest, bytes, flags)) return 0;
  memcpy(dest, there, bytes);
  return 1;
}

GEX_WEFT_INLINE int gex_weft_put(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                 gex_Flags_t flags) {
  if (gex_weft_put_here(tm, rank, dest, src, bytes, flags)) return 0;
  return gex_RMA_PutBlocking(tm, rank, dest, src, bytes, flags);
}

GEX_WEFT_INLINE int gex_weft_get(gex_TM_t tm, void *dest, gex_Rank_t rank, const void *src, size_t bytes,
                                 gex_Flags_t flags) {
  if (gex_weft_get_here(tm, dest, rank, src, bytes, flags)) return 0;
  return gex_RMA_GetBlocking(tm, dest, rank, src, bytes, flags);
}

/* The source of a put is free again. */
GEX_WEFT_INLINE void gex_weft_source_free(gex_Event_t *lc) {
  if ((uintptr_t)lc > (uintptr_t)GEX_EVENT_GROUP) *lc = GEX_EVENT_INVALID;
}

GEX_WEFT_INLINE int gex_weft_put_nbi(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                     gex_Event_t *lc, gex_Flags_t flags) {
  if (!gex_weft_put_here(tm, rank, dest, src, bytes, flags))
    return gex_RMA_PutNBI(tm, rank, dest, src, bytes, lc, flags);
  gex_weft_source_free(lc);
  return 0;
}

GEX_WEFT_INLINE gex_Event_t gex_weft_put_nb(gex_TM_t tm, gex_Rank_t rank, void *dest, const void *src, size_t bytes,
                                            gex_Event_t *lc, gex_Flags_t flags) {
  if (!gex_weft_put_here(tm, rank, dest, src, bytes, flags))
    return gex_RMA_PutNB(tm, rank, dest, src, bytes, lc, flags);
  gex_weft_source_free(lc);
  return GEX_EVENT_INVALID;
}

GEX_WEFT_INLINE int gex_weft_get_nbi(gex_TM_t tm, void *dest, gex_Rank_t rank, const void *src, size_t bytes,
                                     gex_Flags_t flags) {
  if (gex_weft_get_here(tm, dest, rank, src, bytes, flags)) return 0;
  return gex_RMA_GetNBI(tm, dest, rank, src, bytes, flags);
}

GEX_WEFT_INLINE gex_Event_t gex_weft_get_nb(gex_TM_t tm, void *dest, gex_Rank_t rank, const void *src, size_t bytes,
                                            gex_Flags_t flags) {
  if (gex_weft_get_here(tm, dest, rank, src, bytes, flags)) return GEX_EVENT_INVALID;
  return gex_RMA_GetNB(tm, dest, rank, src, bytes, flags);
}

/* Most events are complete when their operation returns. */
GEX_WEFT_INLINE int gex_weft_test(gex_Event_t event) {
  return event == GEX_EVENT_INVALID ? GASNET_OK : gex_Event_Test(event);
}
GEX_WEFT_INLINE void gex_weft_wait(gex_Event_t event) {
  if (event != GEX_EVENT_INVALID) gex_Event_Wait(event);
}

#define gex_Event_Test(event) gex_weft_test(event)
#define gex_Event_Wait(event) gex_weft_wait(event)
#define gex_RMA_PutBlocking(tm, rank, dest, src, bytes, flags) gex_weft_put(tm, rank, dest, src, bytes, flags)
#define gex_RMA_GetBlocking(tm, dest, rank, src, bytes, flags) gex_weft_get(tm, dest, rank, src, bytes, flags)
#define gex_RMA_PutNBI(tm, rank, dest, src, bytes, lc, flags) gex_weft_put_nbi(tm, rank, dest, src, bytes, lc, flags)
#define gex_RMA_PutNB(tm, rank, dest, src, bytes, lc, flags) gex_weft_put_nb(tm, rank, dest, src, bytes, lc, flags)
#define gex_RMA_GetNBI(tm, dest, rank, src, bytes, flags) gex_weft_get_nbi(tm, dest, rank, src, bytes, flags)
#define gex_RMA_GetNB(tm, dest, rank, src, bytes, flags) gex_weft_get_nb(tm, dest, rank, src, bytes, flags)

#endif
