/* GASNet-1: Active Messages. Included by gasnet.h. */
#ifndef WEFT_GEX_ONE_AM_H
#define WEFT_GEX_ONE_AM_H

GEX_WEFT_BEGIN_C

GEX_WEFT_INLINE size_t gasnet_AMMaxArgs(void) { return gex_AM_MaxArgs(); }
GEX_WEFT_INLINE size_t gasnet_AMMaxMedium(void) {
  const size_t request = gex_AM_LUBRequestMedium(), reply = gex_AM_LUBReplyMedium();
  return request < reply ? request : reply;
}
GEX_WEFT_INLINE size_t gasnet_AMMaxLongRequest(void) { return gex_AM_LUBRequestLong(); }
GEX_WEFT_INLINE size_t gasnet_AMMaxLongReply(void) { return gex_AM_LUBReplyLong(); }

GEX_WEFT_INLINE int gasnet_AMGetMsgSource(gasnet_token_t token, gasnet_node_t *source) {
  gex_Token_Info_t info;
  if (!(gex_Token_Info(token, &info, GEX_TI_SRCRANK) & GEX_TI_SRCRANK)) return GASNET_ERR_RESOURCE;
  *source = info.gex_srcrank;
  return GASNET_OK;
}

/* The source of each message may be written again when the call returns, except where the name says Async. */
#define GEX_WEFT_ONE_REQUEST_SHORT(n, name)                                                                            \
  GEX_WEFT_INLINE int name##n(gasnet_node_t node, gasnet_handler_t handler GEX_WEFT_PARAMS_##n) {                      \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_RequestShort(gex_weft_tm0(), node, handler, 0, n, args);                                        \
  }
#define GEX_WEFT_ONE_REQUEST_MEDIUM(n, name)                                                                           \
  GEX_WEFT_INLINE int name##n(gasnet_node_t node, gasnet_handler_t handler, const void *src,                           \
                              size_t bytes GEX_WEFT_PARAMS_##n) {                                                      \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_RequestMedium(gex_weft_tm0(), node, handler, src, bytes, GEX_EVENT_NOW, 0, n, args);            \
  }
#define GEX_WEFT_ONE_REQUEST_LONG(n, name)                                                                             \
  GEX_WEFT_INLINE int name##n(gasnet_node_t node, gasnet_handler_t handler, const void *src, size_t bytes,             \
                              void *dest GEX_WEFT_PARAMS_##n) {                                                        \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_RequestLong(gex_weft_tm0(), node, handler, src, bytes, dest, GEX_EVENT_NOW, 0, n, args);        \
  }
/* The source may be written again when a handler of the target has replied. */
#define GEX_WEFT_ONE_REQUEST_ASYNC(n, name)                                                                            \
  GEX_WEFT_INLINE int name##n(gasnet_node_t node, gasnet_handler_t handler, const void *src, size_t bytes,             \
                              void *dest GEX_WEFT_PARAMS_##n) {                                                        \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_RequestLong(gex_weft_tm0(), node, handler, src, bytes, dest, GEX_EVENT_DEFER, 0, n, args);      \
  }
#define GEX_WEFT_ONE_REPLY_SHORT(n, name)                                                                              \
  GEX_WEFT_INLINE int name##n(gasnet_token_t token, gasnet_handler_t handler GEX_WEFT_PARAMS_##n) {                    \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_ReplyShort(token, handler, 0, n, args);                                                         \
  }
#define GEX_WEFT_ONE_REPLY_MEDIUM(n, name)                                                                             \
  GEX_WEFT_INLINE int name##n(gasnet_token_t token, gasnet_handler_t handler, const void *src,                         \
                              size_t bytes GEX_WEFT_PARAMS_##n) {                                                      \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_ReplyMedium(token, handler, src, bytes, GEX_EVENT_NOW, 0, n, args);                             \
  }
#define GEX_WEFT_ONE_REPLY_LONG(n, name)                                                                               \
  GEX_WEFT_INLINE int name##n(gasnet_token_t token, gasnet_handler_t handler, const void *src, size_t bytes,           \
                              void *dest GEX_WEFT_PARAMS_##n) {                                                        \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_ReplyLong(token, handler, src, bytes, dest, GEX_EVENT_NOW, 0, n, args);                         \
  }

GEX_WEFT_EACH(GEX_WEFT_ONE_REQUEST_SHORT, gasnet_AMRequestShort)
GEX_WEFT_EACH(GEX_WEFT_ONE_REQUEST_MEDIUM, gasnet_AMRequestMedium)
GEX_WEFT_EACH(GEX_WEFT_ONE_REQUEST_LONG, gasnet_AMRequestLong)
GEX_WEFT_EACH(GEX_WEFT_ONE_REQUEST_ASYNC, gasnet_AMRequestLongAsync)
GEX_WEFT_EACH(GEX_WEFT_ONE_REPLY_SHORT, gasnet_AMReplyShort)
GEX_WEFT_EACH(GEX_WEFT_ONE_REPLY_MEDIUM, gasnet_AMReplyMedium)
GEX_WEFT_EACH(GEX_WEFT_ONE_REPLY_LONG, gasnet_AMReplyLong)

GEX_WEFT_END_C

#define gasnet_AMRequestShort(...) GEX_WEFT_JOIN(gasnet_AMRequestShort, GEX_WEFT_COUNT_2(__VA_ARGS__))(__VA_ARGS__)
#define gasnet_AMRequestMedium(...) GEX_WEFT_JOIN(gasnet_AMRequestMedium, GEX_WEFT_COUNT_4(__VA_ARGS__))(__VA_ARGS__)
#define gasnet_AMRequestLong(...) GEX_WEFT_JOIN(gasnet_AMRequestLong, GEX_WEFT_COUNT_5(__VA_ARGS__))(__VA_ARGS__)
#define gasnet_AMRequestLongAsync(...)                                                                                 \
  GEX_WEFT_JOIN(gasnet_AMRequestLongAsync, GEX_WEFT_COUNT_5(__VA_ARGS__))(__VA_ARGS__)
#define gasnet_AMReplyShort(...) GEX_WEFT_JOIN(gasnet_AMReplyShort, GEX_WEFT_COUNT_2(__VA_ARGS__))(__VA_ARGS__)
#define gasnet_AMReplyMedium(...) GEX_WEFT_JOIN(gasnet_AMReplyMedium, GEX_WEFT_COUNT_4(__VA_ARGS__))(__VA_ARGS__)
#define gasnet_AMReplyLong(...) GEX_WEFT_JOIN(gasnet_AMReplyLong, GEX_WEFT_COUNT_5(__VA_ARGS__))(__VA_ARGS__)

#endif
