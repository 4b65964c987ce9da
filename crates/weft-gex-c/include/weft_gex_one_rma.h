/* GASNet-1: puts, gets, and their completion. Included by gasnet.h. */
#ifndef WEFT_GEX_ONE_RMA_H
#define WEFT_GEX_ONE_RMA_H

GEX_WEFT_BEGIN_C

/* Puts. The source of a call without `_bulk` may be written again when it returns. */
GEX_WEFT_INLINE void gasnet_put(gasnet_node_t node, void *dest, const void *src, size_t bytes) {
  (void)gex_RMA_PutBlocking(gex_weft_tm0(), node, dest, src, bytes, 0);
}
GEX_WEFT_INLINE void gasnet_put_bulk(gasnet_node_t node, void *dest, const void *src, size_t bytes) {
  gasnet_put(node, dest, src, bytes);
}
GEX_WEFT_INLINE gasnet_handle_t gasnet_put_nb(gasnet_node_t node, void *dest, const void *src, size_t bytes) {
  return gex_RMA_PutNB(gex_weft_tm0(), node, dest, src, bytes, GEX_EVENT_NOW, 0);
}
GEX_WEFT_INLINE gasnet_handle_t gasnet_put_nb_bulk(gasnet_node_t node, void *dest, const void *src, size_t bytes) {
  return gex_RMA_PutNB(gex_weft_tm0(), node, dest, src, bytes, GEX_EVENT_DEFER, 0);
}
GEX_WEFT_INLINE void gasnet_put_nbi(gasnet_node_t node, void *dest, const void *src, size_t bytes) {
  (void)gex_RMA_PutNBI(gex_weft_tm0(), node, dest, src, bytes, GEX_EVENT_NOW, 0);
}
GEX_WEFT_INLINE void gasnet_put_nbi_bulk(gasnet_node_t node, void *dest, const void *src, size_t bytes) {
  (void)gex_RMA_PutNBI(gex_weft_tm0(), node, dest, src, bytes, GEX_EVENT_DEFER, 0);
}
GEX_WEFT_INLINE void gasnet_put_val(gasnet_node_t node, void *dest, gasnet_register_value_t value, size_t bytes) {
  (void)gex_RMA_PutBlockingVal(gex_weft_tm0(), node, dest, value, bytes, 0);
}
GEX_WEFT_INLINE gasnet_handle_t gasnet_put_nb_val(gasnet_node_t node, void *dest, gasnet_register_value_t value,
                                                  size_t bytes) {
  return gex_RMA_PutNBVal(gex_weft_tm0(), node, dest, value, bytes, 0);
}
GEX_WEFT_INLINE void gasnet_put_nbi_val(gasnet_node_t node, void *dest, gasnet_register_value_t value, size_t bytes) {
  (void)gex_RMA_PutNBIVal(gex_weft_tm0(), node, dest, value, bytes, 0);
}

/* Gets. */
GEX_WEFT_INLINE void gasnet_get(void *dest, gasnet_node_t node, const void *src, size_t bytes) {
  (void)gex_RMA_GetBlocking(gex_weft_tm0(), dest, node, src, bytes, 0);
}
GEX_WEFT_INLINE void gasnet_get_bulk(void *dest, gasnet_node_t node, const void *src, size_t bytes) {
  gasnet_get(dest, node, src, bytes);
}
GEX_WEFT_INLINE gasnet_handle_t gasnet_get_nb(void *dest, gasnet_node_t node, const void *src, size_t bytes) {
  return gex_RMA_GetNB(gex_weft_tm0(), dest, node, src, bytes, 0);
}
GEX_WEFT_INLINE gasnet_handle_t gasnet_get_nb_bulk(void *dest, gasnet_node_t node, const void *src, size_t bytes) {
  return gasnet_get_nb(dest, node, src, bytes);
}
GEX_WEFT_INLINE void gasnet_get_nbi(void *dest, gasnet_node_t node, const void *src, size_t bytes) {
  (void)gex_RMA_GetNBI(gex_weft_tm0(), dest, node, src, bytes, 0);
}
GEX_WEFT_INLINE void gasnet_get_nbi_bulk(void *dest, gasnet_node_t node, const void *src, size_t bytes) {
  gasnet_get_nbi(dest, node, src, bytes);
}
GEX_WEFT_INLINE gasnet_register_value_t gasnet_get_val(gasnet_node_t node, const void *src, size_t bytes) {
  return gex_RMA_GetBlockingVal(gex_weft_tm0(), node, src, bytes, 0);
}
GEX_WEFT_INLINE gasnet_valget_handle_t gasnet_get_nb_val(gasnet_node_t node, const void *src, size_t bytes) {
  gasnet_valget_handle_t handle;
  handle.gex_weft_value = gasnet_get_val(node, src, bytes);
  return handle;
}
GEX_WEFT_INLINE gasnet_register_value_t gasnet_wait_syncnb_valget(gasnet_valget_handle_t handle) {
  return handle.gex_weft_value;
}

/* Memory of a rank set to one value, in pieces. */
GEX_WEFT_INLINE void gasnet_memset(gasnet_node_t node, void *dest, int value, size_t bytes) {
  unsigned char piece[2048];
  size_t done = 0;
  memset(piece, value, bytes < sizeof(piece) ? bytes : sizeof(piece));
  while (done < bytes) {
    const size_t rest = bytes - done, part = rest < sizeof(piece) ? rest : sizeof(piece);
    gasnet_put(node, (unsigned char *)dest + done, piece, part);
    done += part;
  }
}
GEX_WEFT_INLINE gasnet_handle_t gasnet_memset_nb(gasnet_node_t node, void *dest, int value, size_t bytes) {
  gasnet_memset(node, dest, value, bytes);
  return GASNET_INVALID_HANDLE;
}
GEX_WEFT_INLINE void gasnet_memset_nbi(gasnet_node_t node, void *dest, int value, size_t bytes) {
  gasnet_memset(node, dest, value, bytes);
}

/* Completion by handles. */
GEX_WEFT_INLINE void gasnet_wait_syncnb(gasnet_handle_t handle) { gex_Event_Wait(handle); }
GEX_WEFT_INLINE void gasnet_wait_syncnb_some(gasnet_handle_t *handles, size_t count) {
  gex_Event_WaitSome(handles, count, 0);
}
GEX_WEFT_INLINE void gasnet_wait_syncnb_all(gasnet_handle_t *handles, size_t count) {
  gex_Event_WaitAll(handles, count, 0);
}
GEX_WEFT_INLINE int gasnet_try_syncnb_nopoll(gasnet_handle_t handle) { return gex_Event_Test(handle); }
GEX_WEFT_INLINE int gasnet_try_syncnb_some_nopoll(gasnet_handle_t *handles, size_t count) {
  return gex_Event_TestSome(handles, count, 0);
}
GEX_WEFT_INLINE int gasnet_try_syncnb_all_nopoll(gasnet_handle_t *handles, size_t count) {
  return gex_Event_TestAll(handles, count, 0);
}
GEX_WEFT_INLINE int gasnet_try_syncnb(gasnet_handle_t handle) {
  (void)gasnet_AMPoll();
  return gasnet_try_syncnb_nopoll(handle);
}
GEX_WEFT_INLINE int gasnet_try_syncnb_some(gasnet_handle_t *handles, size_t count) {
  (void)gasnet_AMPoll();
  return gasnet_try_syncnb_some_nopoll(handles, count);
}
GEX_WEFT_INLINE int gasnet_try_syncnb_all(gasnet_handle_t *handles, size_t count) {
  (void)gasnet_AMPoll();
  return gasnet_try_syncnb_all_nopoll(handles, count);
}

/* Completion of implicit accesses. */
#define GEX_WEFT_ONE_SYNC(name, mask)                                                                                  \
  GEX_WEFT_INLINE void gasnet_wait_syncnbi_##name(void) { gex_NBI_Wait(mask, 0); }                                     \
  GEX_WEFT_INLINE int gasnet_try_syncnbi_##name##_nopoll(void) { return gex_NBI_Test(mask, 0); }                       \
  GEX_WEFT_INLINE int gasnet_try_syncnbi_##name(void) {                                                                \
    (void)gasnet_AMPoll();                                                                                             \
    return gex_NBI_Test(mask, 0);                                                                                      \
  }
GEX_WEFT_ONE_SYNC(gets, GEX_EC_GET)
GEX_WEFT_ONE_SYNC(puts, GEX_EC_PUT)
GEX_WEFT_ONE_SYNC(all, GEX_EC_ALL)
#undef GEX_WEFT_ONE_SYNC
GEX_WEFT_INLINE void gasnet_begin_nbi_accessregion(void) { gex_NBI_BeginAccessRegion(0); }
GEX_WEFT_INLINE gasnet_handle_t gasnet_end_nbi_accessregion(void) { return gex_NBI_EndAccessRegion(0); }

GEX_WEFT_END_C

#endif
